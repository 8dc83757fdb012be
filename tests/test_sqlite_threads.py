"""
Tests of SQLite transactions whose caller is cancelled: a thread cannot be, so it is left behind.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import Config, DrainError, open_manager
from timeline_trio.model import Stage, Update
from timeline_trio.store import FetchHeads, Found, InsertRow, Row, StoreUnavailable, WriteRows
from timeline_trio.testing import FaultyStore
from timeline_trio_sqlite import SQLiteStore, open_sqlite
from timeline_trio_sqlite._call import Abandoned, Call, Phase
from timeline_trio_sqlite._pool import Pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from timeline_trio import Manager
    from timeline_trio.store import Script


class Gate:
    """
    A wall clock that can be made to hold up the thread that asks it: a merge, while it has the write lock.
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


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def store(tmp_path: Path, gate: Gate) -> AsyncIterator[SQLiteStore]:
    async with open_sqlite(tmp_path / "ops.db", clock=gate) as opened:
        yield opened
        gate.opened.set()


def update(name: str) -> Update:
    return Update(stages=(Stage(id="s", name=name, started_at=0),))


async def name_of(store: SQLiteStore) -> str:
    answer = await store.read("op")
    assert isinstance(answer, Found)
    return answer.document.stages["s", ""].name


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def wait_until(condition: Callable[[], object]) -> None:
    """
    Wait for something that a thread does: one that was left behind tells nobody that it is done.
    """
    while not condition():  # noqa: ASYNC110 - the thread can set no event
        await trio.lowlevel.checkpoint()


async def wait_idle(store: SQLiteStore) -> None:
    await wait_until(lambda: not store.statistics().running_threads)


async def leave_merge_behind(store: SQLiteStore, gate: Gate, name: str) -> None:
    gate.closed = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.merge, "op", update(name))
        await gate.wait_reached()
        nursery.cancel_scope.cancel()


async def test_late_thread_does_not_overwrite_newer_state(store: SQLiteStore, gate: Gate) -> None:
    await store.merge("op", update("first"))
    await leave_merge_behind(store, gate, "older")
    assert store.statistics().running_threads == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.merge, "op", update("newer"))
        await wait_until(lambda: store.statistics().busy_retries)
        assert await name_of(store) == "first"
        gate.opened.set()
    await wait_idle(store)
    assert await name_of(store) == "newer"
    answer = await store.read("op")
    assert answer.revision.version == 2


async def test_late_thread_commits_nothing_at_all(store: SQLiteStore, gate: Gate) -> None:
    await store.merge("op", update("first"))
    await leave_merge_behind(store, gate, "older")
    gate.opened.set()
    await wait_idle(store)
    assert await name_of(store) == "first"


async def test_connection_of_a_late_thread_is_not_used_by_anybody_else(store: SQLiteStore, gate: Gate) -> None:
    await store.merge("op", update("first"))
    before = store.statistics()
    await leave_merge_behind(store, gate, "older")
    assert store.statistics().idle_connections == before.idle_connections - 1
    gate.opened.set()
    await wait_idle(store)
    assert store.statistics().idle_connections == before.idle_connections - 1
    await store.merge("op", update("newer"))
    assert store.statistics().idle_connections == before.idle_connections


async def test_reads_go_on_beside_a_stuck_writer(store: SQLiteStore, gate: Gate) -> None:
    await store.merge("op", update("first"))
    await leave_merge_behind(store, gate, "older")
    assert await name_of(store) == "first"
    assert len(await store.latest(0, 9)) == 1


async def test_caller_waiting_for_a_lock_is_cancelled_promptly(store: SQLiteStore) -> None:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.merge, "op", update("a"))
            await wait_until(lambda: store.statistics().busy_retries)
            nursery.cancel_scope.cancel()
        await wait_idle(store)
        other.execute("ROLLBACK")
    assert await store.mget(["op"]) == []
    await store.merge("op", update("b"))
    assert await name_of(store) == "b"


async def test_lock_held_by_another_connection_is_waited_for(store: SQLiteStore) -> None:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.merge, "op", update("a"))
            await wait_until(lambda: store.statistics().busy_retries >= 3)
            other.execute("COMMIT")
    assert await name_of(store) == "a"


