"""
Tests of change notification through an SQLite file: a bell that rings when it is written, and what is asked then.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from timeline_trio import Config, open_manager
from timeline_trio.model import Stage
from timeline_trio.store import Change, FetchHeads, MergeRequest, Revision, WatchesChanges
from timeline_trio.testing import ManualClock, check_store
from timeline_trio_sqlite import SQLiteStore, open_sqlite
from timeline_trio_sqlite._bell import PollingBell
from timeline_trio_sqlite._watcher import MOST_HEADS

from .sqlite_watch_support import (
    ECHOES,
    SECOND,
    each_bell,
    hear,
    hear_nothing,
    needs_inotify,
    open_with_bell,
    other_process,
    update,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from timeline_trio.store import Script

    from .sqlite_watch_support import OpenBell


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_store_that_looks_at_its_files_keeps_the_contract(tmp_path: Path, journal: str) -> None:
    clock = ManualClock()
    numbers = count()

    def open_one() -> AbstractAsyncContextManager[SQLiteStore]:
        bell = partial(PollingBell, interval=0.002)
        return open_with_bell(tmp_path / f"{next(numbers)}.db", bell, journal=journal, clock=clock)

    await check_store(open_one, clock=clock)


async def test_store_has_the_capability(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db") as store:
        assert isinstance(store, WatchesChanges)


@each_bell
@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_commits_of_another_process_are_heard(tmp_path: Path, journal: str, bell: OpenBell) -> None:
    path = tmp_path / "ops.db"
    with other_process(path, journal) as other:
        async with open_with_bell(path, bell, journal=journal) as store, store.watch() as changes:
            for number in range(20):
                other.merge("op", number)
                change = await hear(changes)
                assert (change.opid, change.revision.version) == ("op", number + 1)
            other.merge("another")
            assert (await hear(changes)).opid == "another"


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_what_is_committed_once_the_block_is_entered_is_heard(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "ops.db"
    with other_process(path, journal) as other:
        async with open_sqlite(path, journal=cast("Any", journal)) as store:
            for number in range(20):
                async with store.watch() as changes:
                    other.merge("op", number)
                    assert (await hear(changes)).revision.version == number + 1


@each_bell
async def test_what_was_committed_before_the_block_is_not_heard(tmp_path: Path, bell: OpenBell) -> None:
    async with open_with_bell(tmp_path / "ops.db", bell) as store:
        for number in range(10):
            await store.merge(f"before-{number}", update())
        async with store.watch() as changes:
            await store.merge("after", update())
            assert (await hear(changes)).opid == "after"
            await hear_nothing(changes, 0.3)


@needs_inotify
@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_idle_watchers_ask_nothing(tmp_path: Path, journal: Any) -> None:
    async def hear_nothing_at_all() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear_nothing, changes)
            nursery.start_soon(hear_nothing, others)

    async with (
        open_sqlite(tmp_path / "ops.db", journal=journal) as store,
        store.watch() as changes,
        store.watch() as others,
    ):
        await store.merge("op", update())
        await hear(changes)
        await hear(others)
        await hear_nothing_at_all()
        asked = store.statistics().asks
        await hear_nothing_at_all()
        assert store.statistics().asks == asked
        assert store.statistics().watchers == 2


@needs_inotify
async def test_other_files_of_the_folder_do_not_ring(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db") as store, store.watch() as changes:
        await hear_nothing(changes)
        asked = store.statistics().asks
        with (tmp_path / "app.log").open("w", buffering=1) as log:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hear_nothing, changes, 0.2)
                for number in range(200):
                    log.write(f"line {number}\n")
                    (tmp_path / f"{number}.tmp").touch()
                    await trio.lowlevel.checkpoint()
        assert store.statistics().asks == asked
        await store.merge("op", update())
        assert (await hear(changes)).opid == "op"


@needs_inotify
async def test_queue_that_has_overflown_rings_and_goes_on(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db") as store, store.watch() as changes:
        await hear_nothing(changes)
        for _ in range(8_200):  # twice that is more than the kernel's queue holds by default
            (tmp_path / "noise").touch()
            (tmp_path / "noise").unlink()
        for number in range(3):
            merged = await store.merge("op", update(number))
            assert await hear(changes) == Change("op", cast("Revision", merged.revision))


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_burst_of_commits_is_heard_with_few_questions(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "ops.db"
    with other_process(path, journal) as other:
        async with open_sqlite(path, journal=cast("Any", journal)) as store, store.watch() as changes:
            begun = trio.current_time()
            other.begin_merges("op", 0, 300)
            version = 0
            while version < 300:
                change = await hear(changes)
                assert change.revision.version > version
                version = change.revision.version
            assert store.statistics().asks <= (trio.current_time() - begun) / 0.005 + 20


async def test_slow_reader_is_told_of_each_operation_once(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db") as store, store.watch() as changes:
        for number in range(50):
            await store.merge("op", update(number))
            await store.merge(f"op-{number % 2}", update(number))
        heard = {(await hear(changes)).opid for _ in range(3)}
        assert heard == {"op", "op-0", "op-1"}
        await hear_nothing(changes, 0.3)


async def test_more_changes_than_one_answer_holds_are_dropped_and_later_ones_heard(tmp_path: Path) -> None:
    requests = [MergeRequest(f"op-{number}", update()) for number in range(MOST_HEADS + 100)]
    async with open_sqlite(tmp_path / "ops.db") as store, store.watch() as changes:
        await store.merge_many(requests)
        heard = {(await hear(changes)).opid for _ in range(MOST_HEADS)}
        assert len(heard) == MOST_HEADS
        await store.merge("late", update())
        while (await hear(changes)).opid != "late":
            pass


async def test_checkpoint_and_restart_of_the_wal_do_not_end_the_watch(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    with other_process(path) as other:
        async with open_sqlite(path) as store, store.watch() as changes:
            for number, mode in enumerate(("PASSIVE", "FULL", "RESTART", "TRUNCATE")):
                with closing(sqlite3.connect(path)) as connection:
                    connection.execute(f"PRAGMA wal_checkpoint({mode})")
                other.merge("op", number)
                assert (await hear(changes)).revision.version == number + 1


async def leave_connection_behind(store: SQLiteStore) -> None:
    """
    Let the store close its only connection for reading.
    """
    entered, left = threading.Event(), threading.Event()

    def stuck() -> Script[None]:
        entered.set()
        left.wait(30)
        yield FetchHeads(["op"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: store.run(stuck, writes=False, transaction=False))
        assert await trio.to_thread.run_sync(entered.wait, 30)
        nursery.cancel_scope.cancel()
    left.set()
    await wait_until(lambda: not store.statistics().running_threads)


@each_bell
async def test_wal_that_goes_and_comes_again_is_heard_of(tmp_path: Path, bell: OpenBell) -> None:
    path, wal = tmp_path / "ops.db", tmp_path / "ops.db-wal"
    async with open_with_bell(path, bell) as store:
        await leave_connection_behind(store)
        store._writer._idle.pop().close()  # noqa: SLF001 - as if its last caller had been cancelled
        assert not wal.exists()
        async with store.watch() as changes:
            for number in (0, 2):
                await leave_connection_behind(store)
                assert not wal.exists()
                with other_process(path) as other:
                    other.merge("op", number)
                    assert wal.exists()
                    assert (await hear(changes)).revision.version == number + 1
                    await hear_nothing(changes)  # so that only the new WAL can ring
                    other.merge("op", number + 1)
                    assert (await hear(changes)).revision.version == number + 2


@each_bell
async def test_file_is_watched_through_a_link(tmp_path: Path, bell: OpenBell) -> None:
    (tmp_path / "data").mkdir()
    path, link = tmp_path / "data" / "ops.db", tmp_path / "link.db"
    link.symlink_to(path)
    with other_process(path) as other:
        async with open_with_bell(link, bell) as store, store.watch() as changes:
            other.merge("op")
            assert (await hear(changes)).opid == "op"


async def cancel_busy_step(store: SQLiteStore, changes: AsyncIterator[Change]) -> None:
    retries = store.statistics().busy_retries
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear, changes)
        await wait_until(lambda: store.statistics().busy_retries > retries)
        nursery.cancel_scope.cancel()


async def test_step_that_is_cancelled_while_it_asks_loses_nothing(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db", journal="delete") as store, store.watch() as changes:
        merged = await store.merge("op", update())
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for _ in range(3):
                await cancel_busy_step(store, changes)
            other.execute("ROLLBACK")
        assert merged.revision is not None
        assert await hear(changes) == Change("op", merged.revision)


class HandBell:
    """
    Rings when the test does.
    """

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()

    def silence(self) -> bool:
        rang, self._rung = self._rung.is_set(), trio.Event()
        return rang

    def close(self) -> None:
        pass


async def test_commit_that_takes_effect_after_its_bell_is_heard(tmp_path: Path) -> None:
    """
    The WAL is written before the commit takes effect, by as long as the disk takes; nothing rings after that.
    """
    hand = HandBell()
    async with open_with_bell(tmp_path / "ops.db", lambda _path: hand) as store, store.watch() as changes:
        await hear_nothing(changes)
        asked = store.statistics().asks
        assert asked == 2 + ECHOES
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear, changes)
            hand.ring()
            await wait_until(lambda: store.statistics().asks > asked)
            await store.merge("op", update())


async def test_clock_that_is_set_back_does_not_make_deaf(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_sqlite(tmp_path / "ops.db", clock=clock) as store, store.watch() as changes:
        for number, hours in enumerate((0, 5, -7, 1, -1)):
            clock.advance(hours * 3600)
            await store.merge(f"op-{number}", update())
            while (await hear(changes)).opid != f"op-{number}":
                pass


async def test_writer_whose_clock_is_ahead_does_not_make_deaf_for_the_others(tmp_path: Path) -> None:
    clock, ahead = ManualClock(), ManualClock()
    ahead.advance(86_400)
    path = tmp_path / "ops.db"
    requests = [MergeRequest(f"ahead-{number}", update()) for number in range(MOST_HEADS + 1)]
    async with (
        open_sqlite(path, clock=clock) as store,
        open_sqlite(path, clock=ahead) as other,
        store.watch() as changes,
    ):
        await other.merge_many(requests)
        await store.merge("op", update())
        assert (await hear(changes)).opid == "op"


async def test_row_that_was_deleted_and_written_anew_is_told_of(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_sqlite(tmp_path / "ops.db", clock=clock) as store, store.watch() as changes:
        first = await store.merge("op", update())
        assert await hear(changes) == Change("op", cast("Revision", first.revision))
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute("DELETE FROM timelines")
        clock.advance(0.001)
        second = await store.merge("op", update())
        assert first.revision != second.revision
        assert await hear(changes) == Change("op", cast("Revision", second.revision))


async def test_managers_of_one_file_see_each_others_stages_long_before_their_next_load(tmp_path: Path) -> None:
    config = Config(load_interval=3600, flush_interval=3600)
    path = tmp_path / "ops.db"
    async with (
        open_sqlite(path) as store,
        open_sqlite(path) as other_store,
        open_manager(store, config=config) as manager,
        open_manager(other_store, config=config) as other,
    ):
        await wait_until(lambda: manager.statistics().listening and other.statistics().listening)
        for opid, recorder, reader in (("one", manager, other), ("two", other, manager)):
            recorder.record(opid, Stage.completed("work", 0, SECOND, id="first"))
            await recorder.flush(opid)
            await reader.read(opid)
            async with reader.watch(opid) as snapshots:
                await anext(snapshots)
                recorder.record(opid, Stage.completed("work", 0, SECOND, id="second"))
                await recorder.flush(opid)
                with trio.fail_after(10):
                    while len((await anext(snapshots)).stages) < 2:
                        pass
