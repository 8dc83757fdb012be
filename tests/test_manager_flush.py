"""
Tests of flushing, and of the opids that every call takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from timeline_trio import (
    FlushError,
    InvalidValue,
    ManagerClosed,
    Status,
    StoreUnavailable,
    open_manager,
)
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore

from .recording import Errors, completed, quiet, saves, stored, wait_saved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock


async def test_a_waiting_flush_overrides_the_backoff_once_an_interval(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(flush_interval=1.0), drain_timeout=0) as manager:
        store.outage = StoreUnavailable("", "down")
        manager.begin("op", "copy")
        await trio.sleep(300)
        before, began = len(store.calls), trio.current_time()
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await manager.flush("op")
        assert len(store.calls) == before + 5
        assert 3.9 <= trio.current_time() - began <= 6.5
        store.outage = None
        await manager.flush("op")
        assert trio.current_time() - began <= 8


async def test_a_flush_waits_for_its_own_checkpoint_only(autojump_clock: MockClock) -> None:
    # parity 45, 51
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(export_timeout=1000)) as manager:
        first = store.hang("merge", nth=1)
        second = store.hang("merge", nth=2)
        handle = manager.begin("op", "copy", stage_id="s")
        manager.begin("other", "copy")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.flush, "op")
            await first.wait_reached()
            handle.end()
            first.release()
        assert (await stored(store)).stages["s", ""].status is Status.RUNNING
        assert saves(store, "other") == 0
        manager.flush_soon("op")
        await second.wait_reached()
        second.release()
        await manager.flush("op")
        assert (await stored(store)).stages["s", ""].status is Status.SUCCEEDED


async def test_a_flush_covers_what_is_in_flight_and_what_waits_behind_it(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    done: list[str] = []

    async def flush(name: str) -> None:
        await manager.flush("op")
        done.append(name)

    async with open_manager(store, config=quiet(export_timeout=1000)) as manager:
        handle = manager.begin("op", "copy")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush, "first")
            await hang.wait_reached()
            handle.end()
            nursery.start_soon(flush, "second")
            await trio.testing.wait_all_tasks_blocked()
            assert done == []
            hang.release()
        assert done == ["first", "second"]
        assert saves(store, "op") == 2


async def test_a_cancelled_flush_leaves_the_save_to_the_background(autojump_clock: MockClock) -> None:
    # parity 44
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    async with open_manager(store, config=quiet()) as manager:
        manager.begin("op", "copy")
        with trio.move_on_after(1) as scope:
            await manager.flush("op")
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await manager.flush("op")
        assert scope.cancelled_caught
        hang.release()
        await wait_saved(manager)


async def test_flush_soon_returns_at_once_and_wakes_the_saver(autojump_clock: MockClock) -> None:
    # parity 44, 46
    errors, store = Errors(), FaultyStore(MemoryStore())
    store.fail("merge")
    async with open_manager(store, config=quiet(on_error=errors)) as manager:
        manager.begin("op", "copy")
        manager.flush_soon("op")
        assert store.calls == []
        await errors.wait_for(1)
        assert [opid for opid, _ in errors.told] == ["op"]
        assert trio.current_time() < 1
        manager.flush_soon("unknown")


@pytest.mark.parametrize("opid", ["", " op", "x" * 192, None, 5, b"op", [], {}])
async def test_a_bad_opid_is_refused_wherever_it_is_given(opid: Any, autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        for call in (
            lambda: manager.flush_soon(opid),
            lambda: manager.evict(opid),
            lambda: manager.record(opid, completed()),
            lambda: manager.start(opid, "job"),
            lambda: manager.finish(opid),
            lambda: manager.writer(opid),
        ):
            with pytest.raises(InvalidValue, match="opid: "):
                call()
        for wait in (manager.flush, manager.read, manager.wait_finished):
            with pytest.raises(InvalidValue, match="opid: "):
                await wait(opid)
        assert manager.statistics().cached_timelines == 0


async def test_flushes_while_recording_goes_on(autojump_clock: MockClock) -> None:
    # parity 39
    store = MemoryStore()
    async with open_manager(store, config=quiet(flush_interval=1.0)) as manager:

        async def work(number: int) -> None:
            for index in range(10):
                manager.begin("op", "copy", stage_id=f"{number}-{index}").end()
                await manager.flush("op")
                assert f"{number}-{index}" in {key[0] for key in (await stored(store)).stages}

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(work, number)
        manager.begin("op", "later")
        await wait_saved(manager)
    assert len((await stored(store)).stages) == 101


async def test_a_flush_works_while_everything_around_is_cancelled(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    with trio.move_on_after(1):
        async with open_manager(store, config=quiet()) as manager:
            try:
                manager.begin("op", "copy")
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await manager.flush("op")
                    assert manager.statistics().pending_updates == 0


async def test_flush_all_tells_what_could_not_be_saved(autojump_clock: MockClock) -> None:
    # parity 61
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(flush_interval=1.0)) as manager:
        await manager.flush_all()
        manager.begin("a", "copy")
        store.outage = StoreUnavailable("", "down")
        with pytest.raises(FlushError) as caught:
            await manager.flush_all()
        assert list(caught.value.causes) == ["a"]
        assert "'a'" in str(caught.value)
        (stage,) = (await manager.read("a")).stages
        assert stage.status is Status.RUNNING
        store.outage = None
        await manager.flush_all()


async def test_a_flush_that_the_end_of_the_manager_overtakes_says_so(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    seen: list[type[BaseException]] = []

    async def expect_closed(flush: Callable[[], Awaitable[None]]) -> None:
        try:
            await flush()
        except ManagerClosed as error:
            seen.append(type(error))

    async with trio.open_nursery() as nursery:  # noqa: SIM117 - the inner one must end first
        async with open_manager(store, config=quiet(export_timeout=1000), drain_timeout=1.0) as manager:
            hang = store.hang("merge", nth=None)
            manager.begin("op", "copy")
            nursery.start_soon(expect_closed, lambda: manager.flush("op"))
            nursery.start_soon(expect_closed, manager.flush_all)  # noqa: ASYNC111 - it is to outlive the manager
            await hang.wait_reached()
    assert seen == [ManagerClosed, ManagerClosed]
    await manager.flush("op")
    await manager.flush_all()
