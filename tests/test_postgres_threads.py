"""
Tests of calls whose caller is cancelled: their threads end, their connections are given up, and nothing comes late.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
import trio

from timeline_trio import Config, DrainError, open_manager
from timeline_trio.model import InvalidValue
from timeline_trio.store import FetchHeads, Found, InsertRow, Row, StoreUnavailable, WriteRows
from timeline_trio_postgres import PostgresStore, open_postgres

from .postgres_support import (
    busy_threads,
    connected,
    locked_table,
    name_of,
    nothing_left,
    rows,
    sessions,
    sockets,
    update,
    wait_until,
    wait_waiting,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from timeline_trio.store import Script
    from timeline_trio.testing.servers import PostgresServer


class Gate:
    """
    A wall clock that can be made to hold up the thread that asks it: a merge that is about to write.
    """

    def __init__(self) -> None:
        self.closed = False
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> int:
        if self.closed:
            self.closed = False
            self.reached.set()
            assert self.opened.wait(30)
        return 1_767_225_600 * 10**9

    async def wait_reached(self) -> None:
        assert await trio.to_thread.run_sync(self.reached.wait, 30)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
async def store(postgres_url: str, gate: Gate) -> AsyncIterator[PostgresStore]:
    async with open_postgres(postgres_url, clock=gate) as opened:
        yield opened
        gate.opened.set()


@pytest.fixture
def watcher(postgres_url: str) -> Iterator[psycopg.Connection]:
    with connected(postgres_url) as connection:
        yield connection


async def cancel_when_waiting(watcher: psycopg.Connection, call: Callable[[], object]) -> float:
    """
    Cancel a call once the server holds it up, and return how long that took, in seconds.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)  # type: ignore[arg-type]
        await wait_waiting(watcher)
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    return trio.current_time() - began


async def test_cancelled_query_leaves_no_answer_for_the_next_one(postgres_url: str) -> None:
    # C01
    async with open_postgres(postgres_url, pool_size=1) as store:
        for opid in ("A", "B"):
            await store.merge(opid, update(name=opid))
        with connected(postgres_url) as watcher:
            for _ in range(5):
                with locked_table(postgres_url):
                    assert await cancel_when_waiting(watcher, partial(store.read, "A")) < 1
                assert await name_of(store, "B") == "B"
                assert store.statistics().pool.open == 1
        assert store.statistics().pool.discarded == 5


async def test_merge_that_waits_for_a_row_is_cancelled_promptly_and_never_done(
    store: PostgresStore, postgres_url: str, watcher: psycopg.Connection
) -> None:
    await store.merge("op", update(name="first"))
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT * FROM timelines FOR UPDATE")
        assert await cancel_when_waiting(watcher, partial(store.merge, "op", update(name="late"))) < 1
        await wait_until(lambda: sessions(watcher) == 0)
    assert await name_of(store) == "first"
    await store.merge("op", update(name="second"))
    assert await name_of(store) == "second"
    assert rows(postgres_url, "SELECT version FROM timelines") == [(2,)]


async def test_cancelled_transaction_is_rolled_back(
    store: PostgresStore, postgres_url: str, watcher: psycopg.Connection
) -> None:
    for opid in ("a", "b"):
        await store.merge(opid, update(name="first"))

    def both() -> Script[None]:
        for opid in ("new", "b"):
            yield WriteRows([InsertRow(Row(id=opid, payload="{}", version=1, created_at=1, updated_at=1))])
            yield FetchHeads([opid])

    with psycopg.connect(postgres_url) as other:
        other.execute("DELETE FROM timelines WHERE id = 'b'")
        await cancel_when_waiting(watcher, partial(store.run, both, writes=True, transaction=True))
    assert [answer.opid for answer in await store.mget(["a", "b", "new"])] == ["a"]


async def test_cancelling_is_prompt_while_the_server_stands_still_and_ends_the_thread(
    store: PostgresStore, postgres: PostgresServer
) -> None:
    await store.merge("op", update(name="first"))
    before = sockets()
    postgres.freeze()
    try:
        for call in (partial(store.merge, "op", update(name="late")), partial(store.read, "op")):
            began = trio.current_time()
            with trio.move_on_after(0.1):
                await call()
            assert trio.current_time() - began < 1
        assert store.statistics().pool.open == 0
        await wait_until(lambda: not busy_threads())
        assert sockets() < before
    finally:
        postgres.thaw()
    await store.merge("op", update(name="second"))
    assert await name_of(store) == "second"


async def test_large_merge_to_a_server_that_stands_still_sends_nothing_more_after_it_was_cancelled(
    postgres_url: str, postgres: PostgresServer
) -> None:
    large = update(name="x" * 12_000_000)
    async with open_postgres(postgres_url) as store:
        await store.merge("op", update(name="first"))
        postgres.freeze()
        try:
            began = trio.current_time()
            with trio.move_on_after(0.5):
                await store.merge("op", large)
            assert trio.current_time() - began < 2
            await wait_until(lambda: not busy_threads())
        finally:
            postgres.thaw()
        assert await name_of(store) == "first"


