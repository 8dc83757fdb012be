"""
Tests of what the cache keeps: bounds, the least recently used, evictions, and handles that outlive them.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import BufferFull, NotFound, StageNotFound, Status, StoreUnavailable, open_manager
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore

from .recording import Errors, completed, eventually, quiet, saves, stored, wait_saved
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_the_least_recently_used_operation_leaves_first(autojump_clock: MockClock) -> None:
    # parity 42
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(max_timelines=2)) as manager:
        for opid in ("a", "b"):
            manager.record(opid, completed())
        await manager.flush_all()
        await manager.read("a")
        manager.record("c", completed())
        assert manager.statistics().cached_timelines == 2
        assert not (await manager.read("a")).collection.store_read
        assert store.count("read") == 0
        assert (await manager.read("b")).collection.store_read
        assert store.count("read") == 1


async def test_recording_promotes_and_background_loading_does_not(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(max_timelines=2, load_interval=1.0)) as manager:
        for opid in ("a", "b", "a"):
            manager.record(opid, completed())
        await manager.flush_all()
        async with open_manager(store, config=quiet()) as peer:
            peer.begin("b", "more")
        await eventually(lambda: "more" in str(manager_view(manager, "b")))
        manager.record("c", completed())
        reads = store.count("read")
        assert not (await manager.read("a")).collection.store_read
        assert store.count("read") == reads


def manager_view(manager: object, opid: str) -> object:
    """
    Return what is cached of an operation, without touching it.
    """
    cache = manager._cache  # type: ignore[attr-defined] # noqa: SLF001 - a public read would promote it
    entry = cache.peek(opid)
    return entry and entry.document()


async def test_latest_warms_only_free_room_behind_all_others(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as peer:
        for opid in ("x", "y"):
            peer.record(opid, completed())
    async with open_manager(store, config=quiet(max_timelines=2, load_interval=1.0)) as manager:
        manager.record("a", completed())
        await eventually(lambda: manager.statistics().cached_timelines == 2)
        await trio.sleep(5)
        assert manager.statistics().cached_timelines == 2
        manager.record("b", completed())
        assert manager_view(manager, "a") is not None
        assert manager_view(manager, "b") is not None
        assert manager_view(manager, "x") is manager_view(manager, "y") is None


async def test_the_eviction_for_room_waits_for_no_save(autojump_clock: MockClock) -> None:
    # parity 58
    store = FaultyStore(MemoryStore())
    fault = store.hang("merge")
    async with open_manager(store, config=quiet(max_timelines=1)) as manager:
        manager.begin("a", "copy")
        manager.flush_soon("a")
        await fault.wait_reached()
        manager.begin("b", "copy")
        statistics = manager.statistics()
        assert (statistics.cached_timelines, statistics.pending_timelines) == (1, 2)
        assert len((await manager.read("b")).stages) == 1
        fault.release()
        await manager.flush_all()
    assert len((await stored(store, "a")).stages) == 1


async def test_leaving_operations_count_as_pending_ones(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    fault = store.hang("merge", nth=None)
    async with open_manager(store, config=quiet(max_timelines=1, max_pending_timelines=2)) as manager:
        manager.begin("a", "copy")
        manager.begin("b", "copy")
        with pytest.raises(BufferFull, match="max_pending_timelines=2"):
            manager.begin("c", "copy")
        statistics = manager.statistics()
        assert (statistics.cached_timelines, statistics.pending_timelines, statistics.refused_updates) == (1, 2, 1)
        manager.begin("a", "another")
        fault.release()


async def test_a_leaving_operation_is_taken_back_whole(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    fault = store.hang("merge")
    async with open_manager(store, config=quiet()) as manager:
        manager.begin("a", "first", stage_id="1")
        manager.evict("a")
        await fault.wait_reached()
        assert manager.statistics().cached_timelines == 0
        for _ in range(2):
            handle = manager.begin("a", "second", stage_id="2")
            manager.evict("a")
            assert len((await manager.read("a")).stages) == 2
        handle.end()
        assert manager.statistics().cached_timelines == 1
        fault.release()
        await manager.flush("a")
        assert len((await stored(store, "a")).stages) == 2


async def test_an_operation_that_was_taken_back_gets_more_than_one_attempt(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    fault = store.fail("merge", nth=None)
    async with open_manager(store, config=quiet(flush_interval=1.0)) as manager:
        manager.begin("a", "first")
        manager.evict("a")
        await manager.read("a")
        await trio.sleep(10)
        assert manager.statistics().dropped_updates == 0
        fault.release()
        await wait_saved(manager)
        assert manager.statistics().saved_updates == 1


async def test_an_eviction_saves_promptly_and_handles_go_on(autojump_clock: MockClock) -> None:
    # parity 52, 55
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as manager:
        handle = manager.begin("op", "copy", stage_id="s", attributes={"a": 1})
        manager.evict("op")
        await wait_saved(manager)
        assert manager.statistics().cached_timelines == 0
        assert trio.current_time() < 10
        handle.set_attributes({"b": 2})
        manager.evict("op")
        await wait_saved(manager)
        handle.end(attributes={"c": 3})
        manager.evict("op")
        await wait_saved(manager)
        handle.end("too late")
        handle.set_attributes({"d": 4})
        assert manager.statistics().pending_updates == 0
        (stage,) = (await manager.read("op")).stages
    assert (stage.id, stage.attributes, stage.status) == ("s", {"a": 1, "b": 2, "c": 3}, Status.SUCCEEDED)


async def test_a_key_begun_anew_after_an_eviction_makes_the_older_handle_inert(autojump_clock: MockClock) -> None:
    async with open_manager(MemoryStore(), config=quiet()) as manager:
        older = manager.begin("op", "copy", stage_id="s")
        manager.evict("op")
        await wait_saved(manager)
        newer = manager.begin("op", "copy", stage_id="s")
        older.end("lost")
        assert older.phase.value == "replaced"
        manager.evict("op")
        await wait_saved(manager)
        older.end("lost")
        newer.end()
        assert (await manager.read("op")).stages[0].status is Status.SUCCEEDED


async def test_a_loaded_end_makes_an_evicted_handle_inert(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as manager:
        handle = manager.begin("op", "copy", stage_id="s")
        manager.evict("op")
        await wait_saved(manager)
        async with open_manager(store, config=quiet()) as peer:
            peer.record("op", completed("copy"))
        await manager.read("op")
        handle.end("too late")
        assert handle.phase.value == "ended"
    assert (await stored(store)).stages["s", ""] == completed("copy")


async def test_by_name_an_evicted_stage_of_this_process_is_found_without_the_store(autojump_clock: MockClock) -> None:
    # parity 53
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(max_timelines=1)) as manager:
        handle = manager.begin("op", "copy", attributes={"a": 1})
        manager.begin("other", "x")
        await manager.flush_all()
        assert manager.statistics().cached_timelines == 1
        store.outage = StoreUnavailable("", "down")
        await manager.end("op", "copy")
        assert handle.phase.value == "ended"
        assert manager.statistics().cached_timelines == 1
        store.outage = None
        await manager.flush_all()
    (stage,) = (await stored(store)).stages.values()
    assert (stage.status, stage.attributes) == (Status.SUCCEEDED, {"a": 1})


async def test_a_look_at_an_evicted_operation_does_not_lose_its_handles(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet()) as manager:
        handle = manager.begin("op", "copy")
        manager.evict("op")
        await wait_saved(manager)
        store.outage = StoreUnavailable("", "down")
        async with manager.watch("op"):
            pass
        await manager.end("op", "copy")
        assert handle.phase.value == "ended"
        store.outage = None


async def test_handles_that_nobody_holds_are_forgotten_with_their_operation(autojump_clock: MockClock) -> None:
    async with open_manager(MemoryStore(), config=quiet(max_timelines=1)) as manager:
        kept = manager.begin("kept", "copy")
        for number in range(20):
            manager.begin(f"op{number}", "copy")
            manager.evict(f"op{number}")
        await wait_saved(manager)
        manager.evict("kept")
        gc.collect()
        for number in range(20, 23):
            manager.begin(f"op{number}", "copy")
            manager.evict(f"op{number}")
            await wait_saved(manager)
        remembered = manager._cache._evicted_live  # noqa: SLF001 - about memory
        assert len(remembered) <= 4
        await manager.end("kept", "copy")
        assert kept.phase.value == "ended"


async def test_a_failing_final_save_is_reported_once_and_its_facts_are_dropped(autojump_clock: MockClock) -> None:
    # parity 56
    errors, store = Errors(), FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(on_error=errors)) as manager:
        handle = manager.begin("op", "copy", stage_id="s", attributes={"a": 1})
        store.fail("merge")
        manager.evict("op")
        await errors.wait_for(1)
        statistics = manager.statistics()
        assert (statistics.dropped_updates, statistics.pending_updates, statistics.cached_timelines) == (1, 0, 0)
        assert_counters_add_up(manager)
        handle.end()
        await manager.flush("op")
        assert errors.kinds == [StoreUnavailable]
    assert (await stored(store)).stages["s", ""].attributes == {"a": 1}
    assert (await stored(store)).stages["s", ""].status is Status.SUCCEEDED


async def test_a_final_save_gets_the_attempt_under_way_and_one_for_the_facts_behind_it(
    autojump_clock: MockClock,
) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    hang = store.hang("merge")
    async with open_manager(store, config=quiet(on_error=errors, flush_interval=1.0)) as manager:
        manager.begin("op", "first", stage_id="1")
        await hang.wait_reached()
        manager.begin("op", "second", stage_id="2")
        manager.evict("op")
        store.fail("merge")
        hang.release()
        await errors.wait_for(1)
        assert manager.statistics().saved_updates == 1
        assert manager.statistics().dropped_updates == 1
        assert saves(store, "op") == 2
        assert_counters_add_up(manager)


async def test_no_store_means_that_an_evicted_operation_is_gone(autojump_clock: MockClock) -> None:
    # parity 47
    async with open_manager(config=quiet()) as manager:
        manager.begin("op", "copy")
        manager.finish("op")
        await manager.flush("op")
        collection = (await manager.read("op")).collection
        assert (collection.local_flushed, collection.store_read) == (True, False)
        manager.evict("op")
        manager.evict("never known")
        with pytest.raises(NotFound):
            await manager.read("op")
        with pytest.raises(StageNotFound):
            await manager.end("op", "no such stage")


async def test_calls_that_fail_leave_no_empty_operation_behind(autojump_clock: MockClock) -> None:
    async with open_manager(MemoryStore(), config=quiet(max_pending_timelines=1)) as manager:
        manager.begin("full", "copy")
        with pytest.raises(BufferFull):
            manager.begin("a", "copy")
        with pytest.raises(NotFound):
            await manager.read("b")
        with pytest.raises(NotFound):
            await manager.read("c", fresh=True)
        with pytest.raises(StageNotFound):
            await manager.end("d", "copy")
        async with manager.watch("e"):
            assert manager.statistics().cached_timelines == 2
        manager.evict("f")
        manager.flush_soon("g")
        await manager.flush("h")
        assert manager.statistics().cached_timelines == 1


@pytest.mark.parametrize("bound", [1, 2, 3, 4, 9])
async def test_half_of_a_bound_wakes_the_saver_once(bound: int, autojump_clock: MockClock) -> None:
    half = (bound + 1) // 2
    store = FaultyStore(MemoryStore(), hide_watch=True)
    async with open_manager(store, config=quiet(max_pending_updates=bound)) as manager:
        handles = [manager.begin("op", "copy", stage_id=str(index)) for index in range(half - 1)]
        await trio.sleep(10)
        assert saves(store, "op") == 0
        handles.append(manager.begin("op", "copy", stage_id="last"))
        await trio.sleep(1)
        assert saves(store, "op") == 1
        assert manager.statistics().pending_updates == 0
    store = FaultyStore(MemoryStore(), hide_watch=True)
    async with open_manager(store, config=quiet(max_pending_timelines=bound)) as manager:
        for index in range(half):
            await trio.sleep(10)
            assert len(store.calls) == 0
            manager.begin(str(index), "copy")
        await trio.sleep(1)
        assert saves(store, str(half - 1)) == 1


async def test_a_pending_fact_that_is_replaced_again_and_again_wakes_nobody(autojump_clock: MockClock) -> None:
    hints: list[str] = []
    async with open_manager(config=quiet(max_pending_updates=4)) as manager:
        manager._cache.hint_save = hints.append  # noqa: SLF001 - counts them
        manager.begin("op", "one")
        handle = manager.begin("op", "two")
        for index in range(5):
            handle.set_attributes({"index": index})
        assert hints == ["op"]


async def test_a_watched_operation_stays(autojump_clock: MockClock) -> None:
    async with open_manager(MemoryStore(), config=quiet(max_timelines=1)) as manager:
        async with manager.watch("a") as first, manager.watch("a"):
            manager.begin("a", "copy")
            manager.begin("b", "copy")
            manager.begin("c", "copy")
            manager.evict("a")
            assert len((await anext(first)).stages) == 1
            assert manager.statistics().cached_timelines == 2
        assert manager.statistics().cached_timelines == 1
        await manager.flush_all()
        manager.evict("c")
        async with manager.watch("z"):
            assert manager.statistics().cached_timelines == 1
        assert manager.statistics().cached_timelines == 0
