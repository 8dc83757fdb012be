"""
Tests of reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.lowlevel

from timeline_trio import (
    Actor,
    CorruptEntry,
    InvalidValue,
    NotFound,
    Snapshot,
    StageNotFound,
    Status,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    TimelineError,
    open_manager,
)
from timeline_trio.model import Document
from timeline_trio.store import Found, MemoryStore, Revision
from timeline_trio.testing import FaultyStore

from .case_support import WrappedStore
from .recording import Errors, completed, filled, quiet, stored

if TYPE_CHECKING:
    from trio.testing import MockClock

    from timeline_trio.store import Known


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


@pytest.mark.parametrize("wrong", [None, Found(opid="other", revision=Revision(1, 1), document=Document(opid="other"))])
async def test_a_wrong_answer_to_a_read_is_the_stores_failure(wrong: Any, autojump_clock: MockClock) -> None:
    class Wrong(WrappedStore):
        async def read(self, opid: str, known: Known | None = None) -> Any:
            await super().read(opid, known)
            return wrong

    store = Wrong()
    await filled(store, "op")
    async with open_manager(store, config=quiet()) as manager:
        with pytest.raises(StoreError, match="could not be read") as caught:
            await manager.read("op")
        assert isinstance(caught.value.__cause__, TypeError | ValueError)
        assert manager.statistics().cached_timelines == 0


async def test_a_corrupt_entry_is_told_as_such(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    corrupt = CorruptEntry("op", "the stored payload cannot be read")
    async with open_manager(store, config=quiet(on_error=Errors())) as manager:
        store.fail("read", corrupt)
        with pytest.raises(CorruptEntry, match="could not be read") as caught:
            await manager.read("op")
        assert caught.value.__cause__ is corrupt
        store.fail("merge", corrupt)
        manager.begin("op", "copy")
        with pytest.raises(CorruptEntry, match="could not save"):
            await manager.flush("op")


async def test_a_lost_fact_is_shown_until_the_store_answers_a_read(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(on_error=Errors())) as manager:
        manager.record("op", completed(id="kept"))
        await manager.flush("op")
        store.fail("merge", StoreRejected("op", "never"))
        manager.record("op", completed(id="lost"))
        with pytest.raises(StoreRejected):
            await manager.flush("op")
        snapshot = await manager.read("op")
        assert [stage.id for stage in snapshot.stages] == ["kept", "lost"]
        snapshot = await manager.read("op", fresh=True)
        assert [stage.id for stage in snapshot.stages] == ["kept"]
        assert not snapshot.collection.local_flushed
        manager.record("op", completed(id="lost"))
        await manager.flush("op")
        snapshot = await manager.read("op", fresh=True)
        assert [stage.id for stage in snapshot.stages] == ["kept", "lost"]
        assert snapshot.collection.local_flushed


async def test_a_stage_that_others_began_anew_is_ended_by_the_name_that_it_has_now(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as mine, open_manager(store, config=quiet()) as other:
        mine.begin("op", "copy", stage_id="s")
        with pytest.raises(StageNotFound):
            await mine.end("op", "verify")
        await mine.flush("op")
        other.begin("op", "verify", stage_id="s")
        await other.flush("op")
        await mine.read("op", fresh=True)
        with pytest.raises(StageNotFound):
            await mine.end("op", "copy")
        await mine.end("op", "verify")
        (stage,) = (await mine.read("op")).stages
        assert (stage.name, stage.status) == ("verify", Status.SUCCEEDED)