async def test_closing_while_the_server_stands_still_leaves_no_socket(
    postgres_url: str, postgres: PostgresServer
) -> None:
    # C03
    before = sockets()
    opening = open_postgres(postgres_url)
    store = await opening.__aenter__()
    async with trio.open_nursery() as nursery:
        for number in range(9):
            nursery.start_soon(store.merge, f"op-{number}", update())
    assert len(sockets() - before) == 4
    postgres.freeze()
    try:
        began = trio.current_time()
        with trio.move_on_after(0.1):
            await store.aclose()
        assert trio.current_time() - began < 1
        assert sockets() <= before
        await store.aclose()
        await opening.__aexit__(None, None, None)
    finally:
        postgres.thaw()


async def test_connecting_to_a_server_that_stands_still_ends_in_time_or_when_it_is_cancelled(
    postgres_url: str, postgres: PostgresServer
) -> None:
    async with open_postgres(postgres_url, connect_timeout=0.3) as store:
        await store.aclose()
    before = sockets()
    postgres.freeze()
    try:
        async with open_postgres(postgres_url, create=False, connect_timeout=0.3) as store:
            with pytest.raises(StoreUnavailable, match=r"did not accept a connection within 0.3 s"):
                await store.read("op")
            with trio.move_on_after(0.05) as scope:
                await store.read("op")
            assert scope.cancelled_caught
            assert sockets() <= before
            assert store.statistics().pool.open == 0
    finally:
        postgres.thaw()


async def test_cancelled_tasks_do_not_drain_the_pool(postgres_url: str, watcher: psycopg.Connection) -> None:
    # C06
    chance = random.Random(6)  # noqa: S311 - no secret
    async with open_postgres(postgres_url, pool_size=1) as store:
        await store.merge("op", update())
        for _ in range(100):
            with trio.move_on_after(chance.uniform(0, 0.003)):
                await store.read("op")
        with trio.fail_after(1):
            await store.read("op")
        await wait_until(lambda: sessions(watcher) <= 1)


async def test_random_cancellations_leave_no_wrong_answer_and_no_session_too_many(
    postgres_url: str, watcher: psycopg.Connection
) -> None:
    chance = random.Random(24)  # noqa: S311 - no secret
    answers = cancelled = 0
    most = 0

    async def call(store: PostgresStore, opid: str, kind: int) -> None:
        if kind == 0:
            assert await name_of(store, opid) == opid
        elif kind == 1:
            (answer,) = await store.mget([opid])
            assert isinstance(answer, Found)
            assert answer.document.opid == opid
        else:
            merged = await store.merge(opid, update(str(chance.random()), name=opid))
            assert merged.changed
            assert merged.document is not None
            assert merged.document.opid == opid

    async def work(store: PostgresStore, number: int, deadline: float) -> None:
        nonlocal answers, cancelled
        opid = f"op-{number}"
        while trio.current_time() < deadline:
            with trio.move_on_after(chance.uniform(0, chance.choice((0.002, 0.02, 0.2)))) as scope:
                await call(store, opid, chance.randrange(3))
                answers += 1
            cancelled += scope.cancelled_caught

    async with open_postgres(postgres_url, pool_size=4) as store:
        for number in range(24):
            await store.merge(f"op-{number}", update(name=f"op-{number}"))
        deadline = trio.current_time() + 3
        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(work, store, number, deadline)
            while trio.current_time() < deadline:
                most = max(most, await trio.to_thread.run_sync(sessions, watcher))
                await trio.sleep(0.01)
        counts = store.statistics().pool
        assert (counts.open, counts.waiting) == (counts.idle, 0)
        for number in range(24):
            assert await name_of(store, f"op-{number}") == f"op-{number}"
    print(f"{answers} answers, {cancelled} cancelled, {counts.discarded} given up, at most {most} sessions")  # noqa: T201
    assert answers > 100
    assert cancelled > 100
    assert most <= 4
    await wait_until(lambda: sessions(watcher) == 0)


async def leave_merge_behind(store: PostgresStore, gate: Gate, name: str) -> None:
    gate.closed = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.merge, "op", update(name=name))
        await gate.wait_reached()
        nursery.cancel_scope.cancel()


async def test_late_thread_writes_nothing_and_has_its_connection_for_itself(store: PostgresStore, gate: Gate) -> None:
    # B16
    await store.merge("op", update(name="first"))
    await leave_merge_behind(store, gate, "older")
    assert len(busy_threads()) == 1
    await store.merge("op", update(name="newer"))
    assert await name_of(store) == "newer"
    gate.opened.set()
    await wait_until(lambda: not busy_threads())
    assert await name_of(store) == "newer"
    assert (await store.read("op")).revision.version == 2


