"""
What goes wrong with nurseries, cancellation and background tasks.

Each test names the case that it stands for.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, NoReturn

import anyio
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from timeline_trio import Config, DrainError, Manager, Status, new, open_manager
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore

from .case_support import NEW_YEAR, Failures, StepCounter, stage_ids, stored, tasks, version
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class FooError(Exception):
    """
    What a body raises.
    """


class Bug(Exception):
    """
    What a background task fails with.
    """


async def test_leaving_a_watch_half_way_leaves_no_task_behind(autojump_clock: MockClock) -> None:
    # B01
    async with open_manager(MemoryStore()) as manager:
        await wait_all_tasks_blocked()
        before = tasks()
        manager.begin("op", "work", stage_id="a")
        async with manager.watch("op") as snapshots:
            async for snapshot in snapshots:
                assert len(snapshot.stages) == 1
                break
        with pytest.raises(FooError):
            await _raise_while_watching(manager)
        with trio.move_on_after(1) as scope:
            async with manager.watch("op") as snapshots:
                async for _ in snapshots:
                    pass
        assert scope.cancelled_caught
        assert tasks() == before

        manager.begin("op", "work", stage_id="b")
        async with manager.watch("op") as snapshots:
            assert len((await anext(snapshots)).stages) == 2
        assert_counters_add_up(manager)


async def _raise_while_watching(manager: Manager) -> NoReturn:
    async with manager.watch("op") as snapshots:
        async for _ in snapshots:
            raise FooError
    raise AssertionError("what is known already is the first snapshot")


async def test_the_tasks_outlive_a_cancelled_body_with_a_cleanup(autojump_clock: MockClock) -> None:
    # B03
    store = FaultyStore(MemoryStore())
    with trio.CancelScope() as outer:
        async with open_manager(store) as manager:
            try:
                outer.cancel()
                await trio.sleep_forever()
            finally:
                manager.begin("op", "cleanup", stage_id="cleanup")
                with trio.fail_after(1) as scope:
                    scope.shield = True
                    await manager.flush("op")
    assert stage_ids((await stored(store)).stages.values()) == ["cleanup"]
    assert outer.cancelled_caught
    assert_counters_add_up(manager)


async def test_a_body_error_survives_a_cancellation_during_the_drain(autojump_clock: MockClock) -> None:
    # B04
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")

    async def cancel_during_the_drain() -> None:
        await hang.wait_reached()
        outer.cancel()
        hang.release()

    with trio.CancelScope() as outer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_during_the_drain)
            with pytest.raises(FooError):  # noqa: PT012 - how the block is left is what is tested
                async with open_manager(store) as manager:
                    manager.begin("op", "work")
                    raise FooError
    assert await version(store) == 1
    assert_counters_add_up(manager)


async def _fail_in_a_manager() -> None:
    with pytest.raises(FooError) as caught:  # noqa: PT012 - how the block is left is what is tested
        async with open_manager(MemoryStore()) as manager:
            manager.begin("op", "work")
            raise FooError
    assert traceback.extract_tb(caught.value.__traceback__)[0].line == "raise FooError"
    assert caught.value.__context__ is None


async def test_what_the_body_raises_leaves_the_block_as_it_was() -> None:
    # B05
    await _fail_in_a_manager()


def test_what_the_body_raises_leaves_the_block_as_it_was_under_anyio() -> None:
    # B05, by anyio on its trio backend
    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(_fail_in_a_manager)
            group.start_soon(_fail_in_a_manager)

    anyio.run(main, backend="trio")


async def test_anyio_cancels_and_times_out_around_a_manager(autojump_clock: MockClock) -> None:
    # B05
    store = MemoryStore()
    with anyio.move_on_after(1) as scope:
        async with open_manager(store) as manager:
            manager.begin("op", "work")
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert await version(store) == 1


class FaultyClock:
    """
    A clock of the caller's that can break: a bug that no Store is to blame for.
    """

    def __init__(self) -> None:
        self.broken = False

    def __call__(self) -> int:
        if self.broken:
            raise Bug
        return NEW_YEAR


async def test_a_bug_in_the_background_ends_the_body_and_comes_out(autojump_clock: MockClock) -> None:
    # B20
    clock = FaultyClock()
    with pytest.raises(Bug):  # noqa: PT012 - how the block is left is what is tested
        async with open_manager(MemoryStore(), config=Config(clock=clock)) as manager:
            manager.begin("op", "work")
            clock.broken = True
            await trio.sleep_forever()
    assert_counters_add_up(manager)


async def test_a_bug_in_the_background_while_it_drains_comes_out(autojump_clock: MockClock) -> None:
    # B20
    clock = FaultyClock()
    failures = Failures()
    with pytest.raises(Bug):  # noqa: PT012 - how the block is left is what is tested
        async with open_manager(MemoryStore(), config=Config(clock=clock, on_error=failures)) as manager:
            manager.begin("op", "work")
            clock.broken = True
    assert_counters_add_up(manager)


async def test_a_bug_and_an_error_of_the_body_both_come_out(autojump_clock: MockClock) -> None:
    # B05, B20
    clock = FaultyClock()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - how the block is left is what is tested
        async with open_manager(MemoryStore(), config=Config(clock=clock)) as manager:
            manager.begin("op", "work")
            clock.broken = True
            try:
                await trio.sleep_forever()
            finally:
                raise FooError
    body, background = caught.value.exceptions
    assert isinstance(body, FooError)
    assert isinstance(background, Bug)


@pytest.fixture
async def manager_of_a_fixture(autojump_clock: MockClock) -> AsyncGenerator[tuple[Manager, MemoryStore]]:
    store = MemoryStore()
    async with open_manager(store) as manager:
        yield manager, store
    assert await version(store) == 1, "saved when the fixture was left"
    assert_counters_add_up(manager)


async def test_a_manager_lives_in_a_fixture(manager_of_a_fixture: tuple[Manager, MemoryStore]) -> None:
    # B06
    manager, _ = manager_of_a_fixture
    manager.begin("op", "work")
    await trio.lowlevel.checkpoint()


async def test_no_hint_is_lost_to_a_period_that_ends_in_the_same_tick(mock_clock: MockClock) -> None:
    # B08
    store = MemoryStore()
    async with open_manager(store, config=Config(load_interval=10**9)) as manager:
        for number in range(1_000):
            await wait_all_tasks_blocked()
            manager.begin("op", "work", stage_id=str(number))
            mock_clock.jump(1.1)  # beyond any jittered interval
            for _ in range(number % 4):  # the saver is woken, cancelled, or has begun its round
                await trio.lowlevel.checkpoint()
            manager.flush_soon("op")
            await wait_all_tasks_blocked()
            mock_clock.jump(0.01)
            await wait_all_tasks_blocked()
            mock_clock.jump(0.01)
            await wait_all_tasks_blocked()
            assert manager.statistics().pending_updates == 0
        mock_clock.autojump_threshold = 0
    assert_counters_add_up(manager)


async def test_no_flush_is_left_waiting_by_a_period_that_ends_in_the_same_tick(mock_clock: MockClock) -> None:
    # B08
    async with open_manager(MemoryStore(), config=Config(load_interval=10**9)) as manager:
        for number in range(1_000):
            await wait_all_tasks_blocked()
            manager.begin("op", "work", stage_id=str(number))
            async with trio.open_nursery() as nursery:
                mock_clock.jump(1.1)
                for _ in range(number % 4):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(manager.flush, "op")
                for _ in range(3):
                    await wait_all_tasks_blocked()
                    mock_clock.jump(0.01)
                await wait_all_tasks_blocked()
                assert not nursery.child_tasks
        mock_clock.autojump_threshold = 0
    assert_counters_add_up(manager)


async def test_a_cancelled_parent_waits_for_the_drain_without_spinning(autojump_clock: MockClock) -> None:
    # B10
    store = FaultyStore(MemoryStore())
    store.hang("merge", nth=None)
    failures = Failures()
    counter = StepCounter()
    with trio.CancelScope() as parent:
        async with open_manager(store, config=Config(on_error=failures), drain_timeout=3) as manager:
            manager.begin("op", "work")
            parent.cancel()
            trio.lowlevel.add_instrument(counter)
            began = trio.current_time()
    trio.lowlevel.remove_instrument(counter)
    assert trio.current_time() - began == pytest.approx(3)
    assert counter.steps < 50
    (error,) = failures.of("")
    assert isinstance(error, DrainError)
    assert error.lost == {"op": 1}
    assert_counters_add_up(manager)


MODULE_CONFIG = Config(flush_interval=0.5)
MODULE_STORE = FaultyStore(MemoryStore())
MODULE_MANAGERS = [open_manager(MODULE_STORE, config=MODULE_CONFIG) for _ in range(3)]
MODULE_HANDLE = new("handle", store=MODULE_STORE)


def test_what_a_module_makes_belongs_to_no_run() -> None:
    # B18
    async def main(number: int) -> None:
        async with MODULE_MANAGERS[number] as manager:
            manager.begin("op", "work", stage_id=str(number))
            await manager.flush("op")
            await trio.sleep(2)
            assert len((await manager.read("op", fresh=True)).stages) == number + 1
        MODULE_HANDLE.begin("again", stage_id=str(number))
        await MODULE_HANDLE.flush()

    MODULE_HANDLE.begin("outside of any run")
    for number in range(2):
        trio.run(main, number, clock=MockClock(autojump_threshold=0))
    anyio.run(main, 2, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


async def test_tasks_begin_stages_under_the_given_parent_even_if_it_ends_first(autojump_clock: MockClock) -> None:
    # B22
    failures = Failures()
    async with open_manager(MemoryStore(), config=Config(on_error=failures)) as manager:
        async with trio.open_nursery() as nursery:

            async def work(name: str, seconds: float) -> None:
                with main.child(name, stage_id=name):
                    manager.begin("op", "unrelated", stage_id=f"{name} unrelated")
                    await trio.sleep(seconds)

            with manager.stage("op", "main", stage_id="main") as main:
                nursery.start_soon(work, "a", 1)
                nursery.start_soon(work, "b", 2)
                await wait_all_tasks_blocked()
        snapshot = await manager.read("op")
        parents = {stage.id: stage.parent_id for stage in snapshot.stages}
        assert parents == {"main": "", "a": "main", "b": "main", "a unrelated": "", "b unrelated": ""}
        (top,) = (node for node in snapshot.tree() if node.stage.id == "main")
        assert sorted(node.stage.id for node in top.children) == ["a", "b"]
        assert all(node.stage.status is Status.SUCCEEDED for node in (top, *top.children))
        assert not failures.all
