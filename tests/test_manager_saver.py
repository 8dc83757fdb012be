"""
Tests of the task that saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import trio

from timeline_trio import (
    CorruptEntry,
    FlushError,
    Status,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    open_manager,
)
from timeline_trio.store import Known, MemoryStore, Merged
from timeline_trio.testing import FaultyStore

from .case_support import WrappedStore
from .recording import Errors, completed, eventually, quiet, saves, stored, wait_saved
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trio.testing import MockClock

    from timeline_trio.model import Update
    from timeline_trio.store import MergeRequest
    from timeline_trio.testing._faults import StoreMethod


class PickyStore:
    """
    Refuses updates with a stage of a certain name, for good.
    """

    def __init__(self, error: type[StoreRejected] = StoreRejected) -> None:
        self._inner = MemoryStore()
        self._error = error
        self.updates: list[Update] = []
        self.read = self._inner.read
        self.mget = self._inner.mget
        self.latest = self._inner.latest

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        self.updates.append(update)
        if any(stage.name == "bad" for stage in update.stages):
            raise self._error(opid, "a bad stage")
        return await self._inner.merge(opid, update, known)


async def test_each_state_reaches_the_store_by_itself(autojump_clock: MockClock) -> None:
    # parity 30
    store = MemoryStore()
    async with open_manager(store, config=quiet(flush_interval=1.0)) as manager:
        handle = manager.begin("op", "copy", stage_id="s")
        await wait_saved(manager)
        assert (await stored(store)).stages["s", ""].status is Status.RUNNING
        handle.set_attributes({"a": 1})
        await wait_saved(manager)
        assert (await stored(store)).stages["s", ""].attributes == {"a": 1}
        handle.end("bad")
        await wait_saved(manager)
        assert (await stored(store)).stages["s", ""].status is Status.FAILED
        statistics = manager.statistics()
        assert (statistics.pending_timelines, statistics.oldest_pending) == (0, 0.0)
        assert statistics.changing_merges == statistics.saved_updates == 3


async def test_plain_recording_waits_for_the_interval(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(flush_interval=100.0)) as manager:
        await trio.sleep(120)
        manager.begin("op", "copy")
        assert store.count("merge") + store.count("merge_many") == 0
        await trio.sleep(1)
        assert store.count("merge") == 0
        await trio.sleep(110)
        assert store.count("merge") == 1


async def test_a_streak_of_failures_is_reported_once_and_the_same_batch_repeated(autojump_clock: MockClock) -> None:
    # parity 31, 32
    errors, store = Errors(), FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(flush_interval=1.0, on_error=errors)) as manager:
        store.fail("merge", nth=1)
        store.lose_reply("merge", nth=2)
        handle = manager.begin("op", "copy")
        await errors.wait_for(1)
        handle.set_attributes({"later": 1})
        assert manager.statistics().failing_since is not None
        await wait_saved(manager)
        assert errors.kinds == [StoreUnavailable]
        updates = [call.updates[0] for call in store.calls if call.method == "merge"]
        assert updates[0] is updates[1] is updates[2]
        assert updates[3].stages[0].attributes == {"later": 1}
        assert manager.statistics().failing_since is None
        assert manager.statistics().changing_merges == 1
        store.fail("merge")
        handle.end()
        await errors.wait_for(2)
        assert_counters_add_up(manager)


async def test_what_is_recorded_while_a_save_hangs_is_saved_afterwards(autojump_clock: MockClock) -> None:
    # parity 32, 37
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    async with open_manager(
        store, config=quiet(flush_interval=1.0, max_pending_updates=2, export_timeout=1000)
    ) as manager:
        handle = manager.begin("op", "copy", stage_id="s")
        await hang.wait_reached()
        for index in range(1000):
            handle.set_attributes({"index": index})
        handle.end()
        statistics = manager.statistics()
        assert (statistics.accepted_updates, statistics.superseded_updates) == (1002, 1000)
        assert statistics.pending_updates == 2
        hang.release()
        await wait_saved(manager)
        assert_counters_add_up(manager)
    stage = (await stored(store)).stages["s", ""]
    assert (stage.status, stage.attributes) == (Status.SUCCEEDED, {"index": 999})


async def test_a_stalled_operation_times_out_and_starves_no_other(autojump_clock: MockClock) -> None:
    # parity 34
    errors, store = Errors(), FaultyStore(MemoryStore())
    hang = store.hang("merge", nth=1)
    async with open_manager(store, config=quiet(on_error=errors, flush_interval=1.0, export_timeout=2.0)) as manager:
        manager.begin("stalled", "copy")
        manager.flush_soon("stalled")
        await hang.wait_reached()
        manager.begin("healthy", "copy")
        await manager.flush("healthy")
        assert trio.current_time() < 10
        await wait_saved(manager)
        assert [str(error) for error in errors.of("stalled")] == [
            "'stalled': the store did not answer within export_timeout=2.0 s"
        ]
        assert errors.of("healthy") == []


async def test_a_round_takes_no_more_than_the_batch_limit_and_later_ones_the_rest(autojump_clock: MockClock) -> None:
    # parity 50
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(batch_limit=2, flush_interval=10.0)) as manager:
        for index in range(5):
            manager.begin(f"op{index}", "copy")
        await wait_saved(manager)
    calls = [len(call.opids) for call in store.calls if call.method in {"merge", "merge_many"}]
    assert calls == [2, 2, 1]
    assert trio.current_time() < 10


async def test_hints_never_starve_the_period(autojump_clock: MockClock) -> None:
    # parity 70
    store = FaultyStore(MemoryStore(), hide_merge_many=True)
    async with open_manager(store, config=quiet(batch_limit=1, flush_interval=1.0, load_interval=0.5)) as manager:
        manager.begin("quiet", "copy")
        for index in range(1000):
            manager.begin(f"noisy{index % 10}", "copy")
            for other in range(10):
                manager.flush_soon(f"noisy{other}")
            await trio.sleep(0.01)
            if saves(store, "quiet"):
                break
        assert saves(store, "quiet") == 1
        assert trio.current_time() < 3


async def test_a_full_channel_drops_hints_and_the_period_covers_for_them(autojump_clock: MockClock) -> None:
    # parity 70
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    async with open_manager(store, config=quiet(batch_limit=1, flush_interval=5.0, export_timeout=1000)) as manager:
        manager.begin("first", "copy")
        await hang.wait_reached()
        for index in range(10):
            manager.begin(f"op{index}", "copy")
            manager.flush_soon(f"op{index}")
        await trio.sleep(1)
        assert manager.statistics().hints_dropped == 6
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.flush, "op9")
            await trio.sleep(1)
            hang.release()
        await wait_saved(manager)
        assert_counters_add_up(manager)


async def test_many_operations_are_saved_in_one_transaction(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore(), hide_watch=True)
    async with open_manager(store, config=quiet()) as manager:
        for index in range(5):
            manager.begin(f"op{index}", "copy")
        await manager.flush_all()
        assert [len(call.opids) for call in store.calls] == [5]
        await manager.flush_all()
        assert len(store.calls) == 1


@pytest.mark.parametrize("fault", ["fail", "hang", "lost"])
async def test_a_failed_transaction_is_repeated_one_by_one(fault: str, autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    faults: dict[str, Callable[[StoreMethod], object]]
    faults = {"fail": store.fail, "hang": store.hang, "lost": store.lose_reply}
    faults[fault]("merge_many")
    async with open_manager(store, config=quiet(on_error=errors)) as manager:
        for index in range(3):
            manager.begin(f"op{index}", "copy")
        await manager.flush_all()
        assert store.count("merge") == 3
        assert_counters_add_up(manager)
    assert errors.told == []


async def test_an_answer_of_a_joint_save_concerns_its_own_operation_only(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    rejected, odd = StoreRejected("rejected", "no"), StoreUnavailable("odd", "busy")

    async def merge_many(requests):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        answers = await MemoryStore().merge_many(requests)
        by_opid = {"rejected": rejected, "odd": odd}
        return [by_opid.get(request.opid, answer) for request, answer in zip(requests, answers, strict=True)]

    store.merge_many = merge_many
    async with open_manager(store, config=quiet(on_error=errors, flush_interval=5.0)) as manager:
        for opid in ("fine", "rejected", "odd"):
            manager.begin(opid, "copy")
        with pytest.raises(FlushError) as caught:
            await manager.flush_all()
        assert set(caught.value.causes) == {"rejected", "odd"}
        assert type(caught.value.causes["rejected"]) is StoreRejected
        assert type(caught.value.causes["odd"]) is StoreUnavailable
        assert caught.value.causes["odd"].__cause__ is odd
        assert manager.statistics().rejected_updates == 1
        assert_counters_add_up(manager)
        await wait_saved(manager)
    assert errors.of("rejected") == [rejected]
    assert errors.of("odd") == [odd]


async def test_after_two_timeouts_in_a_row_the_rest_waits_for_the_next_round(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore(), hide_merge_many=True, hide_watch=True)
    hang = store.hang("merge", nth=None)
    async with open_manager(store, config=quiet(flush_interval=100.0, export_timeout=1.0)) as manager:
        manager.begin("a", "copy")
        manager.flush_soon("a")
        await hang.wait_reached()
        hang.release()
        await wait_saved(manager)
        hang = store.hang("merge", nth=2)
        store.hang("merge", nth=3)
        for index in range(5):
            manager.begin(f"op{index}", "copy")
            manager.flush_soon(f"op{index}")
        before = trio.current_time()
        await eventually(lambda: manager.statistics().saved_updates == 4)
        assert trio.current_time() - before < 5
        assert [call.opids[0] for call in store.calls][1:] == ["op0", "op1", "op2", "op3", "op4"]
        await trio.sleep(300)
        assert manager.statistics().pending_updates == 0


async def test_one_bad_fact_is_lost_alone(autojump_clock: MockClock) -> None:
    # parity 57
    errors, store = Errors(), PickyStore()
    async with open_manager(store, config=quiet(on_error=errors)) as manager:
        for index in range(5):
            manager.record("op", completed("bad" if index == 3 else "good", id=str(index)))
        manager.start("op", "job")
        manager.record("other", completed())
        with pytest.raises(StoreRejected, match="could not save"):
            await manager.flush("op")
        await manager.flush("other")
        snapshot = await manager.read("op")
        assert not snapshot.collection.local_flushed
        statistics = manager.statistics()
        assert (statistics.rejected_updates, statistics.pending_updates, statistics.saved_updates) == (1, 0, 6)
        assert_counters_add_up(manager)
        assert errors.kinds == [StoreRejected]
        manager.record("op", completed("good", id="3"))
        await manager.flush("op")
        assert (await manager.read("op")).collection.local_flushed
        assert len((await stored(store)).stages) == 5
        assert errors.kinds == [StoreRejected]


async def test_a_corrupt_row_is_not_searched_for_a_culprit(autojump_clock: MockClock) -> None:
    errors, store = Errors(), PickyStore(CorruptEntry)
    async with open_manager(store, config=quiet(on_error=errors)) as manager:
        for index in range(4):
            manager.record("op", completed("bad", id=str(index)))
        with pytest.raises(StoreRejected):
            await manager.flush("op")
        assert len(store.updates) == 1
        assert manager.statistics().rejected_updates == 4
        assert_counters_add_up(manager)
    assert errors.kinds == [CorruptEntry]


async def test_an_error_that_a_store_does_not_declare_is_tried_again_too(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    bug = RuntimeError("a bug")
    store.fail("merge", bug)
    async with open_manager(store, config=quiet(on_error=errors, flush_interval=1.0)) as manager:
        manager.begin("op", "copy")
        with pytest.raises(StoreError) as caught:
            await manager.flush("op")
        assert type(caught.value) is StoreError
        assert caught.value.__cause__ is bug
        await wait_saved(manager)
    assert errors.told == [("op", bug)]


async def test_a_document_that_fails_alone_is_slowed_alone(autojump_clock: MockClock) -> None:
    class OneBad:
        def __init__(self) -> None:
            self.inner = MemoryStore()
            self.tries: list[float] = []
            self.read, self.mget, self.latest = self.inner.read, self.inner.mget, self.inner.latest

        async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
            if opid == "bad":
                self.tries.append(trio.current_time())
                raise StoreUnavailable(opid, "this one only")
            return await self.inner.merge(opid, update, known)

    store, errors = OneBad(), Errors()
    async with open_manager(store, config=quiet(on_error=errors, flush_interval=1.0), drain_timeout=0.5) as manager:
        manager.begin("bad", "copy")
        for index in range(120):
            manager.begin("good", "copy", stage_id=str(index))
            await trio.sleep(1)
        gaps = [later - earlier for earlier, later in zip(store.tries, store.tries[1:], strict=False)]
        assert max(gaps) > 10
        assert max(gaps) < 33
        assert max(gaps[:2]) < 2.5
        assert manager.statistics().pending_updates < 4
        assert manager.statistics().failing_since is not None or len(errors.told) == 1
        assert len(errors.of("bad")) == 1


async def test_an_outage_slows_the_saver_and_the_first_success_releases_everything(autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(on_error=errors, flush_interval=1.0)) as manager:
        store.outage = StoreUnavailable("", "down")
        for index in range(10):
            manager.begin(f"op{index}", "copy")
        await trio.sleep(300)
        tried = len(store.calls)
        assert tried < 10 * 40
        assert len(errors.told) == 10
        store.outage = None
        await wait_saved(manager)
        assert trio.current_time() < 340
        assert manager.statistics().saved_updates == 10
        assert_counters_add_up(manager)


async def test_twenty_writers_keep_their_identities(autojump_clock: MockClock) -> None:
    # parity 13, 33, 63
    from timeline_trio import Actor  # noqa: PLC0415 - this test's own

    store = MemoryStore()
    async with open_manager(store, config=quiet(flush_interval=1.0)) as manager:

        async def work(number: int) -> None:
            writer = manager.writer("op", Actor(str(number)))
            writer.start("job")
            for _ in range(8):
                with writer.stage("copy", stage_id="shared"):
                    await trio.sleep(0.1)
                await manager.read("op")
                await writer.flush()

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(work, number)
    stages = (await stored(store)).stages.values()
    assert {stage.actor.id for stage in stages} == {str(number) for number in range(20)}
    assert {stage.status for stage in stages} == {Status.SUCCEEDED}


@pytest.mark.parametrize("drains", [False, True])
async def test_operations_that_hang_do_not_hold_up_the_healthy_ones(*, drains: bool, autojump_clock: MockClock) -> None:
    class Hanging(WrappedStore):
        down = True

        async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
            await trio.lowlevel.checkpoint()
            if self.down:
                raise StoreUnavailable(opid, "down")
            if opid.startswith("hangs"):
                await trio.sleep_forever()
            return await super().merge(opid, update, known)

    store = Hanging()
    config = quiet(flush_interval=1.0, export_timeout=0.2, on_error=Errors())
    async with open_manager(store, config=config, drain_timeout=5.0) as manager:
        for opid in ("hangs 1", "hangs 2", "healthy 1", "healthy 2", "healthy 3"):
            manager.begin(opid, "copy")
        await trio.sleep(3)
        store.down = False
        if not drains:
            await eventually(lambda: manager.statistics().saved_updates == 3)
    assert manager.statistics().saved_updates == 3
    assert manager.statistics().dropped_updates == 2


async def test_what_waits_longest_has_its_place_though_it_failed_once(autojump_clock: MockClock) -> None:
    class Slow(WrappedStore):
        failures = 1

        async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
            await trio.sleep(0.1)
            if opid == "once" and self.failures:
                self.failures -= 1
                raise ValueError("a glitch")
            saved.append(opid)
            return await super().merge(opid, update, known)

    async def record(opid: str) -> None:
        while True:
            manager.begin(opid, "copy").end()
            await trio.sleep(0.2)

    saved: list[str] = []
    config = quiet(flush_interval=1.0, batch_limit=4, on_error=Errors())
    async with open_manager(Slow(), config=config) as manager, trio.open_nursery() as nursery:
        manager.begin("once", "copy")
        for index in range(30):
            nursery.start_soon(record, f"op{index}")
        await eventually(lambda: "once" in saved)
        nursery.cancel_scope.cancel()
    assert trio.current_time() < 60


async def test_hints_do_not_starve_the_period_of_a_slow_store(autojump_clock: MockClock) -> None:
    class Slow(WrappedStore):
        async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
            await trio.sleep(1.5)
            saved.append(opid)
            return await super().merge(opid, update, known)

    async def hint() -> None:
        while True:
            manager.begin("noisy", "copy").end()
            manager.flush_soon("noisy")
            await trio.sleep(0.1)

    saved: list[str] = []
    config = quiet(flush_interval=1.0)
    async with open_manager(Slow(), config=config) as manager, trio.open_nursery() as nursery:
        nursery.start_soon(hint)
        await trio.sleep(3)
        manager.begin("quiet", "copy")
        await eventually(lambda: "quiet" in saved)
        nursery.cancel_scope.cancel()
    assert trio.current_time() < 15


async def test_a_joint_save_is_the_one_try_of_each_operation_in_it(autojump_clock: MockClock) -> None:
    class Joint(WrappedStore):
        async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
            alone.append(opid)
            return await super().merge(opid, update, known)

        async def merge_many(self, requests: Sequence[MergeRequest]) -> list[Merged | StoreError]:
            await trio.lowlevel.checkpoint()
            return [
                StoreUnavailable(request.opid, "busy")
                if request.opid == "odd"
                else await self.inner.merge(request.opid, request.update)
                for request in requests
            ]

    alone: list[str] = []
    errors = Errors()
    async with open_manager(Joint(), config=quiet(flush_interval=10.0, on_error=errors)) as manager:
        for opid in ("odd", "fine"):
            manager.begin(opid, "copy")
        with pytest.raises(FlushError):
            await manager.flush_all()
        await trio.sleep(1)
        assert alone == []
        await wait_saved(manager)
    assert alone == ["odd"]
    assert errors.kinds == [StoreUnavailable]


@pytest.mark.parametrize("wrong", [None, [], [None, None], [object(), object()], 5])
async def test_a_wrong_answer_to_a_joint_save_is_the_stores_failure(wrong: Any, autojump_clock: MockClock) -> None:
    class Wrong(WrappedStore):
        async def merge_many(self, requests: Sequence[MergeRequest]) -> Any:  # noqa: ARG002 - as the contract has it
            await trio.lowlevel.checkpoint()
            return wrong

    async with open_manager(Wrong(), config=quiet()) as manager:
        manager.begin("a", "copy")
        manager.begin("b", "copy")
        await manager.flush_all()
        assert manager.statistics().saved_updates == 2


@pytest.mark.parametrize(
    "wrong",
    [None, "saved", Merged(revision=1, changed=True), Merged(revision=None, changed=True, document={})],  # type: ignore[arg-type]
)
async def test_a_wrong_answer_to_a_save_is_tried_again(wrong: Any, autojump_clock: MockClock) -> None:
    class Wrong(WrappedStore):
        answers: ClassVar[list[Any]] = [wrong]

        async def merge(self, opid: str, update: Update, known: Known | None = None) -> Any:
            merged = await super().merge(opid, update, known)
            return self.answers.pop() if self.answers else merged

    errors = Errors()
    async with open_manager(Wrong(), config=quiet(flush_interval=1.0, on_error=errors)) as manager:
        manager.begin("op", "copy")
        with pytest.raises(StoreError, match="could not save"):
            await manager.flush("op")
        await wait_saved(manager)
        assert_counters_add_up(manager)
    assert errors.kinds == [TypeError]
