"""
Tests of the task that listens: what others commit is loaded at once, and polling covers for whatever it misses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from trio.testing import wait_all_tasks_blocked

from timeline_trio import StoreUnavailable, open_manager
from timeline_trio.model import Update
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore

from .recording import Errors, completed, eventually, quiet, virtual_wall

if TYPE_CHECKING:
    from trio.testing import MockClock

    from timeline_trio.store import Store

PATIENCE = 100.0  # seconds between polls, where only a change that is told of can come sooner


async def save(store: Store, opid: str, stage_id: str = "s") -> None:
    """
    Let another process save a stage.
    """
    await store.merge(opid, Update(stages=(completed(id=stage_id),)))


async def test_a_change_of_another_process_is_seen_at_once(autojump_clock: MockClock) -> None:
    store = MemoryStore(clock=virtual_wall)
    config = quiet(flush_interval=PATIENCE, load_interval=PATIENCE)
    async with open_manager(store, config=config) as first, open_manager(store, config=config) as second:
        async with second.watch("op") as snapshots:
            await eventually(lambda: second.statistics().listening)
            began = trio.current_time()
            first.begin("op", "copy")
            await first.flush("op")
            snapshot = await anext(snapshots)
            assert [stage.name for stage in snapshot.running_stages()] == ["copy"]
            assert trio.current_time() - began < 0.1
        assert second.statistics().listening
        assert second.statistics().changes_heard == 1


async def test_what_was_saved_here_is_not_loaded_again(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(load_interval=PATIENCE)) as manager:
        for index in range(5):
            manager.record("op", completed(id=str(index)))
            await manager.flush("op")
            await trio.sleep(1)
        assert manager.statistics().changes_heard == 5
        assert store.count("mget") == 0


async def test_changes_of_operations_that_are_not_cached_load_nothing(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(load_interval=PATIENCE)) as manager:
        await eventually(lambda: manager.statistics().listening)
        await save(store, "unknown")
        await trio.sleep(1)
        assert manager.statistics().changes_heard == 1
        assert store.count("mget") == 0
        assert manager.statistics().cached_timelines == 0


async def test_an_operation_that_changes_all_the_time_is_loaded_at_a_bounded_rate_and_to_its_last_state(
    autojump_clock: MockClock,
) -> None:
    inner = MemoryStore(clock=virtual_wall)
    store = FaultyStore(inner)
    async with open_manager(store, config=quiet(load_interval=PATIENCE)) as manager:
        await save(inner, "op")
        await manager.read("op")
        for index in range(1_000):
            await save(inner, "op", str(index))
            await trio.sleep(0.005)
        await trio.sleep(1)
        assert 40 <= store.count("mget") <= 60, "5 s of changes, ten loads a second"
        assert len((await manager.read("op")).stages) == 1_001


async def test_a_lost_connection_is_made_anew_and_polling_covers_for_the_gap(autojump_clock: MockClock) -> None:
    errors = Errors()
    inner = MemoryStore(clock=virtual_wall)
    store = FaultyStore(inner)
    async with open_manager(store, config=quiet(load_interval=1.0, on_error=errors)) as manager:
        await save(inner, "op")
        await manager.read("op")
        store.cut_watches()
        await wait_all_tasks_blocked()
        assert not manager.statistics().listening
        await save(inner, "op", "unheard")
        await eventually(lambda: manager.statistics().listening)
        await trio.sleep(1.5)
        assert len((await manager.read("op")).stages) == 2
        assert manager.statistics().changes_heard == 0
        await save(inner, "op", "heard")
        await trio.sleep(0.1)
        assert len((await manager.read("op")).stages) == 3
        assert errors.told == [], "one loss is nobody's concern"


async def test_a_store_that_answers_and_never_tells_is_reported_once(autojump_clock: MockClock) -> None:
    errors = Errors()
    store = FaultyStore(MemoryStore())
    refusal = StoreUnavailable("", "not allowed to listen")
    store.fail("watch", refusal, nth=None)
    async with open_manager(store, config=quiet(flush_interval=1.0, load_interval=1.0, on_error=errors)) as manager:
        manager.begin("op", "copy")
        await trio.sleep(300)
        assert errors.told == [("", refusal)]
        assert 10 < store.count("watch") < 25, "with growing delays"
        assert manager.statistics().saved_updates == 1


async def test_a_store_that_does_not_begin_to_tell_is_given_up_and_tried_again(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    hang = store.hang("watch")
    async with open_manager(store, config=quiet(load_interval=1.0, export_timeout=2.0)) as manager:
        await hang.wait_reached()
        await trio.sleep(1.9)
        assert store.count("watch") == 1
        await eventually(lambda: manager.statistics().listening)
        assert store.count("watch") == 2


async def test_whoever_listens_hears_on_for_longer_than_the_timeout_of_one_call(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(export_timeout=1.0)) as manager:
        await trio.sleep(100)
        assert manager.statistics().listening
        assert store.count("watch") == 1