async def test_commit_that_readers_hold_up_is_tried_anew(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db", journal="delete") as store:
        await store.merge("op", update("first"))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM timelines").fetchall()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.merge, "op", update("second"))
                await wait_until(lambda: store.statistics().busy_retries)
                reader.execute("COMMIT")
        assert await name_of(store) == "second"
        assert (await store.read("op")).revision.version == 2


async def test_cancelled_commit_comes_before_later_merges_or_not_at_all(tmp_path: Path) -> None:
    """
    The commits are held up by a reader, so that some of the calls are left behind in the middle of them.
    """
    async with open_sqlite(tmp_path / "ops.db", journal="delete") as store:
        await store.merge("op", update("first"))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
            for _ in range(5):
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM timelines").fetchall()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(store.merge, "op", update("older"))
                    await wait_until((tmp_path / "ops.db-journal").exists)
                    nursery.cancel_scope.cancel()
                reader.execute("COMMIT")
                await store.merge("op", update("newer"))
                assert await name_of(store) == "newer"
        await wait_idle(store)
        assert await name_of(store) == "newer"


async def flush_in_the_end(manager: Manager) -> None:
    """
    Flush, however often the store is late: only the result counts here.
    """
    while True:
        try:
            await manager.flush("op")
        except StoreUnavailable:
            continue
        return


async def test_manager_goes_on_beside_a_stuck_thread_and_ends_by_its_deadline(store: SQLiteStore, gate: Gate) -> None:
    # B16
    config = Config(export_timeout=0.2, flush_interval=0.05, on_error=lambda _opid, _error: None)
    # One who watches would ask the clock, too.
    async with open_manager(FaultyStore(store, hide_watch=True), config=config) as manager:
        gate.closed = True
        manager.begin("op", "older", stage_id="s")
        await gate.wait_reached()
        with pytest.raises(StoreUnavailable) as caught:
            await manager.flush("op")
        assert "did not answer within export_timeout=0.2" in str(caught.value.__cause__)
        assert store.statistics().running_threads
        manager.begin("op", "newer", stage_id="s")
        gate.opened.set()
        await flush_in_the_end(manager)
        await wait_idle(store)
        assert await name_of(store) == "newer"

        gate.opened.clear()
        gate.reached.clear()
        gate.closed = True
        manager.begin("op", "newest", stage_id="s")
        await gate.wait_reached()
        with pytest.raises(DrainError, match="1 updates"):
            await manager.shutdown(trio.current_time() + 0.3)
        assert store.statistics().running_threads, "it ended without the thread"
    gate.opened.set()
    await wait_idle(store)
    assert await name_of(store) == "newer"


async def test_long_query_is_interrupted_when_its_caller_leaves(tmp_path: Path, gate: Gate) -> None:
    path = tmp_path / "ops.db"
    endings: list[BaseException] = []

    def reached(row: int) -> int:
        gate.reached.set()
        return row

    def query(connection: sqlite3.Connection) -> None:
        connection.create_function("reached", 1, reached)
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(reached(i)) FROM n"
        try:
            connection.execute(endless)
        except sqlite3.OperationalError as error:
            endings.append(error)
            raise

    pool = Pool(path, lambda: sqlite3.connect(path, check_same_thread=False), begin="BEGIN", size=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, query)
        await gate.wait_reached()
        nursery.cancel_scope.cancel()
    await wait_until(lambda: not pool.running)
    assert [str(error) for error in endings] == ["interrupted"]
    assert pool.idle == 0
    pool.close()


async def test_more_stuck_threads_than_spare_ones_hold_up_new_writers_only(store: SQLiteStore, gate: Gate) -> None:
    await store.merge("op", update("first"))
    entered = threading.Semaphore(0)

    def stuck() -> Script[None]:
        entered.release()
        gate.opened.wait(30)
        yield FetchHeads([])

    for _ in range(8):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: store.run(stuck, writes=False, transaction=False))
            await trio.to_thread.run_sync(entered.acquire)
            nursery.cancel_scope.cancel()
    with trio.move_on_after(0) as scope:
        await store.read("op")
    assert scope.cancelled_caught
    await store.merge("op", update("second"))
    gate.opened.set()
    await wait_idle(store)
    assert await name_of(store) == "second"


