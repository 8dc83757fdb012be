"""
What goes wrong where several instances share documents and poll for each other's changes.

Each test names the case that it stands for.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from timeline_trio import Actor, Config, Manager, StoreError, open_manager
from timeline_trio.model import Document, Update, encode_document
from timeline_trio.store import (
    MemoryStore,
    Row,
    RowStore,
    Script,
)
from timeline_trio.testing import FaultyStore

from .case_support import NEW_YEAR, Failures, interval, stage_ids, stored, version, virtual_time
from .memory_rows import MemoryRows
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from timeline_trio.store import Store

T = TypeVar("T")


class RacyRows(RowStore):
    """
    Rows in memory where others come in between any two operations of a transaction, as in a database without locks.
    """

    keeps_changes = True

    def __init__(self) -> None:
        super().__init__(clock=virtual_time)
        self.table = MemoryRows()
        self.tries = 0

    async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
        del transaction
        self.tries += writes
        script = begin()
        try:
            operation = next(script)
            while True:
                await trio.sleep(0.001)
                operation = script.send(self.table.do(operation))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def put(self, opid: str, at: float) -> None:
        """
        Let a row of that update time become visible, whenever it was written.
        """
        stamp = (NEW_YEAR + round(at * 1e9)) // 1000
        payload = encode_document(Document(opid=opid, stages={("a", ""): interval("a")}))
        self.table.rows[opid] = Row(id=opid, payload=payload, version=1, created_at=stamp, updated_at=stamp)


@pytest.mark.parametrize("make_store", [MemoryStore, RacyRows])
async def test_stages_recorded_by_many_at_one_moment_are_all_there(
    make_store: Callable[[], Store], autojump_clock: MockClock
) -> None:
    # D01
    store = make_store()
    config = Config(on_error=Failures())
    async with trio.open_nursery() as nursery:
        managers = [await nursery.start(_manage, store, config) for _ in range(16)]
        for number in range(20):
            opid = f"op {number}"
            async with trio.open_nursery() as flushing:
                for instance, manager in enumerate(managers):
                    manager.record(opid, interval("a", actor=Actor(str(instance))))
                    flushing.start_soon(manager.flush, opid)
            assert len((await stored(store, opid)).stages) == 16
            assert await version(store, opid) == 16
        for manager in managers:
            assert_counters_add_up(manager)
        assert sum(manager.statistics().changing_merges for manager in managers) == 16 * 20
        nursery.cancel_scope.cancel()
    assert not _failures(config)


def _failures(config: Config) -> list[tuple[str, Exception]]:
    assert isinstance(config.on_error, Failures)
    return config.on_error.all


async def _manage(  # noqa: ASYNC114 - it is only started from here
    store: Store, config: Config, task_status: trio.TaskStatus[Manager]
) -> None:
    async with open_manager(store, config=config) as manager:
        task_status.started(manager)
        await trio.sleep_forever()


async def test_two_who_alternate_never_conflict(autojump_clock: MockClock) -> None:
    # D02
    store = RacyRows()
    failures = Failures()
    config = Config(on_error=failures, clock=virtual_time)
    async with open_manager(store, config=config) as first, open_manager(store, config=config) as second:
        first.start("op", "deploy")
        second.finish("op", "no")
        async with trio.open_nursery() as nursery:
            for manager, name in ((first, "first"), (second, "second")):
                nursery.start_soon(_begin_and_end, manager, name, 500)
        async with open_manager(store, config=config) as reader:
            snapshot = await reader.read("op")
            assert len(snapshot.stages) == 1_000
            assert not snapshot.running_stages()
            assert (snapshot.name, snapshot.error) == ("deploy", "no")
        for manager in (first, second):
            assert_counters_add_up(manager)
    assert not failures.all


async def _begin_and_end(manager: Manager, name: str, rounds: int) -> None:
    for number in range(rounds):
        with manager.stage("op", name, stage_id=f"{name} {number}"):
            await trio.sleep(0.02)
        if number % 10 == 9:
            await manager.flush("op")


async def test_nobody_starves_on_a_hot_row(autojump_clock: MockClock) -> None:
    # D04
    store = RacyRows()
    failures = Failures()
    config = Config(on_error=failures, load_interval=1000, flush_interval=1000, clock=virtual_time)
    seconds: list[float] = []
    async with trio.open_nursery() as nursery:
        managers = [await nursery.start(_manage, store, config) for _ in range(50)]

        async def add_stages(manager: Manager, instance: int) -> None:
            began = trio.current_time()
            for number in range(20):
                manager.record("op", interval(str(number), actor=Actor(str(instance))))
                flushed = number % 5 != 4
                while not flushed:
                    try:
                        await manager.flush("op")
                        flushed = True
                    except StoreError:
                        pass
            seconds.append(trio.current_time() - began)

        async with trio.open_nursery() as adding:
            for instance, manager in enumerate(managers):
                adding.start_soon(add_stages, manager, instance)
        merges = sum(manager.statistics().changing_merges for manager in managers)
        nursery.cancel_scope.cancel()
    assert len((await stored(store)).stages) == 50 * 20
    assert await version(store) == merges
    assert store.tries < 10 * merges
    assert max(seconds) < 5 * median(seconds)
    assert not failures.all


async def test_a_row_that_becomes_visible_late_is_found_within_the_overlap(autojump_clock: MockClock) -> None:
    # D07
    store = RacyRows()
    config = Config(load_interval=2, clock=virtual_time)
    async with open_manager(store, config=config) as manager:
        await trio.sleep(100.9)
        store.put("b", 100.9)
        await trio.sleep(0.9)
        store.put("late", 100)
        await trio.sleep(2.2)
        assert manager.statistics().cached_timelines == 2

        store.put("too late", 50)
        await trio.sleep(10)
        assert manager.statistics().cached_timelines == 2, "that is what the overlap is for"
        assert (await manager.read("too late")).collection.store_read
        assert manager.statistics().cached_timelines == 3


async def test_rows_with_the_time_of_the_newest_one_are_not_missed(autojump_clock: MockClock) -> None:
    # D08
    store = RacyRows()
    counting = FaultyStore(store)
    async with open_manager(counting, config=Config(clock=virtual_time)) as manager:
        await trio.sleep(10)
        store.put("first", 10)
        await trio.sleep(1.15)
        assert manager.statistics().cached_timelines == 1
        for opid in ("second", "third", "fourth"):
            store.put(opid, 10.8)
        await trio.sleep(0.5)
        store.put("fifth", 10.8)
        await trio.sleep(1.15)
        assert manager.statistics().cached_timelines == 5
        assert manager.statistics().pending_updates == 0
    assert not counting.count("merge")
    assert not counting.count("merge_many")
    assert all(row.version == 1 for row in store.table.rows.values())


async def test_a_read_that_began_earlier_does_not_undo_a_save(autojump_clock: MockClock) -> None:
    # D12
    inner = MemoryStore(clock=virtual_time)
    store = FaultyStore(inner)
    config = Config(load_interval=1000, export_timeout=1000, clock=virtual_time)
    async with open_manager(store, config=config) as manager:
        for number in range(5):
            await inner.merge("op", Update(stages=(interval("a", code=str(number)),)))
        parked = store.hang("read", after=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.read, "op")
            await parked.wait_reached()
            manager.record("op", interval("a", code="newest"))
            await manager.flush("op")
            assert await version(inner) == 6
            parked.release()
        snapshot = await manager.read("op")
        assert [stage.code for stage in snapshot.stages] == ["newest"]
        assert snapshot.collection.local_flushed
        await trio.sleep(10)
        assert_counters_add_up(manager)
    assert await version(inner) == 6
    assert store.count("merge") == 1


async def test_a_save_that_is_answered_late_does_not_hide_what_others_did_since(autojump_clock: MockClock) -> None:
    # D12, the other way round, and with a store that does not answer with the document
    inner = MemoryStore(clock=virtual_time)
    store = FaultyStore(inner)
    store.strip_documents = True
    config = Config(load_interval=1000, export_timeout=1000, clock=virtual_time)
    async with open_manager(store, config=config) as manager:
        await inner.merge("op", Update(stages=(interval("b"),)))
        parked = store.hang("merge", after=True)
        manager.record("op", interval("a", code="ours"))
        manager.flush_soon("op")
        await parked.wait_reached()
        await inner.merge("op", Update(stages=(interval("a", code="theirs"),)))
        await manager.read("op", fresh=True)
        parked.release()
        await manager.flush("op")
        snapshot = await manager.read("op")
        assert [stage.code for stage in snapshot.stages] == ["theirs", ""]
        assert snapshot.collection.local_flushed
        assert_counters_add_up(manager)


@pytest.mark.parametrize("evicted", [False, True])
async def test_what_is_recorded_during_a_save_is_saved_next(
    evicted: bool,  # noqa: FBT001 - a parameter
    autojump_clock: MockClock,
) -> None:
    # D14
    store = FaultyStore(MemoryStore())
    parked = store.hang("merge")
    async with open_manager(store, config=Config(export_timeout=1000, load_interval=1000)) as manager:
        handle = manager.begin("op", "work", stage_id="a")
        manager.flush_soon("op")
        await parked.wait_reached()
        handle.end(code="changed")
        manager.record("op", interval("b"))
        if evicted:
            manager.evict("op")
            assert manager.statistics().cached_timelines == 0
        assert manager.statistics().pending_updates == 3
        parked.release()
        await wait_all_tasks_blocked()
        assert manager.statistics().saved_updates >= 1
        await trio.sleep(1.2)
        counters = manager.statistics()
        assert (counters.saved_updates, counters.pending_updates, counters.dropped_updates) == (3, 0, 0)
        assert_counters_add_up(manager)
        assert manager.statistics().cached_timelines == (not evicted)
    document = await stored(store)
    assert stage_ids(document.stages.values()) == ["a", "b"]
    assert document.stages["a", ""].code == "changed"
    assert await version(store) == 2
