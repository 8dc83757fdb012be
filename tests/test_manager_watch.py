"""
Tests of watching, and of waiting for a finish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel

from timeline_trio import (
    InvalidValue,
    ManagerClosed,
    NotFound,
    Snapshot,
    Status,
    open_manager,
)
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore

from .recording import filled, quiet, virtual_wall

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_a_watcher_sees_what_is_known_and_then_the_newest_view_after_each_change(
    autojump_clock: MockClock,
) -> None:
    async with open_manager(config=quiet()) as manager:
        manager.begin("op", "one", stage_id="1")
        async with manager.watch("op") as snapshots:
            assert len((await anext(snapshots)).stages) == 1
            with trio.move_on_after(10) as scope:
                await anext(snapshots)
            assert scope.cancelled_caught
            for index in range(5):
                manager.begin("op", "more", stage_id=f"more{index}")
            assert len((await anext(snapshots)).stages) == 6
            manager.finish("op")
            assert (await anext(snapshots)).finished_at is not None


@pytest.mark.parametrize(("until", "count"), [("finished", 1), ("settled", 3)])
async def test_watching_ends_where_it_is_told_to(until: str, count: int, autojump_clock: MockClock) -> None:
    seen: list[Snapshot] = []

    async def watch() -> None:
        async with manager.watch("op", until=until) as snapshots:  # type: ignore[arg-type]
            seen.extend([snapshot async for snapshot in snapshots])

    async with open_manager(config=quiet()) as manager, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        handle = manager.begin("op", "copy")
        manager.finish("op")
        await trio.testing.wait_all_tasks_blocked()
        handle.set_attributes({"a": 1})
        await trio.testing.wait_all_tasks_blocked()
        handle.end()
    assert len(seen) == count
    assert seen[-1].finished_at is not None
    assert (not seen[-1].running_stages()) is (until == "settled")


async def test_watching_ends_with_the_manager(autojump_clock: MockClock) -> None:
    seen: list[Snapshot] = []

    async def watch(opid: str) -> None:
        async with manager.watch(opid) as snapshots:
            seen.extend([snapshot async for snapshot in snapshots])

    async with trio.open_nursery() as nursery, open_manager(config=quiet()) as manager:
        nursery.start_soon(watch, "op")
        nursery.start_soon(watch, "never known")
        await trio.testing.wait_all_tasks_blocked()
        manager.begin("op", "copy")
    assert {snapshot.opid for snapshot in seen} == {"op"}
    async with manager.watch("op") as snapshots:
        assert len([snapshot async for snapshot in snapshots]) == 1
    with pytest.raises(InvalidValue) as caught:
        async with manager.watch("op", until="ever"):  # type: ignore[arg-type]
            pass
    assert caught.value.field == "until"


async def test_a_watched_operation_is_loaded_every_interval(autojump_clock: MockClock) -> None:
    store = MemoryStore(clock=virtual_wall)
    config = quiet(load_interval=1.0, flush_interval=0.5, clock=virtual_wall)
    async with open_manager(store, config=config) as first, open_manager(store, config=config) as second:  # noqa: SIM117 - the inner one must end first
        async with second.watch("op") as snapshots:
            handle = first.begin("op", "copy")
            assert (await anext(snapshots)).stages[0].status is Status.RUNNING
            handle.end()
            assert (await anext(snapshots)).stages[0].status is Status.SUCCEEDED
    assert trio.current_time() < 10


async def test_a_finish_is_waited_for_even_of_an_unknown_operation(autojump_clock: MockClock) -> None:
    store = MemoryStore(clock=virtual_wall)
    config = quiet(load_interval=1.0, flush_interval=0.5, clock=virtual_wall)
    async with (
        open_manager(store, config=config) as first,
        open_manager(store, config=config) as second,
        trio.open_nursery() as nursery,
    ):

        async def wait() -> None:
            snapshot = await second.wait_finished("op")
            assert (snapshot.status, snapshot.error) == (Status.FAILED, "bad")
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        await trio.sleep(5)
        first.start("op", "job")
        await trio.sleep(5)
        first.finish("op", "bad")
        await trio.sleep(50)
        raise AssertionError("never seen")


async def test_a_wait_for_a_finish_ends_with_the_manager(autojump_clock: MockClock) -> None:
    closed: list[str] = []

    async def wait(opid: str) -> None:
        try:
            await manager.wait_finished(opid)
        except ManagerClosed:
            closed.append(opid)

    async with trio.open_nursery() as nursery, open_manager(config=quiet()) as manager:
        manager.begin("op", "copy")
        manager.finish("done")
        nursery.start_soon(wait, "op")
        nursery.start_soon(wait, "unknown")
        await trio.testing.wait_all_tasks_blocked()
        assert (await manager.wait_finished("done")).status is Status.SUCCEEDED
    assert sorted(closed) == ["op", "unknown"]
    assert (await manager.wait_finished("done")).status is Status.SUCCEEDED
    with pytest.raises(ManagerClosed):
        await manager.wait_finished("op")


async def test_an_operation_that_is_only_watched_is_read_as_if_it_were_not(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet()) as manager, manager.watch("op"):
        for _ in range(2):
            with pytest.raises(NotFound):
                await manager.read("op")
        await filled(store, "op")
        assert (await manager.read("op")).collection.store_read
    assert store.count("read") == 3