async def test_closing_does_not_wait_for_ever_for_a_stuck_thread(
    tmp_path: Path, gate: Gate, autojump_clock: object
) -> None:
    del autojump_clock
    async with open_sqlite(tmp_path / "ops.db", clock=gate) as store:
        gate.closed = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.merge, "op", update("a"))
            await wait_until(gate.reached.is_set)
            nursery.cancel_scope.cancel()
    assert store.statistics().running_threads == 1
    gate.opened.set()
    await wait_idle(store)
    assert file_names(tmp_path) == ["ops.db"]


async def test_call_under_way_while_the_store_closes_gives_its_connection_up(tmp_path: Path, gate: Gate) -> None:
    opening = open_sqlite(tmp_path / "ops.db", clock=gate)
    store = await opening.__aenter__()
    gate.closed = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.merge, "op", update("a"))
        await gate.wait_reached()
        nursery.start_soon(opening.__aexit__, None, None, None)
        await wait_until(lambda: "closed" in repr(store))
        gate.opened.set()
    assert store.statistics().idle_connections == store.statistics().running_threads == 0
    assert file_names(tmp_path) == ["ops.db"]
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.merge("op", update("b"))


async def test_script_that_fails_is_rolled_back_and_its_connection_kept(store: SQLiteStore) -> None:
    def script() -> Script[None]:
        yield WriteRows([InsertRow(Row(id="op", payload="{}", version=1, created_at=1, updated_at=1))])
        raise RuntimeError("a bug")

    before = store.statistics()
    with pytest.raises(RuntimeError, match="a bug"):
        await store.run(script, writes=True, transaction=True)
    assert await store.mget(["op"]) == []
    assert store.statistics().idle_connections == before.idle_connections + 1


def test_call_is_abandoned_before_its_commit_or_not_at_all() -> None:
    call = Call[str](threading.Lock())
    call.enter(Phase.COMMITTING)
    call.abandon()
    call.finish("merged")
    assert call.end()
    call.abandon()
    assert call.phase is Phase.DONE
    assert call.result == "merged"


async def test_merge_that_was_committed_when_its_caller_was_cancelled_is_answered(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db") as store:
        await store.merge("op", update("first"))
        answered = None
        with trio.CancelScope() as scope:

            def cancel_at_commit(statement: str) -> None:
                if statement == "COMMIT":
                    trio.from_thread.run_sync(scope.cancel)

            (connection,) = store._writer._idle  # noqa: SLF001 - only SQLite itself can tell when a commit begins
            connection.set_trace_callback(cancel_at_commit)
            answered = await store.merge("op", update("second"))
        assert scope.cancel_called
        assert answered is not None
        assert answered.revision is not None
        assert answered.revision.version == 2
        connection.set_trace_callback(None)


def test_abandoned_call_may_not_go_on() -> None:
    call = Call[None](threading.Lock())
    with closing(sqlite3.connect(":memory:")) as connection:
        call.use(connection)
        call.abandon()
        with pytest.raises(Abandoned):
            call.use(connection)
        with pytest.raises(Abandoned):
            call.enter(Phase.COMMITTING)
    assert not call.end()
    assert call.phase is Phase.ABANDONED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forked_child_is_not_given_its_parents_connection(tmp_path: Path) -> None:
    script = """
        import os, signal, sys, trio, warnings
        from timeline_trio import WrongProcess
        from timeline_trio.model import Stage, Update
        from timeline_trio_sqlite import open_sqlite

        warnings.simplefilter("ignore")

        async def main(path):
            update = Update(stages=(Stage(id="s", name="work", started_at=0),))
            async with open_sqlite(path) as store:
                await store.merge("op", update)
                await store.read("op")
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)
                    for call in (lambda: store.merge("op", update), lambda: store.read("op"), store.create_schema):
                        try:
                            await call()
                        except WrongProcess as error:
                            assert "this store" in str(error)
                            continue
                        os._exit(1)
                    await store.aclose()
                    os._exit(2 + store.statistics().idle_connections)
                _, status = os.waitpid(pid, 0)
                await store.merge("op", update)
                print("child", os.waitstatus_to_exitcode(status))

        trio.run(main, *sys.argv[1:])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "ops.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own script
    assert (done.stdout, done.stderr) == ("child 4\n", "")
