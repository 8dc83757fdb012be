"""
What goes wrong between many managers, many calls and many rounds: lock-step, shared shutdowns, retries.

Each test names the case that it stands for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import Config, DrainError, ManagerClosed, open_manager
from timeline_trio.store import NOTHING_KNOWN, MemoryStore
from timeline_trio.testing import FaultyStore

from .case_support import Failures, WrappedStore, version
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trio.testing import MockClock

    from timeline_trio import Manager
    from timeline_trio.model import Update
    from timeline_trio.store import AnswerOrError, Known, Merged


class Counting(WrappedStore):
    """
    Notes when it is called, and stands still on demand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.moving = trio.Event()
        self.moving.set()

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        await self._note()
        return await super().merge(opid, update, known)

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        await self._note()
        return await super().latest(after, limit, known)

    async def _note(self) -> None:
        self.times.append(trio.current_time())
        await self.moving.wait()

    def most_in_a_window(self, since: float, length: float = 0.02) -> int:
        """
        Return the most calls that came within so many seconds.
        """
        times = [each for each in self.times if each >= since]
        first, most = 0, 0
        for last, each in enumerate(times):
            while times[first] < each - length:
                first += 1
            most = max(most, last - first + 1)
        return most


async def test_managers_opened_together_do_not_call_together(autojump_clock: MockClock) -> None:
    # A30
    store = Counting()
    calls_in_a_second = 100  # 50 saves and 50 loads
    async with trio.open_nursery() as nursery:
        managers: list[Manager] = [await nursery.start(_manage, store) for _ in range(50)]

        async def keep_recording() -> None:
            while True:
                for number, manager in enumerate(managers):
                    manager.begin(f"op {number}", "work", stage_id="again")
                await trio.sleep(0.1)

        nursery.start_soon(keep_recording)
        await trio.sleep(60)
        assert len(store.times) == pytest.approx(60 * calls_in_a_second, rel=0.1)
        assert store.most_in_a_window(1) <= 0.2 * calls_in_a_second

        store.moving = trio.Event()
        await trio.sleep(5)
        store.moving.set()
        released_at = trio.current_time()
        await trio.sleep(15)
        assert store.most_in_a_window(released_at) <= 0.2 * calls_in_a_second, "after a stall too"
        for manager in managers:
            assert_counters_add_up(manager)
        nursery.cancel_scope.cancel()


async def _manage(  # noqa: ASYNC114 - it is only started from here
    store: Counting, task_status: trio.TaskStatus[Manager]
) -> None:
    async with open_manager(store, config=Config(batch_limit=2)) as manager:
        task_status.started(manager)
        await trio.sleep_forever()


async def test_shutdowns_share_one_outcome_and_nobody_who_waits_is_left_behind(autojump_clock: MockClock) -> None:
    # A31
    store = FaultyStore(MemoryStore())
    outcomes: list[str] = []
    async with open_manager(store) as manager, trio.open_nursery() as nursery:

        async def shut_down() -> None:
            await manager.shutdown(trio.current_time() + 5)
            outcomes.append("shut down")

        async def record() -> None:
            with pytest.raises(ManagerClosed):  # noqa: PT012 - it is raised at some time
                while True:
                    manager.begin("op", "work")
                    await trio.lowlevel.checkpoint()
            outcomes.append("closed")

        async def flush() -> None:
            with suppress(ManagerClosed):
                await manager.flush("op")
            outcomes.append("flushed")

        manager.begin("op", "work")
        for function in (shut_down, shut_down, record, flush, flush):
            nursery.start_soon(function)
    assert sorted(outcomes) == ["closed", "flushed", "flushed", "shut down", "shut down"]
    began = trio.current_time()
    await manager.shutdown(began + 5)
    assert trio.current_time() == began
    assert_counters_add_up(manager)


async def test_shutdowns_share_one_failure_and_flushes_are_told_of_the_end(autojump_clock: MockClock) -> None:
    # A31, with a store that hangs
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge", nth=None)
    lost: list[dict[str, int]] = []
    closed = 0
    async with open_manager(store, config=Config(export_timeout=100)) as manager, trio.open_nursery() as nursery:

        async def shut_down() -> None:
            with pytest.raises(DrainError) as caught:
                await manager.shutdown(trio.current_time() + 2)
            lost.append(caught.value.lost)

        async def flush() -> None:
            nonlocal closed
            with pytest.raises(ManagerClosed):
                await manager.flush("op")
            closed += 1

        manager.begin("op", "work")
        nursery.start_soon(flush)
        await hang.wait_reached()
        nursery.start_soon(shut_down)
        nursery.start_soon(shut_down)
        nursery.start_soon(flush)
    assert lost == [{"op": 1}] * 2
    assert closed == 2
    await manager.shutdown(trio.current_time() + 2)
    assert manager.statistics().dropped_updates == 1
    assert_counters_add_up(manager)


async def test_a_timed_out_save_is_repeated_without_any_new_recording(autojump_clock: MockClock) -> None:
    # A34
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    failures = Failures()
    async with open_manager(store, config=Config(export_timeout=0.2, on_error=failures)) as manager:
        manager.begin("op", "work")
        await hang.wait_reached()
        await trio.sleep(3)
        assert manager.statistics().saved_updates == 1
        assert len(failures.of("op")) == 1
        manager.begin("later", "work")
        await trio.sleep(1.2)
        assert manager.statistics().saved_updates == 2
        assert manager.statistics().failing_since is None
        assert_counters_add_up(manager)
    assert await version(store) == await version(store, "later") == 1
