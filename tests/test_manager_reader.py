"""
Tests of reading, of the task that loads, and of watching.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel

from timeline_trio import (
    Actor,
    CorruptEntry,
    InvalidValue,
    ManagerClosed,
    NotFound,
    Snapshot,
    Status,
    StoreError,
    StoreUnavailable,
    TimelineError,
    open_manager,
)
from timeline_trio.store import NOTHING_KNOWN, AnswerOrError, Known, MemoryStore, Unreadable
from timeline_trio.testing import FaultyStore

from .recording import NEW_YEAR, SECOND, Errors, completed, eventually, quiet, stored, virtual_wall, wait_saved
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trio.testing import MockClock


async def filled(store: MemoryStore | FaultyStore, *opids: str) -> None:
    """
    Let another process save a stage of each operation.
    """
    async with open_manager(store, config=quiet(actor=Actor("peer"))) as peer:
        for opid in opids:
            peer.record(opid, completed())


async def test_readers_share_one_load_and_a_cancelled_one_leaves_alone(autojump_clock: MockClock) -> None:
    # parity 40
    store = FaultyStore(MemoryStore())
    await filled(store, "op")
    hang = store.hang("read")
    snapshots: list[Snapshot] = []

    async def read(scope: trio.CancelScope) -> None:
        with scope:
            snapshots.append(await manager.read("op"))

    async with open_manager(store, config=quiet()) as manager:
        async with trio.open_nursery() as nursery:
            scopes = [trio.CancelScope() for _ in range(24)]
            for scope in scopes:
                nursery.start_soon(read, scope)
            await hang.wait_reached()
            scopes[0].cancel()
            await trio.testing.wait_all_tasks_blocked()
            hang.release()
        assert len(snapshots) == 23
        assert {snapshot.collection.store_read for snapshot in snapshots} == {True}
        assert store.count("read") == 1
        again = await manager.read("op")
    assert store.count("read") == 1
    assert not again.collection.store_read
    assert again.stages == snapshots[0].stages


async def test_a_load_is_bounded_and_its_failure_not_remembered_without_local_facts(
    autojump_clock: MockClock,
) -> None:
    # parity 41
    store = FaultyStore(MemoryStore())
    store.hang("read")
    async with open_manager(store, config=quiet(export_timeout=2.0)) as manager:
        with pytest.raises(StoreUnavailable) as caught:
            await manager.read("op")
        assert trio.current_time() == pytest.approx(2.0)
        assert caught.value.snapshot is None
        with pytest.raises(NotFound):
            await manager.read("op")
        manager.begin("op", "copy")
        assert len((await manager.read("op")).stages) == 1
    with pytest.raises(InvalidValue):
        await manager.read(" ")


async def test_a_failed_first_ask_is_answered_locally_and_remembered_for_an_interval(
    autojump_clock: MockClock,
) -> None:
    # parity 61
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(load_interval=10.0)) as manager:
        manager.begin("op", "copy")
        store.outage = StoreUnavailable("", "down")
        for _ in range(3):
            snapshot = await manager.read("op")
            assert (len(snapshot.stages), snapshot.collection.store_read) == (1, False)
        assert store.count("read") == 1
        await trio.sleep(11)
        await manager.read("op")
        assert store.count("read") == 2
        store.outage = None


async def test_a_read_neither_flushes_nor_waits_for_the_save_of_another(autojump_clock: MockClock) -> None:
    # parity 3, 43, 64
    store = FaultyStore(MemoryStore())
    await filled(store, "b")
    hang = store.hang("merge")
    async with open_manager(store, config=quiet(export_timeout=1000)) as manager:
        manager.begin("a", "copy")
        manager.flush_soon("a")
        await hang.wait_reached()
        manager.begin("b", "copy")
        snapshot = await manager.read("b")
        assert len(snapshot.stages) == 2
        assert not snapshot.collection.local_flushed
        assert store.count("merge") == 1 + 1
        assert len((await stored(store, "b")).stages) == 1
        hang.release()


async def test_a_fresh_read_starts_after_the_call(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    await filled(store, "op")
    results: list[Snapshot] = []

    async def read(*, fresh: bool) -> None:
        results.append(await manager.read("op", fresh=fresh))

    async with open_manager(store, config=quiet()) as manager:
        hang = store.hang("read", after=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: read(fresh=False))
            await hang.wait_reached()
            async with open_manager(store, config=quiet()) as peer:
                peer.record("op", completed(id="new"))
            for _ in range(3):
                nursery.start_soon(lambda: read(fresh=True))
            nursery.start_soon(lambda: read(fresh=False))
            await trio.testing.wait_all_tasks_blocked()
            hang.release()
    assert store.count("read") == 2
    assert sorted(len(snapshot.stages) for snapshot in results) == [1, 1, 2, 2, 2]


async def test_a_fresh_read_merges_under_local_facts_and_publishes_nothing(autojump_clock: MockClock) -> None:
    # parity 48
    store = MemoryStore()
    me, you = Actor("me"), Actor("you")
    async with (
        open_manager(store, config=quiet(actor=me)) as first,
        open_manager(store, config=quiet(actor=you)) as second,
    ):
        first.begin("op", "copy", stage_id="s")
        second.begin("op", "copy", stage_id="s")
        await first.flush("op")
        snapshot = await second.read("op", fresh=True)
        assert {stage.actor for stage in snapshot.stages} == {me, you}
        assert (snapshot.collection.store_read, snapshot.collection.local_flushed) == (True, False)
        assert len((await stored(store)).stages) == 1
        await second.end("op", "copy")
        await second.flush("op")
        await first.end("op", "copy", "bad")
        await first.flush("op")
        snapshot = await first.read("op", fresh=True)
    assert {stage.actor: stage.status for stage in snapshot.stages} == {me: Status.FAILED, you: Status.SUCCEEDED}


async def test_a_failed_fresh_read_carries_the_local_view(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet()) as manager:
        manager.begin("op", "copy")
        store.outage = StoreUnavailable("", "down")
        with pytest.raises(StoreUnavailable) as caught:
            await manager.read("op", fresh=True)
        assert caught.value.snapshot is not None
        assert len(caught.value.snapshot.stages) == 1
        assert not caught.value.snapshot.collection.store_read
        store.outage = RuntimeError("a bug")
        with pytest.raises(StoreError) as odd:
            await manager.read("unknown", fresh=True)
        assert odd.value.snapshot is None
        store.outage = None


async def test_not_found_clears_nothing_local(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as manager:
        manager.begin("op", "copy")
        for fresh in (True, False):
            snapshot = await manager.read("op", fresh=fresh)
            assert (len(snapshot.stages), snapshot.collection.store_read) == (1, False)
        await manager.flush("op")
        await store.delete("op")
        snapshot = await manager.read("op", fresh=True)
        assert (len(snapshot.stages), snapshot.collection.store_read) == (1, False)
        with pytest.raises(NotFound) as caught:
            await manager.read("other", fresh=True)
    assert caught.value.opid == "other"


async def test_readers_of_several_operations_do_not_evict_each_others_answers(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    opids = [f"op{index}" for index in range(5)]
    await filled(store, *opids)
    hang = store.hang("read", nth=None)
    found: dict[str, Snapshot] = {}

    async def read(opid: str) -> None:
        found[opid] = await manager.read(opid)

    async with open_manager(store, config=quiet(max_timelines=1)) as manager:
        async with trio.open_nursery() as nursery:
            for opid in opids:
                nursery.start_soon(read, opid)
            await hang.wait_reached()
            await trio.testing.wait_all_tasks_blocked()
            hang.release()
        assert manager.statistics().cached_timelines == 1
    assert {opid: (snapshot.opid, len(snapshot.stages)) for opid, snapshot in found.items()} == {
        opid: (opid, 1) for opid in opids
    }


async def test_a_reader_sees_the_document_though_the_operation_was_recorded_anew_meanwhile(
    autojump_clock: MockClock,
) -> None:
    store = FaultyStore(MemoryStore())
    await filled(store, "op")
    found: list[Snapshot] = []

    async def read() -> None:
        found.append(await manager.read("op", fresh=True))

    async with open_manager(store, config=quiet()) as manager:
        await manager.read("op")
        hang = store.hang("read")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await hang.wait_reached()
            manager.evict("op")
            manager.begin("op", "copy", stage_id="mine")
            hang.release()
        (snapshot,) = found
        assert {stage.id for stage in snapshot.stages} == {"s", "mine"}
        assert snapshot.collection.store_read
        assert len((await manager.read("op")).stages) == 2


async def test_reads_at_the_very_end_of_the_manager_are_answered(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    await filled(store, "op")
    ended = False
    answers = 0

    async def hammer(number: int) -> None:
        nonlocal answers
        while not ended:
            try:
                await manager.read("op", fresh=True)
                await manager.read(f"unknown{number}")
            except TimelineError:
                await trio.lowlevel.checkpoint()
            answers += 1

    async with trio.open_nursery() as nursery:
        async with open_manager(store, config=quiet()) as manager:
            for number in range(20):
                nursery.start_soon(hammer, number)
            await trio.lowlevel.checkpoint()
            manager.begin("new", "copy")
        snapshot = await manager.read("op")
        ended = True
    assert len(snapshot.stages) == 1
    assert answers > 20


async def test_a_closed_manager_reads_straight_from_the_store(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as manager:
        manager.begin("op", "copy")
    await filled(store, "op", "other")
    assert len((await manager.read("op", fresh=True)).stages) == 2
    assert len((await manager.read("other")).stages) == 1
    with pytest.raises(NotFound):
        await manager.read("unknown")


async def test_a_reader_is_told_when_the_manager_closes_before_the_answer(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    hang = store.hang("read", nth=None)
    errors: list[str] = []

    async def read(*, fresh: bool) -> None:
        try:
            await manager.read("op", fresh=fresh)
        except StoreUnavailable as error:
            errors.append(str(error.__cause__))

    async with trio.open_nursery() as nursery, open_manager(store, config=quiet(export_timeout=1000)) as manager:
        nursery.start_soon(lambda: read(fresh=False))
        await hang.wait_reached()
        nursery.start_soon(lambda: read(fresh=True))
        await trio.testing.wait_all_tasks_blocked()
    assert errors == ["'op': the manager closed before the store answered"] * 2


async def test_what_others_record_is_discovered_and_followed(autojump_clock: MockClock) -> None:
    # parity 49
    store = MemoryStore(clock=virtual_wall)
    config = quiet(flush_interval=0.5, load_interval=1.0, clock=virtual_wall)
    async with open_manager(store, config=config) as first, open_manager(store, config=config) as second:
        handle = first.begin("op", "copy", stage_id="s")
        await eventually(lambda: second.statistics().cached_timelines == 1)
        snapshot = await second.read("op")
        assert not snapshot.collection.store_read
        assert snapshot.stages[0].status is Status.RUNNING
        handle.end()
        ended_at = trio.current_time()
        while (await second.read("op")).running_stages():  # noqa: ASYNC110 - polling is what is tried
            await trio.sleep(0.1)
        assert trio.current_time() - ended_at < 3
        assert second.statistics().last_load_at is not None
        assert second.statistics().pending_updates == 0


async def test_loads_keep_to_the_batch_limit_and_the_window_moves_on(autojump_clock: MockClock) -> None:
    # parity 71
    class Recorded:
        def __init__(self) -> None:
            self.inner = MemoryStore(clock=virtual_wall)
            self.merge, self.read = self.inner.merge, self.inner.read
            self.mgets: list[int] = []
            self.latests: list[tuple[float, int, int]] = []
            self.failing = False

        async def mget(
            self,
            opids: Sequence[str],
            known: Mapping[str, Known] = NOTHING_KNOWN,  # noqa: ARG002 - as the contract has it
        ) -> Sequence[AnswerOrError]:
            self.mgets.append(len(opids))
            await trio.lowlevel.checkpoint()
            raise StoreUnavailable("", "no mget today")

        async def latest(
            self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
        ) -> Sequence[AnswerOrError]:
            self.latests.append((trio.current_time(), after, limit))
            if self.failing:
                raise StoreUnavailable("", "no latest either")
            return await self.inner.latest(after, limit, known)

    store, errors = Recorded(), Errors()
    config = quiet(batch_limit=2, load_interval=1.0, clock=virtual_wall, on_error=errors)
    async with open_manager(store, config=config) as manager:
        for index in range(5):
            manager.begin(f"op{index}", "copy")
        await manager.flush_all()
        for index in range(5):
            await manager.read(f"op{index}")
        await eventually(lambda: len(store.latests) == 3)
        assert max(store.mgets) == 2
        assert sum(store.mgets) >= 5
        assert store.latests[0][1:] == (0, 2)
        _, after, _ = store.latests[1]
        assert after == pytest.approx(NEW_YEAR + (store.latests[0][0] - 1) * SECOND, abs=SECOND // 100)
        store.failing = True
        await eventually(lambda: len(store.latests) == 6)
        assert store.latests[4][1] == store.latests[5][1]
        assert [opid for opid, _ in errors.told] == ["", ""]
        assert manager.statistics().failing_since is not None
        store.failing = False
        await eventually(lambda: len(store.latests) == 8)
        assert manager.statistics().failing_since is None


async def test_a_row_that_cannot_be_read_is_reported_once_and_stops_no_other(autojump_clock: MockClock) -> None:
    class Half:
        def __init__(self) -> None:
            self.inner = MemoryStore()
            self.merge, self.read, self.mget = self.inner.merge, self.inner.read, self.inner.mget
            self.broken = True
            self.calls = 0

        async def latest(
            self,
            after: int,  # noqa: ARG002 - as the contract has it
            limit: int,
            known: Mapping[str, Known] = NOTHING_KNOWN,  # noqa: ARG002 - as the contract has it
        ) -> Sequence[AnswerOrError]:
            self.calls += 1
            answers = await self.inner.latest(0, limit, {})
            if not self.broken:
                return answers
            bad = Unreadable(opid="bad", error=CorruptEntry("bad", "nonsense"))
            return [bad if answer.opid == "bad" else answer for answer in answers]

    store, errors = Half(), Errors()
    await filled(store.inner, "op", "bad")
    async with open_manager(store, config=quiet(load_interval=1.0, on_error=errors)) as manager:
        await eventually(lambda: store.calls == 3)
        assert errors.kinds == [CorruptEntry]
        assert manager.statistics().cached_timelines == 1
        store.broken = False
        await eventually(lambda: store.calls == 5)
        store.broken = True
        await eventually(lambda: store.calls == 7)
    assert errors.kinds == [CorruptEntry, CorruptEntry]
    assert {opid for opid, _ in errors.told} == {"bad"}


@pytest.mark.parametrize("method", ["mget", "latest"])
async def test_a_load_that_hangs_times_out_and_is_tried_again(method: str, autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    await filled(store, "op")
    store.hang(method, nth=1)  # type: ignore[arg-type]
    async with open_manager(store, config=quiet(load_interval=1.0, export_timeout=2.0, on_error=errors)) as manager:  # noqa: SIM117 - the inner one must end first
        async with manager.watch("op"):
            await errors.wait_for(1)
            await eventually(lambda: store.count(method) == 3)  # type: ignore[arg-type]
    assert [str(error) for error in errors.of("")] == ["the store did not answer within export_timeout=2.0 s"]


async def test_a_full_load_queue_drops_hints(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    await filled(store, *(f"op{index}" for index in range(10)))
    async with open_manager(store, config=quiet(batch_limit=1)) as manager:
        for _ in range(2):
            for index in range(10):
                await manager.read(f"op{index}")
        assert manager.statistics().cached_timelines == 10
    async with open_manager(store, config=quiet(batch_limit=1, export_timeout=1000)) as manager:
        hang = store.hang("mget", nth=None)
        for index in range(10):
            await manager.read(f"op{index}")
            await manager.read(f"op{index}")
        await hang.wait_reached()
        for index in range(10):
            await manager.read(f"op{index}")
        assert manager.statistics().hints_dropped == 5
        hang.release()


async def test_a_save_without_its_document_after_others_have_saved_is_loaded(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    store.strip_documents = True
    async with open_manager(store, config=quiet()) as manager:
        manager.record("op", completed(id="first"))
        await manager.flush("op")
        await filled(store, "op")
        manager.record("op", completed(id="second"))
        await manager.flush("op")
        assert len((await manager.read("op")).stages) == 2
        await eventually(lambda: store.count("mget") == 1)
        await trio.sleep(1)
        assert {stage.id for stage in (await manager.read("op")).stages} == {"first", "second", "s"}
        assert_counters_add_up(manager)


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


async def test_health_tells_when_the_store_answered_last(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(clock=virtual_wall, flush_interval=1.0)) as manager:
        statistics = manager.statistics()
        assert (statistics.last_save_at, statistics.last_load_at, statistics.failing_since) == (None, None, None)
        await trio.sleep(5)
        manager.begin("op", "copy")
        await manager.flush("op")
        assert manager.statistics().last_save_at == pytest.approx(NEW_YEAR + 5 * SECOND, abs=SECOND)
        await manager.read("op", fresh=True)
        assert manager.statistics().last_load_at == pytest.approx(NEW_YEAR + 5 * SECOND, abs=SECOND)
        store.outage = StoreUnavailable("", "down")
        manager.begin("op", "copy")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await manager.read("op", fresh=True)
            await trio.sleep(5)
        assert manager.statistics().failing_since == pytest.approx(NEW_YEAR + 5 * SECOND, abs=2 * SECOND)
        assert manager.statistics().oldest_pending > 0
        store.outage = None
        await wait_saved(manager)
        assert manager.statistics().failing_since is None


async def test_an_operation_that_is_only_watched_is_read_as_if_it_were_not(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet()) as manager, manager.watch("op"):
        for _ in range(2):
            with pytest.raises(NotFound):
                await manager.read("op")
        await filled(store, "op")
        assert (await manager.read("op")).collection.store_read
    assert store.count("read") == 3
