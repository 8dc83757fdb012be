"""
Tests of many writers on MySQL: nothing is lost, no snapshot is stale, and what the server gives up is started anew.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncmy
import pytest
import trio

from timeline_trio import Actor, Config, open_manager
from timeline_trio.store import Known, MergeRequest
from timeline_trio_mysql import open_mysql_on

from .case_support import Failures, interval
from .mysql_support import address_of, application_pool, ask, event_loop, eventually, opening, stored, update
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from timeline_trio import Manager
    from timeline_trio.testing.servers import MySQLServer
    from timeline_trio_mysql import MySQLStore

FOUND_ROWS = 2  # the client flag
STALE = {"autocommit": False, "init_command": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"}


class OtherWriter:
    """
    A connection of another program, in a transaction of its own.
    """

    def __init__(self, run: Callable[[Any], Awaitable[Any]], connection: Any) -> None:
        self._run = run
        self._connection = connection

    async def do(self, sql: str) -> None:
        await self._run(partial(self._connection.query, sql))


@asynccontextmanager
async def other_writer(url: str) -> AsyncGenerator[OtherWriter, None]:
    address = address_of(url)
    given = {"host": address.host, "port": address.port, "user": address.user, "database": address.database}
    async with event_loop() as run:
        connection = await run(partial(asyncmy.connect, **given))
        try:
            yield OtherWriter(run, connection)
        finally:
            await run(connection.ensure_closed)  # noqa: ASYNC102 - the driver closes without waiting for the server


async def test_snapshot_of_a_pooled_connection_is_never_stale(mysql_server: MySQLServer, mysql_url: str) -> None:
    # C08
    async with (
        application_pool(mysql_url, maxsize=1, **STALE) as pool,
        open_mysql_on(pool) as store,
        opening(mysql_url) as other,
    ):
        for number in range(50):
            merged = await other.merge("op", update(str(number)))
            assert len((await stored(store)).stages) == number + 1
            (recent,) = await store.latest(0, 9)
            assert getattr(recent, "revision", None) == merged.revision
        assert await ask(mysql_server, "SELECT COUNT(*) FROM information_schema.innodb_trx") == [["0"]]
        assert store.statistics().connections.discarded == 0
        assert store.statistics().connections.open == 1


async def test_lost_race_reads_what_won_it_and_succeeds_at_the_second_try(mysql_url: str) -> None:
    # C09
    async with application_pool(mysql_url, **STALE) as pool, open_mysql_on(pool) as store, opening(mysql_url) as other:
        merged = await store.merge("op", update("a"))
        assert merged.revision
        assert merged.document
        known = Known(merged.revision, merged.document)
        await other.merge("op", update("b"))
        attempts = store.attempts
        await store.merge("op", update("c"), known)
        assert store.attempts == attempts + 2
        await store.merge_many([MergeRequest("op", update("d"), known), MergeRequest("new", update())])
        assert set((await stored(store)).stages) == {(each, "") for each in "abcd"}


@pytest.mark.parametrize("client_flag", [0, FOUND_ROWS])
async def test_exactly_one_writer_wins_whatever_affected_rows_means(mysql_url: str, client_flag: int) -> None:
    # C11
    options = {"client_flag": client_flag, "autocommit": True, "maxsize": 8}
    async with application_pool(mysql_url, **options) as pool, open_mysql_on(pool) as store:
        merged = await store.merge("op", update("a"))
        assert merged.revision
        assert merged.document
        known = Known(merged.revision, merged.document)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(store.merge, "op", update(str(number)), known)
        again = await store.merge("op", update("a"), known)
        assert not again.changed
        assert again.revision
        assert again.revision.version == 9
        assert len((await stored(store)).stages) == 9


@asynccontextmanager
async def managers(url: str, how_many: int, config: Config) -> AsyncGenerator[list[Manager], None]:
    async with opening(url, pool_size=8) as store, trio.open_nursery() as nursery:
        yield [await nursery.start(_manage, store, config) for _ in range(how_many)]
        nursery.cancel_scope.cancel()


async def _manage(  # noqa: ASYNC114 - it is only started from here
    store: MySQLStore, config: Config, task_status: trio.TaskStatus[Manager]
) -> None:
    async with open_manager(store, config=config) as manager:
        task_status.started(manager)
        await trio.sleep_forever()


async def test_many_new_operations_and_the_same_one_are_created_at_one_instant(mysql_url: str) -> None:
    # C17
    failures = Failures()
    async with managers(mysql_url, 30, Config(on_error=failures)) as all_of_them:
        async with trio.open_nursery() as nursery:
            for number, manager in enumerate(all_of_them):
                manager.record(f"op-{number:02}", interval("a"))
                manager.record("same", interval(str(number)))
                nursery.start_soon(manager.flush, f"op-{number:02}")
                nursery.start_soon(manager.flush, "same")
        for manager in all_of_them:
            assert_counters_add_up(manager)
            assert manager.statistics().pending_updates == 0
    async with opening(mysql_url) as store:
        assert len(await store.mget([f"op-{number:02}" for number in range(30)])) == 30
        assert len((await stored(store, "same")).stages) == 30
    assert failures.all == []


async def test_neighbours_are_created_on_an_applications_pool_as_well(mysql_url: str) -> None:
    """
    REPEATABLE READ locks the gaps between ids, and so makes deadlocks of what is none.
    """
    async with application_pool(mysql_url, maxsize=8, **STALE) as pool, open_mysql_on(pool) as store:
        async with trio.open_nursery() as nursery:
            for writer in range(8):
                requests = [MergeRequest(f"op-{number}", update(str(writer))) for number in range(8)]
                nursery.start_soon(store.merge_many, requests)
        for number in range(8):
            assert len((await stored(store, f"op-{number}")).stages) == 8


async def test_row_that_stays_locked_is_waited_for_until_the_callers_scope_ends(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    # 1205
    async with (
        opening(mysql_url, pool_size=1) as store,
        opening(mysql_url, pool_size=1) as second,
        other_writer(mysql_url) as other,
    ):
        await store.merge("op", update("a"))
        await other.do("BEGIN")
        await other.do("UPDATE timelines SET version = version WHERE id = 'op'")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.merge, "op", update("b"))
            nursery.start_soon(second.merge_many, [MergeRequest("op", update("c")), MergeRequest("x", update())])
            # The server gives up after three seconds, the second time too.
            waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%FOR UPDATE%' AND id <> "
            await eventually(partial(_answers, mysql_server, waiting + "CONNECTION_ID()", "2"))
            await other.do("ROLLBACK")
        assert set((await stored(store)).stages) == {("a", ""), ("b", ""), ("c", "")}
        assert store.statistics().connections.discarded == second.statistics().connections.discarded == 0


async def _answers(server: MySQLServer, sql: str, expected: str) -> bool:
    return await ask(server, sql) == [[expected]]


async def test_victim_of_a_deadlock_starts_anew(mysql_server: MySQLServer, mysql_url: str) -> None:
    # 1213
    async with opening(mysql_url, pool_size=1) as store, other_writer(mysql_url) as other:
        for opid in ("a", "b"):
            await store.merge(opid, update())
        await other.do("BEGIN")
        for _ in range(20):  # the one who has changed more is spared
            await other.do("UPDATE timelines SET version = version + 1 WHERE id = 'b'")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.merge_many, [MergeRequest(opid, update("t")) for opid in ("a", "b")])
            locked = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
            # InnoDB brings this table up to date only when nobody has asked for it for a tenth of a second.
            await eventually(partial(_answers, mysql_server, locked, "1"), pause=0.2)
            await other.do("UPDATE timelines SET version = version + 1 WHERE id = 'a'")
            await other.do("COMMIT")
        for opid in ("a", "b"):
            assert set((await stored(store, opid)).stages) == {("s", ""), ("t", "")}
        assert store.statistics().connections.discarded == 0


async def test_changed_row_that_mariadb_refuses_to_lock_starts_anew(mysql_server: MySQLServer, mysql_url: str) -> None:
    # 1020
    if not mysql_server.is_mariadb:
        pytest.skip("Oracle MySQL has no innodb_snapshot_isolation")
    options = {**STALE, "init_command": "SET SESSION innodb_snapshot_isolation = ON"}
    async with (
        application_pool(mysql_url, maxsize=8, **options) as pool,
        open_mysql_on(pool) as store,
        trio.open_nursery() as nursery,
    ):
        for writer in range(8):
            for round_ in range(5):
                requests = [MergeRequest(opid, update(f"{writer} {round_}")) for opid in ("a", "b", "c")]
                nursery.start_soon(store.merge_many, requests)
    async with opening(mysql_url) as store:
        for opid in ("a", "b", "c"):
            assert len((await stored(store, opid)).stages) == 40


async def test_hot_row_keeps_every_writer_moving(mysql_url: str) -> None:
    # D04
    async def add(number: int) -> None:
        for each in range(20):
            await store.merge("op", update(f"{number} {each}"))

    async with opening(mysql_url) as store:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for number in range(16):
                    nursery.start_soon(add, number)
        assert len((await stored(store)).stages) == 320
        assert store.attempts < 10 * store.merges


PROCESS = """
import sys, trio
from timeline_trio.model import Actor, Stage, Update
from timeline_trio_mysql import open_store

