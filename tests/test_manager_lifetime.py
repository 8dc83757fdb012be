"""
Tests of the life of a manager: its block, the drain at its end, and shutdowns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import trio

from timeline_trio import DrainError, InvalidValue, ManagerClosed, Status, StoreRejected, StoreUnavailable, open_manager
from timeline_trio.store import MemoryStore, NoopStore
from timeline_trio.testing import FaultyStore

from .recording import Errors, completed, eventually, quiet, stored
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from trio.testing import MockClock


class Mine(Exception):
    pass


@pytest.mark.parametrize("error", [Mine(), KeyboardInterrupt(), SystemExit(3), ExceptionGroup("g", [Mine()])])
async def test_the_bodys_exception_leaves_the_block_unchanged_and_all_is_saved(
    error: BaseException, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    with pytest.raises(type(error)) as caught:  # noqa: PT012 - the block is what is tried
        async with open_manager(store, config=quiet()) as manager:
            manager.begin("op", "copy")
            raise error
    assert caught.value is error
    assert len((await stored(store)).stages) == 1


async def test_a_cancelled_body_is_saved_too(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    with trio.move_on_after(1) as scope:
        async with open_manager(store, config=quiet()) as manager:
            with manager.stage("op", "copy"):
                await trio.sleep_forever()
    assert scope.cancelled_caught
    (stage,) = (await stored(store)).stages.values()
    assert stage.status is Status.CANCELED


async def test_a_shutdown_lets_the_call_in_flight_end_and_saves_the_rest(autojump_clock: MockClock) -> None:
    # parity 35
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    async with open_manager(store, config=quiet(export_timeout=2.0)) as manager:
        handle = manager.begin("op", "copy")
        manager.flush_soon("op")
        await hang.wait_reached()
        handle.end()
        manager.record("other", completed())
        await manager.shutdown(trio.current_time() + 100)
        with pytest.raises(ManagerClosed):
            manager.begin("op", "late")
        with pytest.raises(ManagerClosed):
            manager.writer("op")
        assert trio.current_time() < 5
        assert_counters_add_up(manager)
        await manager.shutdown(0)
    (stage,) = (await stored(store)).stages.values()
    assert stage.status is Status.SUCCEEDED
    assert len((await stored(store, "other")).stages) == 1


async def test_a_failed_drain_names_what_was_lost_and_frees_it(autojump_clock: MockClock) -> None:
    # parity 36
    errors, store = Errors(), FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    async with open_manager(store, config=quiet(on_error=errors)) as manager:
        manager.begin("op", "copy")
        manager.begin("op", "copy")
        manager.begin("other", "copy")
        with pytest.raises(DrainError) as caught:
            await manager.shutdown(trio.current_time() + 1)
        assert caught.value.lost == {"op": 2, "other": 1}
        assert "'op' (2)" in str(caught.value)
        assert trio.current_time() == pytest.approx(1.0)
        statistics = manager.statistics()
        assert (statistics.dropped_updates, statistics.pending_updates) == (3, 0)
        assert_counters_add_up(manager)
        await manager.shutdown(trio.current_time() + 1)
    assert DrainError not in errors.kinds


async def test_the_end_of_the_block_reports_losses_and_raises_nothing(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    async with open_manager(store, config=quiet(on_error=errors), drain_timeout=2.0) as manager:
        manager.begin("op", "copy")
    assert trio.current_time() == pytest.approx(2.0)
    assert errors.kinds == [StoreUnavailable, DrainError]
    assert [str(error) for error in errors.of("")] == ["1 updates were not saved before the deadline: 'op' (1)"]


async def test_a_drain_tries_an_unavailable_store_again_until_it_answers(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    store.fail("merge", nth=1)
    store.fail("merge", nth=2)
    async with open_manager(store, config=quiet(flush_interval=30.0)) as manager:
        manager.begin("op", "copy")
    assert trio.current_time() < 1
    assert store.count("merge") == 3
    assert len((await stored(store)).stages) == 1


async def test_a_drain_gives_up_what_fails_otherwise_and_goes_on(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore(), hide_merge_many=True)
    store.fail("merge", RuntimeError("a bug"))
    store.fail("merge", StoreRejected("", "never"), nth=2)
    async with open_manager(store, config=quiet(on_error=errors, batch_limit=1)) as manager:
        for opid in ("a", "b", "c"):
            manager.begin(opid, "copy")
    statistics = manager.statistics()
    assert (statistics.dropped_updates, statistics.rejected_updates, statistics.saved_updates) == (1, 1, 1)
    assert errors.kinds == [RuntimeError, StoreRejected, DrainError]
    assert_counters_add_up(manager)


async def test_a_store_that_hangs_does_not_hold_up_the_end(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    store.hang("merge", nth=None)
    async with open_manager(store, config=quiet(on_error=errors, export_timeout=1000), drain_timeout=3.0) as manager:
        manager.begin("op", "copy")
    assert trio.current_time() == pytest.approx(3.0)
    assert errors.kinds == [DrainError]


async def test_shutdowns_at_the_same_time_share_one_outcome(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    lost: list[dict[str, int]] = []

    async def shut(after: float) -> None:
        try:
            await manager.shutdown(trio.current_time() + after)
        except DrainError as error:
            lost.append(error.lost)

    async with open_manager(store, config=quiet(on_error=Errors())) as manager:
        manager.begin("op", "copy")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shut, 2)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(shut, 50)
            with trio.move_on_after(1) as scope:
                await manager.shutdown(trio.current_time() + 50)
            assert scope.cancelled_caught
    assert lost == [{"op": 1}, {"op": 1}]
    assert trio.current_time() == pytest.approx(2.0)


async def test_a_backoff_does_not_hold_up_the_drain(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(flush_interval=1.0, on_error=Errors())) as manager:
        manager.begin("op", "copy")
        store.outage = StoreUnavailable("", "down")
        await trio.sleep(200)
        store.outage = None
        before = trio.current_time()
    assert trio.current_time() - before < 1
    assert len((await stored(store)).stages) == 1


async def test_a_store_of_nothing_is_saved_to_at_once(autojump_clock: MockClock) -> None:
    async with open_manager(NoopStore(), config=quiet()) as manager:
        manager.begin("op", "copy")
        await manager.flush("op")
        snapshot = await manager.read("op")
        assert (snapshot.collection.local_flushed, snapshot.collection.store_read) == (True, False)
        with trio.CancelScope() as scope:
            scope.cancel()
            await manager.read("op")
        assert scope.cancelled_caught


async def test_no_task_is_left_behind(autojump_clock: MockClock) -> None:
    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    before = set(nursery.child_tasks)
    async with open_manager(MemoryStore(), config=quiet()) as manager:
        await manager.shutdown(trio.current_time() + 1)
        await eventually(lambda: not trio.lowlevel.current_task().child_nurseries[-1].child_tasks)
    assert set(nursery.child_tasks) == before


async def test_a_bug_in_the_background_ends_the_body_and_leaves_the_block(autojump_clock: MockClock) -> None:
    def clock() -> int:
        if trio.current_time() > 1:
            raise LookupError("a broken clock")
        return 1

    errors, store = Errors(), FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    with pytest.raises(LookupError, match="a broken clock"):  # noqa: PT012 - the block is what is tried
        async with open_manager(store, config=quiet(load_interval=5.0, clock=clock, on_error=errors)) as manager:
            manager.begin("op", "copy")
            await trio.sleep_forever()
    assert manager.statistics().dropped_updates == 1
    assert_counters_add_up(manager)
    assert DrainError in errors.kinds
    with pytest.raises(ExceptionGroup, match="and so did its manager") as caught:  # noqa: PT012 - the block is what is tried
        async with open_manager(config=quiet(load_interval=5.0, clock=clock)):
            try:
                await trio.sleep_forever()
            finally:
                raise Mine
    assert [type(error) for error in caught.value.exceptions] == [Mine, LookupError]


async def test_hints_to_a_closed_manager_do_nothing(autojump_clock: MockClock) -> None:
    async with open_manager(MemoryStore(), config=quiet()) as manager:
        manager.begin("op", "copy")
    manager.flush_soon("op")
    await trio.testing.wait_all_tasks_blocked()
    await manager.read("op")
    await manager.read("op")
    assert manager.statistics().saved_updates == 1


async def test_a_loss_that_a_cancelled_shutdown_does_not_tell_is_reported(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    async with open_manager(store, config=quiet(on_error=errors)) as manager:
        manager.begin("op", "copy")
        with trio.move_on_after(1):
            await manager.shutdown(trio.current_time() + 2)
    assert errors.kinds == [StoreUnavailable, DrainError]


@pytest.mark.parametrize("deadline", [float("nan"), None, "soon", 1j])
async def test_a_deadline_that_is_no_time_changes_nothing(deadline: Any, autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as manager:
        with pytest.raises(InvalidValue) as caught:
            await manager.shutdown(deadline)
        assert caught.value.field == "deadline"
        manager.begin("op", "copy")
    assert len((await stored(store)).stages) == 1


async def test_the_blocks_own_bound_holds_after_a_cancelled_shutdown(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    store.hang("merge", nth=None)
    config = quiet(on_error=Errors(), export_timeout=1000)
    async with open_manager(store, config=config, drain_timeout=2.0) as manager:
        manager.begin("op", "copy")
        with trio.move_on_after(1):
            await manager.shutdown(trio.current_time() + 10_000)
    assert trio.current_time() == pytest.approx(3.0)


async def test_a_loss_is_told_once_though_one_of_two_callers_is_cancelled(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    store.hang("merge", nth=None)
    raised: list[DrainError] = []

    async def shut_down(patience: float) -> None:
        with trio.move_on_after(patience):
            try:
                await manager.shutdown(trio.current_time() + 1)
            except DrainError as error:
                raised.append(error)

    async with open_manager(store, config=quiet(on_error=errors, export_timeout=1000)) as manager:
        manager.begin("op", "copy")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shut_down, 0.5)
            nursery.start_soon(shut_down, 50)
    assert [error.lost for error in raised] == [{"op": 1}]
    assert errors.told == []


async def test_a_loss_is_reported_if_ctrl_c_ends_the_shutdown(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    store.hang("merge", nth=None)

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    async with open_manager(store, config=quiet(on_error=errors, export_timeout=1000)) as manager:
        manager.begin("op", "copy")
        task = trio.lowlevel.current_task()

        async def press() -> None:
            await trio.testing.wait_all_tasks_blocked()
            task._attempt_abort(interrupt)  # noqa: SLF001 - what Trio does at Ctrl-C

        async with trio.open_nursery() as nursery:
            nursery.start_soon(press)
            with pytest.raises(KeyboardInterrupt):
                await manager.shutdown(trio.current_time() + 1)
    assert errors.kinds == [DrainError]


@pytest.mark.filterwarnings("ignore:.*strict_exception_groups:trio.TrioDeprecationWarning")
def test_a_run_without_strict_groups_sees_the_same_exceptions() -> None:
    async def main() -> None:
        async with open_manager(MemoryStore(), config=quiet(load_interval=0.01, clock=broken)):
            try:
                await trio.sleep_forever()
            finally:
                raise Mine

    def broken() -> int:
        raise LookupError("a broken clock")

    seen = []
    for strict in (True, False):
        with pytest.raises(ExceptionGroup) as caught:
            trio.run(main, strict_exception_groups=strict)
        seen.append([type(error) for error in caught.value.exceptions])
    assert seen == [[Mine, LookupError]] * 2
