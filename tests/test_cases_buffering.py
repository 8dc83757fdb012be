"""
What goes wrong in buffers: flushes that wait too long or not long enough, retries, lost and refused updates.

Each test names the case that it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import (
    Config,
    DrainError,
    ManagerClosed,
    StoreUnavailable,
    open_manager,
)
from timeline_trio.model import Update
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore

from .case_support import Failures, StepCounter, interval, stage_ids, stored, tasks, version
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

    from timeline_trio.store import Known, Merged


async def test_a_flush_that_is_cut_short_leaves_the_save_to_the_background(autojump_clock: MockClock) -> None:
    # A01
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    async with open_manager(store, config=Config(export_timeout=60)) as manager:
        manager.begin("op", "work", stage_id="a")
        began = trio.current_time()
        with trio.move_on_after(0.5) as scope:
            await manager.flush("op")
        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(0.5)
        assert_counters_add_up(manager)

        await trio.sleep(10)
        hang.release()
        await manager.flush("op")
        assert store.count("merge") == 1
        assert await version(store) == 1


async def test_shutdown_interrupts_the_backoff_and_counts_what_is_lost(autojump_clock: MockClock) -> None:
    # A02
    store = FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    before = tasks()
    failures = Failures()
    async with open_manager(store, config=Config(on_error=failures)) as manager:
        for number in range(5):
            manager.begin(f"op {number}", "work")
        await trio.sleep(200)  # so that the delays between tries have grown far beyond the deadline
        began = trio.current_time()
        with pytest.raises(DrainError) as caught:
            await manager.shutdown(began + 1)
        assert trio.current_time() - began <= 1.0 + 1e-9
        assert caught.value.lost == {f"op {number}": 1 for number in range(5)}
        assert manager.statistics().dropped_updates == 5
        assert_counters_add_up(manager)
        assert tasks() == before
    assert len(failures.of("")) == 1, "the loads; the loss was raised to who shut down"


async def test_a_save_that_hangs_is_cut_and_the_others_of_its_round_are_saved(autojump_clock: MockClock) -> None:
    # A05
    store = FaultyStore(MemoryStore(), hide_merge_many=True)
    hang = store.hang("merge")
    failures: dict[str, float] = {}
    config = Config(
        export_timeout=0.2, load_interval=1000, on_error=lambda opid, _: failures.update({opid: trio.current_time()})
    )
    async with open_manager(store, config=config) as manager:
        manager.begin("a", "work")
        manager.begin("b", "work")
        await hang.wait_reached()
        began = trio.current_time()
        await manager.flush("b")
        assert trio.current_time() - began == pytest.approx(0.2)
        assert failures == {"a": pytest.approx(began + 0.2)}
        assert manager.statistics().pending_updates == 1
        assert_counters_add_up(manager)

        await manager.flush("a")
        assert [call.opids for call in store.calls if call.method == "merge"] == [("a",), ("b",), ("a",)]
        assert_counters_add_up(manager)


async def _expect_unavailable(flush: Callable[[str], Awaitable[None]], opid: str) -> None:
    with pytest.raises(StoreUnavailable):
        await flush(opid)


@pytest.mark.parametrize("fails", [False, True])
async def test_flush_waits_for_the_save_that_is_under_way(fails: bool, autojump_clock: MockClock) -> None:  # noqa: FBT001 - a parameter
    # A06
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    if fails:
        store.fail("merge")
    async with open_manager(store, config=Config(export_timeout=60, on_error=Failures())) as manager:
        manager.begin("op", "work")
        await hang.wait_reached()
        done = trio.Event()

        async def flush() -> None:
            if fails:
                await _expect_unavailable(manager.flush, "op")
            else:
                await manager.flush("op")
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush)
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert not done.is_set()
            hang.release()
        await manager.flush("op")
        assert store.count("merge") == 1 + fails
        assert await version(store) == 1
        assert_counters_add_up(manager)


async def test_flush_and_shutdown_end_while_producers_keep_going(autojump_clock: MockClock) -> None:
    # A08
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=Config(batch_limit=4)) as manager, trio.open_nursery() as nursery:
        refused = 0

        async def produce() -> None:
            nonlocal refused
            number = 0
            while refused < 100:
                number += 1
                try:
                    manager.begin("op", "work", stage_id=str(number % 500))
                except ManagerClosed:
                    refused += 1
                await trio.sleep(0.001)

        nursery.start_soon(produce)
        await trio.sleep(0.5)
        manager.begin("op", "work", stage_id="the one before")
        rounds = store.count("merge")
        await manager.flush("op")
        assert ("the one before", "") in (await stored(store)).stages
        assert store.count("merge") <= rounds + 2

        began = trio.current_time()
        await manager.shutdown(began + 1)
        assert trio.current_time() - began < 1
        assert manager.statistics().pending_updates == 0
    assert manager.statistics().refused_updates == refused == 100
    assert_counters_add_up(manager)


async def test_hints_to_a_save_that_hangs_do_not_spin(autojump_clock: MockClock) -> None:
    # A10
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    async with open_manager(store, config=Config(export_timeout=60)) as manager:
        manager.begin("op", "work", stage_id="first")
        await hang.wait_reached()
        counter = StepCounter()
        trio.lowlevel.add_instrument(counter)
        for number in range(100):
            for _ in range(100):
                manager.flush_soon("op")
            manager.begin("op", "work", stage_id=str(number))
            await trio.sleep(0.05)
        trio.lowlevel.remove_instrument(counter)
        assert counter.steps < 500, "in 5 seconds, 100 of them this test's own"
        assert store.count("merge") == 1
        assert_counters_add_up(manager)

        hang.release()
        await manager.flush("op")
        assert len((await stored(store)).stages) == 101
        counters = manager.statistics()
        assert counters.hints_dropped == 0, "repeated hints are one"
    assert_counters_add_up(manager)


class OddError(Exception):
    """
    No error that a store declares.
    """


@pytest.mark.parametrize(
    "error",
    [AssertionError(), KeyError("x"), ExceptionGroup("two", [ValueError(), OddError()]), OddError()],
    ids=lambda error: type(error).__name__,
)
async def test_an_odd_exception_of_the_store_ends_neither_task(error: Exception, autojump_clock: MockClock) -> None:
    # A11
    store = FaultyStore(MemoryStore())
    failures = Failures()
    async with open_manager(store, config=Config(on_error=failures)) as manager:
        store.fail("merge", error)
        store.fail("latest", error)
        manager.begin("op", "work", stage_id="first")
        await trio.sleep(3)
        assert failures.of("op") == [error]
        assert failures.of("") == [error]
        assert_counters_add_up(manager)

        manager.begin("op", "work", stage_id="second")
        await manager.flush("op")
        await store.merge("elsewhere", Update(stages=(interval("there"),)))
        await trio.sleep(3)
        assert manager.statistics().cached_timelines == 2, "the loader goes on"
        assert stage_ids((await stored(store)).stages.values()) == ["first", "second"]
    assert len(failures.all) == 2


class InterruptedStore:
    """
    A store in whose saves Ctrl-C comes up, as far as Python can tell.
    """

    def __init__(self) -> None:
        inner = MemoryStore()
        self.read, self.mget, self.latest = inner.read, inner.mget, inner.latest

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        del opid, update, known
        await trio.lowlevel.checkpoint()
        raise KeyboardInterrupt


def test_an_interrupt_in_the_store_is_not_swallowed() -> None:
    # A11
    lost: list[Exception] = []

    async def main() -> None:
        config = Config(flush_interval=0.01, on_error=lambda _, error: lost.append(error))
        async with open_manager(InterruptedStore(), config=config) as manager:
            manager.begin("op", "work")
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert [type(error) for error in lost] == [DrainError]