async def test_manager_goes_on_beside_a_stuck_thread_and_ends_by_its_deadline(store: PostgresStore, gate: Gate) -> None:
    # B16
    config = Config(export_timeout=0.3, flush_interval=0.05, on_error=lambda _opid, _error: None)
    async with open_manager(store, config=config) as manager:
        gate.closed = True
        manager.begin("op", "older", stage_id="s")
        await gate.wait_reached()
        with pytest.raises(StoreUnavailable) as caught:
            await manager.flush("op")
        assert "did not answer within export_timeout=0.3" in str(caught.value.__cause__)
        assert busy_threads()
        manager.begin("op", "newer", stage_id="s")
        await manager.flush("op")
        gate.opened.set()
        await wait_until(lambda: not busy_threads())
        assert await name_of(store) == "newer"

        gate.opened.clear()
        gate.reached.clear()
        gate.closed = True
        manager.begin("op", "newest", stage_id="s")
        await gate.wait_reached()
        with pytest.raises(DrainError, match="1 updates"):
            await manager.shutdown(trio.current_time() + 0.3)
        assert busy_threads(), "it ended without the thread"
    gate.opened.set()
    await wait_until(lambda: not busy_threads())
    assert await name_of(store) == "newer"


async def test_closing_does_not_wait_for_ever_for_a_stuck_thread(
    postgres_url: str, gate: Gate, watcher: psycopg.Connection
) -> None:
    began = trio.current_time()
    async with open_postgres(postgres_url, clock=gate) as store:
        await leave_merge_behind(store, gate, "late")
        began = trio.current_time()
    assert trio.current_time() - began < 3
    assert len(busy_threads()) == 1
    await wait_until(lambda: sessions(watcher) == 0)
    gate.opened.set()
    await wait_until(lambda: not busy_threads())
    assert rows(postgres_url, "SELECT * FROM timelines") == []


async def test_call_under_way_while_the_store_closes_gives_its_connection_up(
    postgres_url: str, watcher: psycopg.Connection
) -> None:
    opening = open_postgres(postgres_url)
    store = await opening.__aenter__()

    async def merge() -> None:
        with pytest.raises(StoreUnavailable, match="is closed"):
            await store.merge("op", update())

    with locked_table(postgres_url):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(merge)
            await wait_waiting(watcher)
            await opening.__aexit__(None, None, None)
        assert store.statistics().pool.open == 0


async def test_script_that_fails_is_rolled_back_and_its_connection_kept(store: PostgresStore) -> None:
    def script() -> Script[None]:
        yield WriteRows([InsertRow(Row(id="op", payload="{}", version=1, created_at=1, updated_at=1))])
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await store.run(script, writes=True, transaction=True)
    assert await store.mget(["op"]) == []
    counts = store.statistics().pool
    assert (counts.open, counts.discarded) == (1, 0)


async def test_failure_of_the_callers_own_leaves_the_connection_as_it_was(store: PostgresStore) -> None:
    def script() -> Script[None]:
        yield FetchHeads(["op"])
        raise InvalidValue("x", "a bug")

    for transaction in (False, True):
        with pytest.raises(InvalidValue):
            await store.run(script, writes=False, transaction=transaction)
    assert store.statistics().pool.idle == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forked_child_is_not_given_its_parents_connection(postgres_url: str) -> None:
    assert run_program(
        """
        import os, signal
        from timeline_trio import WrongProcess

        async def main(url):
            async with open_postgres(url) as store:
                await store.merge("op", update)
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    try:
                        await store.read("op")
                    except WrongProcess:
                        await store.aclose()
                        print("refused", store.statistics().pool.open, flush=True)
                    del store
                    os._exit(0)
                os.waitpid(child, 0)
                print((await store.merge("op", update)).changed, store.statistics().pool.discarded)
        """,
        postgres_url,
    ) == ["refused 1", "False 0"]


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("pass", []),
        ("raise SystemExit", []),
        ("os._exit(0)", []),
        ("trio.lowlevel.spawn_system_task(store.read, 'op'); await trio.sleep(0.001)", []),
        ("leak = open_postgres(url); await leak.__aenter__(); print('left')", ["left"]),
    ],
)
def test_program_ends_quietly_whatever_it_leaves(postgres_url: str, ending: str, said: list[str]) -> None:
    # C05
    program = f"""
        import os, signal
        signal.alarm(20)
        async def main(url):
            async with open_postgres(url) as store:
                await store.merge("op", update)
                with trio.move_on_after(0.001):
                    await store.merge("op", update)
                {ending}
        """
    if "leak" in ending:
        program = program.replace("with open_postgres", "with open_postgres").replace("leak = ", "global leak; leak = ")
    assert run_program(program, postgres_url) == said


def run_program(body: str, url: str) -> list[str]:
    """
    Run a program in a process of its own, which must say nothing on its error output, and return its lines.
    """
    preamble = """
        import sys, trio, warnings
        from timeline_trio.model import Stage, Update
        from timeline_trio_postgres import open_postgres

        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        update = Update(stages=(Stage(id="s", name="work", started_at=0),))
    """
    program = f"{textwrap.dedent(preamble)}\n{textwrap.dedent(body)}\ntrio.run(main, sys.argv[1])\n"
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-X", "dev", "-c", program, url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
