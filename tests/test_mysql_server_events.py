"""
What a server does to a MySQL store: it goes away and comes back, hangs, has enough of us, or becomes read-only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from asyncmy.errors import OperationalError

from timeline_trio import Config, open_manager
from timeline_trio.store import MergeRequest, RaceLost, StoreUnavailable
from timeline_trio.testing import FaultyStore
from timeline_trio_mysql import open_mysql, open_mysql_on
from timeline_trio_mysql._failures import translate

from .case_support import Failures, interval
from .mysql_support import (
    account,
    address_of,
    application_pool,
    ask,
    eventually,
    nursery_while_locked,
    opening,
    sessions,
    setting,
    sockets_to,
    stored,
    update,
    waiting_for_lock,
)
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from timeline_trio.testing.servers import MySQLServer
    from timeline_trio_mysql import MySQLStore


@pytest.fixture
async def store(mysql_url: str) -> AsyncIterator[MySQLStore]:
    async with opening(mysql_url, pool_size=2) as opened:
        await opened.merge("op", update("a"))
        yield opened


async def end_sessions(server: MySQLServer, url: str) -> None:
    for id_ in await sessions(server, url):
        await ask(server, f"KILL {id_}")


async def test_session_that_was_ended_while_idle_is_replaced_unnoticed(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore
) -> None:
    await end_sessions(mysql_server, mysql_url)
    await store.merge("op", update("b"))
    assert store.statistics().connections.discarded == 1


async def test_session_that_is_found_ended_by_its_next_statement_is_replaced_unnoticed(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore
) -> None:
    """
    The end of the stream lies unread where no task of ours ran since.
    """
    for id_ in await sessions(mysql_server, mysql_url):
        mysql_server.execute(f"KILL {id_}")  # blocks this run on purpose
    await store.merge("op", update("b"))
    for id_ in await sessions(mysql_server, mysql_url):
        mysql_server.execute(f"KILL {id_}")
    await store.merge_many([MergeRequest("op", update("c")), MergeRequest("x", update())])
    for id_ in await sessions(mysql_server, mysql_url):
        mysql_server.execute(f"KILL {id_}")
    assert len((await stored(store)).stages) == 3


async def test_session_ended_on_the_applications_pool_is_replaced_unnoticed(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    async with application_pool(mysql_url, maxsize=1) as pool, open_mysql_on(pool) as store:
        for number in range(3):
            await store.merge("op", update(str(number)))
            for id_ in await sessions(mysql_server, mysql_url):
                mysql_server.execute(f"KILL {id_}")
        assert len((await stored(store)).stages) == 3


async def test_session_that_was_idle_for_longer_than_the_server_waits_is_replaced_unnoticed(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    # wait_timeout
    with setting(mysql_server, "wait_timeout", 1):
        async with opening(mysql_url, pool_size=1) as store:
            await store.merge("op", update("a"))

            async def none_is_left() -> bool:
                return await sessions(mysql_server, mysql_url) == []

            await eventually(none_is_left)
            await store.merge("op", update("b"))
            assert set((await stored(store)).stages) == {("a", ""), ("b", "")}


async def test_session_ended_in_the_middle_of_a_statement_is_told_of(mysql_server: MySQLServer, mysql_url: str) -> None:
    async with opening(mysql_url, pool_size=1) as store:
        await store.merge("op", update("a"))
        await end_sessions(mysql_server, mysql_url)
        async with nursery_while_locked(mysql_server, mysql_url) as nursery:
            nursery.start_soon(_expect, "closed the connection", partial(store.merge, "op", update("b")))
            (id_,) = await waiting_for_lock(mysql_server, mysql_url, 1)
            await ask(mysql_server, f"KILL {id_}")
        await store.merge("op", update("b"))


async def test_statement_ended_by_an_administrator_is_told_of_and_its_session_stays(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore
) -> None:
    # 1317
    async with nursery_while_locked(mysql_server, mysql_url) as nursery:
        nursery.start_soon(_expect, "told by somebody to end the statement", partial(store.read, "op"))
        (id_,) = await waiting_for_lock(mysql_server, mysql_url, 1)
        await ask(mysql_server, f"KILL QUERY {id_}")
    await store.read("op")
    assert store.statistics().connections.discarded == 0


async def _expect(problem: str, call: Any) -> None:
    with pytest.raises(StoreUnavailable, match=problem) as caught:
        await call()
    assert caught.value.__cause__ is not None


async def test_server_killed_in_the_middle_of_a_statement_is_told_of_and_used_again_when_it_is_back(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore
) -> None:
    async with nursery_while_locked(mysql_server, mysql_url) as nursery:
        # Whose connection had lain idle is given another try, which finds nobody there.
        problem = "closed the connection|cannot be reached"
        nursery.start_soon(_expect, problem, partial(store.read, "op"))
        nursery.start_soon(_expect, problem, partial(store.merge_many, [MergeRequest(o, update()) for o in "ab"]))
        await waiting_for_lock(mysql_server, mysql_url, 2)
        await trio.to_thread.run_sync(mysql_server.kill)
    with trio.fail_after(1):
        await _expect("cannot be reached; check the address, and that the server runs", partial(store.read, "op"))
    await trio.to_thread.run_sync(mysql_server.restart)
    await store.merge("op", update("b"))
    assert set((await stored(store)).stages) == {("a", ""), ("b", "")}


async def test_server_restarted_while_nobody_looks_is_used_on_unnoticed(
    mysql_server: MySQLServer, store: MySQLStore
) -> None:
    await trio.to_thread.run_sync(mysql_server.restart)
    await store.merge("op", update("b"))
    assert store.statistics().connections.discarded == 1


async def test_frozen_server_costs_each_caller_no_more_than_its_own_deadline(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore
) -> None:
    mysql_server.freeze()
    try:
        for _ in range(3):
            with trio.move_on_after(0.1) as scope:
                await store.read("op")
            assert scope.cancelled_caught
            assert trio.current_time() - scope.deadline < 0.1
            assert sockets_to(mysql_server) <= 2
    finally:
        mysql_server.thaw()
    assert set((await stored(store)).stages) == {("a", "")}

    async def no_more_than_the_pool() -> bool:
        return len(await sessions(mysql_server, mysql_url)) <= 2

    await eventually(no_more_than_the_pool)


async def test_full_server_is_told_of_and_used_when_there_is_room(mysql_server: MySQLServer, mysql_url: str) -> None:
    # 1203 or 1226, by account; 1040 is the same, by server
    may = f"ALL ON {address_of(mysql_url).database}.*"
    with account(mysql_server, "few", "WITH MAX_USER_CONNECTIONS 1", may=may):
        async with open_mysql(address_of(mysql_url, user="few"), pool_size=2) as store:
            with pytest.raises(StoreUnavailable, match="no connection left for the user; lower pool_size"):
                async with open_mysql(address_of(mysql_url, user="few")):
                    pass
            await store.merge("op", update())
        async with open_mysql(address_of(mysql_url, user="few")) as store:
            await stored(store)


async def test_read_only_server_is_told_of_and_its_connection_given_up(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    # 1290: after a failover the same name may lead to another server.
    may = f"ALL ON {address_of(mysql_url).database}.*"
    with account(mysql_server, "writer", may=may):
        async with open_mysql(address_of(mysql_url, user="writer"), pool_size=1) as store:
            await store.merge("op", update("a"))
            with setting(mysql_server, "read_only", 1):
                for call in (
                    partial(store.merge, "op", update("b")),
                    partial(store.merge_many, [MergeRequest(opid, update("b")) for opid in ("op", "new")]),
                ):
                    with pytest.raises(StoreUnavailable, match="is read-only; connect to the primary"):
                        await call()
                assert store.statistics().connections.discarded == 2
                await store.read("op")
            await store.merge("op", update("b"))


async def test_table_dropped_meanwhile_is_told_of(mysql_server: MySQLServer, mysql_url: str, store: MySQLStore) -> None:
    # 1146
    await ask(mysql_server, "DROP TABLE timelines", mysql_url)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"no table 'timelines'.*; call create_schema\(\) once"):
            await store.merge("op", update())
    await store.create_schema()
    await store.merge("op", update())


async def test_table_changed_meanwhile_is_used_on(mysql_server: MySQLServer, mysql_url: str, store: MySQLStore) -> None:
    await stored(store)
    await ask(mysql_server, "ALTER TABLE timelines ADD COLUMN noted VARCHAR(9), ADD INDEX (noted)", mysql_url)
    await store.merge("op", update("b"))
    assert len((await stored(store)).stages) == 2


@pytest.mark.parametrize("code", [1020, 1205, 1213, 3101, 9007])
def test_what_the_server_ends_in_favour_of_others_is_started_anew(code: int) -> None:
    assert isinstance(translate(OperationalError(code, "secret"), "name"), RaceLost)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (1040, "raise the server's max_connections"),
        (1153, "lowered max_allowed_packet"),
        (1461, "max_prepared_stmt_count"),
        (1665, "binlog_format"),
        (1969, "max_statement_time"),
        (2006, "closed the connection"),
        (1927, "closed the connection"),
        (4031, "closed the connection"),
        (1105, "could not be used: error 1105; the cause tells more"),
        (0, "gave what the driver does not understand"),
    ],
)
def test_other_failures_say_what_to_do_and_no_content(code: int, problem: str) -> None:
    error = translate(OperationalError(code, "secret"), "me@h:1/ops")
    assert isinstance(error, StoreUnavailable)
    assert problem in str(error)
    assert str(error).startswith("me@h:1/ops ")
    assert "secret" not in str(error)


class Recorder:
    """
    A manager's program: it records stages into a few operations, a step at a time.
    """

    def __init__(self, store: Any) -> None:
        self.failures = Failures()
        self.config = Config(
            on_error=self.failures,
            export_timeout=1.0,
            flush_interval=0.05,
            load_interval=0.2,
            max_pending_updates=9_999,
        )
        self.store = store
        self.recorded = 0

    async def run(self, task_status: trio.TaskStatus[Any]) -> None:  # noqa: ASYNC114 - it is only started from here
        async with open_manager(self.store, config=self.config, drain_timeout=20) as manager:
            with trio.CancelScope() as scope:
                task_status.started(scope)
                while True:
                    for number in range(8):
                        manager.record(f"op-{number}", interval(str(self.recorded)))
                    self.recorded += 1
                    await trio.sleep(0.01)
            for number in range(8):
                await manager.flush(f"op-{number}")
            assert_counters_add_up(manager)
            counters = manager.statistics()
            assert counters.pending_updates == counters.dropped_updates == counters.rejected_updates == 0
            assert counters.refused_updates == 0


@pytest.mark.parametrize("event", ["killed twice", "frozen for ten seconds"])
async def test_manager_loses_nothing_when_the_server_is(mysql_server: MySQLServer, mysql_url: str, event: str) -> None:
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, sockets_to(mysql_server))
            await trio.sleep(0.02)

    async with opening(mysql_url, pool_size=2, connect_timeout=1) as store, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        recorder = Recorder(FaultyStore(store))
        scope = await nursery.start(recorder.run)
        await trio.sleep(0.5)
        if event == "frozen for ten seconds":
            mysql_server.freeze()
            await trio.sleep(10)
            mysql_server.thaw()
        else:
            for _ in range(2):
                await trio.to_thread.run_sync(mysql_server.kill)
                await trio.sleep(0.3)
                await trio.to_thread.run_sync(mysql_server.restart)
                await trio.sleep(0.5)

        async def serves() -> bool:
            with trio.move_on_after(1):
                return bool(await store.mget(["op-0"]))
            return False

        await eventually(serves)
        saved = store.merges

        async def saves_again() -> bool:
            await trio.lowlevel.checkpoint()
            return store.merges > saved + 16

        await eventually(saves_again)
        count = await sessions(mysql_server, mysql_url)
        assert len(count) <= 2
        scope.cancel()

        async def done() -> bool:
            await trio.lowlevel.checkpoint()
            return len(nursery.child_tasks) == 1

        await eventually(done)
        for number in range(8):
            assert len((await stored(store, f"op-{number}")).stages) == recorder.recorded
        nursery.cancel_scope.cancel()
    assert recorder.failures.all
    assert all(isinstance(error, StoreUnavailable) for _, error in recorder.failures.all)
    assert most <= 2