async def main(url, me):
    async with open_store(url + "?pool_size=1") as store:
        print("ready\\n", end="", flush=True)
        sys.stdin.readline()
        for number in range(20):
            stage = Stage(id="s", name="work", started_at=0, actor=Actor(id=me))
            await store.merge(f"op-{number}", Update(stages=(stage,)))
        print(store.attempts, flush=True)

trio.run(main, *sys.argv[1:])
"""


async def _run_process(  # noqa: ASYNC114 - it is only started from here
    url: str, number: int, task_status: trio.TaskStatus[trio.Process]
) -> None:
    command = [sys.executable, "-W", "error", "-c", PROCESS, url, str(number)]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=True)
        )
        assert await process.stdout.receive_some(6) == b"ready\n"
        task_status.started(process)


async def test_processes_that_record_into_one_operation_at_once_lose_nothing(mysql_url: str) -> None:
    # D01
    how_many = 8
    attempts = 0
    async with trio.open_nursery() as nursery:
        processes = [await nursery.start(_run_process, mysql_url, number) for number in range(how_many)]
        for process in processes:
            await process.stdin.send_all(b"go\n")
            await process.stdin.aclose()
        for process in processes:
            attempts += int(b"".join([chunk async for chunk in process.stdout]))
            assert await process.wait() == 0
    assert attempts <= 10 * how_many * 20
    async with opening(mysql_url) as store:
        for number in range(20):
            answer = await store.read(f"op-{number}")
            assert answer.revision.version == how_many
            assert len((await stored(store, f"op-{number}")).stages) == how_many


async def test_managers_of_two_stores_see_each_others_stages_by_background_saves_only(mysql_url: str) -> None:
    # Parity 89
    config = Config(flush_interval=0.05, load_interval=0.05)
    async with (
        opening(mysql_url) as one,
        opening(mysql_url) as two,
        open_manager(one, config=config) as first,
        open_manager(two, config=config) as second,
    ):
        first.record("op", interval("s", actor=Actor("1")))
        second.record("op", interval("s", actor=Actor("2")))

        async def both() -> bool:
            return bool(await one.mget(["op"])) and len((await stored(one)).stages) == 2

        await eventually(both)
