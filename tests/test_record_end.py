"""
Tests of ending stages, by handle and by name, and of recording finished intervals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import (
    Actor,
    AmbiguousStage,
    BufferFull,
    Canceled,
    InvalidAttribute,
    InvalidStage,
    InvalidValue,
    ManagerClosed,
    NotFound,
    Stage,
    StageNotFound,
    Status,
    StoreError,
    StoreUnavailable,
    open_manager,
)
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore, ManualClock

from .recording import NEW_YEAR, SECOND, completed, quiet, stored
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_the_first_accepted_end_wins(autojump_clock: MockClock) -> None:
    # parity 19, 24
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "copy")
        handle.end("first", code="1", attributes={"by": 1})
        handle.end(code="2", attributes={"by": 2})
        handle.set_attributes({"by": 3})
        (stage,) = (await manager.read("op")).stages
    assert (stage.error, stage.code, stage.attributes) == ("first", "1", {"by": 1})


async def test_a_rejected_end_can_be_tried_again_with_new_arguments(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "copy")
        for bad in ({"code": 5}, {"ended_at": "now"}, {"attributes": {"a": object()}}, {"error": 5}):
            with pytest.raises(InvalidValue):
                handle.end(**bad)
        (stage,) = (await manager.read("op")).stages
        assert stage.status is Status.RUNNING
        handle.end("really")
        (stage,) = (await manager.read("op")).stages
    assert (stage.status, stage.error) == (Status.FAILED, "really")


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, Status.SUCCEEDED), ("bad", Status.FAILED), (Canceled("off"), Status.CANCELED)],
)
async def test_a_code_is_independent_of_the_result(
    error: str | Canceled | None, status: Status, autojump_clock: MockClock
) -> None:
    # parity 19, 21
    async with open_manager(config=quiet()) as manager:
        coded, plain = manager.begin("op", "coded", stage_id="1"), manager.begin("op", "plain", stage_id="2")
        running = (await manager.read("op")).stages
        coded.end(error, code="E1")
        plain.end(error)
        snapshot = await manager.read("op")
    assert [stage.code for stage in running] == ["", ""]
    assert [stage.code for stage in snapshot.stages] == ["E1", ""]
    assert {stage.status for stage in snapshot.stages} == {status}
    assert snapshot.status is Status.UNKNOWN
    assert snapshot.to_json().count('"code"') == 1


async def test_a_live_stage_tells_its_true_length_whatever_the_wall_clock_does(autojump_clock: MockClock) -> None:
    clock = ManualClock()
    async with open_manager(config=quiet(clock=clock)) as manager:
        handle = manager.begin("op", "copy")
        clock.advance(-60)
        handle.end()
        (stage,) = (await manager.read("op")).stages
    assert stage.finished_at == NEW_YEAR - 60 * SECOND
    assert stage.elapsed_ns is not None
    assert 0 < stage.elapsed_ns < 10 * SECOND


async def test_the_length_is_unknown_where_a_time_was_given(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        manager.begin("op", "copy", started_at=NEW_YEAR).end()
        manager.begin("op", "copy").end(ended_at=NEW_YEAR)
        assert [stage.elapsed_ns for stage in (await manager.read("op")).stages] == [None, None]


async def test_the_end_of_a_stage_begun_here_always_fits(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet(max_pending_updates=2, max_pending_timelines=1)) as manager:
        handles = [manager.begin("op", "copy", stage_id=str(index)) for index in range(2)]
        await manager.flush("op")
        manager.begin("other", "x", stage_id="x")
        manager.begin("other", "y", stage_id="y")
        handles[0].end()
        with pytest.raises(BufferFull, match="max_pending_timelines=1"):
            manager.begin("third", "z")
        await manager.end("op", "copy")
        with pytest.raises(BufferFull, match="max_pending_updates=2"):
            manager.begin("other", "z")
        with pytest.raises(BufferFull):
            manager.record("op", completed(id="new"))
        statistics = manager.statistics()
        assert (statistics.refused_updates, statistics.pending_updates) == (3, 4)
        assert {stage.status for stage in (await manager.read("op")).stages} == {Status.SUCCEEDED}
        assert_counters_add_up(manager)


async def test_setting_attributes_beyond_a_bound_is_refused(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet(max_pending_updates=1)) as manager:
        first = manager.begin("op", "copy", stage_id="1")
        await manager.flush("op")
        manager.begin("op", "copy", stage_id="2")
        with pytest.raises(BufferFull):
            first.set_attributes({"a": 1})
        first.end(attributes={"a": 2})
        assert (await manager.read("op")).stage("1").attributes == {"a": 2}  # type: ignore[union-attr]


async def test_by_name_exactly_one_running_stage_of_the_actor_is_ended(autojump_clock: MockClock) -> None:
    # parity 1, 60
    peer = Actor("peer")
    async with open_manager(MemoryStore(), config=quiet()) as manager:
        mine = manager.begin("op", "copy", stage_id="s")
        theirs = manager.begin("op", "copy", stage_id="s", actor=peer)
        manager.record("op", completed("copy", id="old"))
        await manager.end("op", "copy")
        assert (mine.phase.value, theirs.phase.value) == ("ended", "running")
        await manager.end("op", "copy", "bad", actor=peer, code="7", ended_at=NEW_YEAR, attributes={"a": 1})
        manager.finish("op")
        snapshot = await manager.read("op")
        with pytest.raises(StageNotFound) as caught:
            await manager.end("op", "copy")
    assert (caught.value.opid, caught.value.name, caught.value.actor_key) == ("op", "copy", "")
    assert "no stage 'copy' of no actor is running; " in str(caught.value)
    stage = snapshot.stage("s", peer.key)
    assert stage is not None
    assert (stage.error, stage.code, stage.finished_at, stage.attributes) == ("bad", "7", NEW_YEAR, {"a": 1})
    assert snapshot.status is Status.SUCCEEDED


async def test_by_name_the_default_actor_is_the_configured_one(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet(actor=Actor("me"))) as manager:
        mine = manager.begin("op", "copy")
        nobodys = manager.begin("op", "copy", actor=Actor())
        await manager.end("op", "copy")
        assert (mine.phase.value, nobodys.phase.value) == ("ended", "running")
        await manager.end("op", "copy", actor=Actor())
        assert nobodys.phase.value == "ended"


async def test_several_running_stages_of_a_name_are_ambiguous(autojump_clock: MockClock) -> None:
    # parity 60
    async with open_manager(config=quiet()) as manager:
        first, second = manager.begin("op", "copy"), manager.begin("op", "copy")
        with pytest.raises(AmbiguousStage) as caught:
            await manager.end("op", "copy")
        assert set(caught.value.candidates) == {first.ref, second.ref}
        assert (caught.value.opid, caught.value.name, caught.value.actor_key) == ("op", "copy", "")
        assert "2 stages 'copy' of no actor are running; " in str(caught.value)
        with pytest.raises(StageNotFound, match="no stage 'copy' of actor 'id:p2' is running; "):
            await manager.end("op", "copy", actor=Actor("p2"))
        first.end()
        await manager.end("op", "copy")
        assert second.phase.value == "ended"
        with pytest.raises(StageNotFound):
            await manager.end("op", "copy")
        assert manager.begin("op", "copy").stage_id not in {first.stage_id, second.stage_id}


async def test_by_name_what_another_process_began_is_found_in_the_store(autojump_clock: MockClock) -> None:
    # parity 62
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as first:
        first.start("op", "job")
        handle = first.begin("op", "copy", stage_id="s", attributes={"a": 1})
        await first.flush("op")
        async with open_manager(store, config=quiet()) as second:
            await second.end("op", "copy", attributes={"b": 2})
            second.finish("op")
        document = await stored(store)
        assert document.stages["s", ""].attributes == {"a": 1, "b": 2}
        assert document.stages["s", ""].elapsed_ns is None
        assert document.status is Status.SUCCEEDED
        await first.read("op", fresh=True)
        handle.end("too late")
        assert handle.phase.value == "ended"
    assert (await stored(store)).stages["s", ""].status is Status.SUCCEEDED


async def test_by_name_remote_stages_can_be_ambiguous_too(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as first:
        first.begin("op", "copy")
        first.begin("op", "copy")
    async with open_manager(store, config=quiet()) as second:
        with pytest.raises(AmbiguousStage):
            await second.end("op", "copy")


async def test_by_name_the_store_is_asked_only_if_nothing_runs_here(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet()) as manager:
        manager.begin("op", "copy")
        await manager.end("op", "copy")
        assert store.count("read") == 0
        store.outage = StoreUnavailable("", "down")
        with pytest.raises(StoreUnavailable, match="could not be read") as caught:
            await manager.end("op", "copy")
        assert caught.value.__cause__ is store.outage
        store.outage = RuntimeError("a bug")
        with pytest.raises(StoreError) as odd:
            await manager.end("op", "copy")
        assert type(odd.value) is StoreError
        store.outage = None


async def test_by_name_a_known_remote_stage_is_ended_while_the_store_is_down(autojump_clock: MockClock) -> None:
    inner = MemoryStore()
    async with open_manager(inner, config=quiet()) as first:
        first.begin("op", "copy")
    store = FaultyStore(inner)
    async with open_manager(store, config=quiet()) as second:
        await second.read("op")
        store.outage = StoreUnavailable("", "down")
        await second.end("op", "copy")
        assert (await second.read("op")).running_stages() == ()
        store.outage = None


async def test_by_name_a_stage_begun_while_the_store_is_asked_comes_first(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    fault = store.hang("read")
    async with open_manager(store, config=quiet()) as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.end, "op", "copy")
        await fault.wait_reached()
        handle = manager.begin("op", "copy")
        fault.release()
    assert handle.phase.value == "ended"


async def test_by_name_bad_arguments_are_refused_by_name(autojump_clock: MockClock) -> None:
    async with open_manager(MemoryStore(), config=quiet()) as manager:
        handle = manager.begin("op", "copy")
        for arguments, field in (
            ({"opid": " "}, "opid"),
            ({"actor": "me"}, "actor"),
            ({"code": 7}, "code"),
            ({"error": 7}, "error"),
            ({"ended_at": "now"}, "ended_at"),
            ({"attributes": {"a": b""}}, "attributes['a']"),
        ):
            with pytest.raises(InvalidValue) as caught:
                await manager.end(**({"opid": "op", "name": "copy"} | arguments))
            assert caught.value.field == field
        assert handle.phase.value == "running"
    with pytest.raises(ManagerClosed):
        await manager.end("op", "copy")


async def test_a_cancelled_end_by_name_has_done_nothing(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "copy")
        with trio.CancelScope() as scope:
            scope.cancel()
            await manager.end("op", "copy")
        assert scope.cancelled_caught
        assert handle.phase.value == "running"


async def test_ends_of_several_names_do_not_mix_up_after_another_process_began_a_key_anew(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as first:
        handle = first.begin("op", "old name", stage_id="s")
        await first.flush("op")
        with pytest.raises(StageNotFound):
            await first.end("op", "no such name")
        async with open_manager(store, config=quiet()) as second:
            second.begin("op", "new name", stage_id="s")
        await first.read("op", fresh=True)
        handle.set_attributes({"a": 1})
        with pytest.raises(StageNotFound):
            await first.end("op", "old name")
        await first.end("op", "new name")
        assert handle.phase.value == "ended"
        with pytest.raises(StageNotFound):
            await first.end("op", "new name")
        (stage,) = (await first.read("op")).stages
    assert (stage.name, stage.attributes, stage.elapsed_ns) == ("new name", {"a": 1}, None)


async def test_a_recorded_interval_is_kept_as_given_and_a_repeat_adds_nothing(autojump_clock: MockClock) -> None:
    # parity 4, 11
    store = MemoryStore()
    stage = Stage.completed(
        "old", NEW_YEAR, NEW_YEAR + 5, id="s", actor=Actor("7", "w"), elapsed_ns=4, code="c", attributes={"a": [1]}
    )
    async with open_manager(store, config=quiet(actor=Actor("me"))) as manager:
        manager.start("op", "job", at=NEW_YEAR)
        manager.finish("op", at=NEW_YEAR + 1)
        await manager.flush("op")
        manager.record("op", stage)
        manager.record("op", stage)
        await manager.flush("op")
        manager.record("op", stage)
        await manager.flush("op")
        snapshot = await manager.read("op")
        assert manager.statistics().changing_merges == 2
    assert snapshot.stages == (stage,)
    assert (snapshot.status, snapshot.finished_at) == (Status.SUCCEEDED, NEW_YEAR + 1)
    assert "revision" not in snapshot.to_json()


@pytest.mark.parametrize("flushed", [True, False])
async def test_a_differing_record_of_a_key_replaces(flushed: bool, autojump_clock: MockClock) -> None:  # noqa: FBT001
    # parity 6, 20, 38
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as manager:
        manager.record("op", Stage.completed("one", 1, 2, id="s", code="1"))
        if flushed:
            await manager.flush("op")
        manager.record("op", Stage.completed("two", 3, 4, id="s", code="2"))
        (stage,) = (await manager.read("op")).stages
        assert (stage.name, stage.code) == ("two", "2")
    assert (await stored(store)).stages["s", ""] == stage


async def test_a_recorded_interval_ends_the_live_stage_of_its_key(autojump_clock: MockClock) -> None:
    # parity 9, 15
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "copy", stage_id="s")
        manager.record("op", completed("copy"))
        handle.end("too late")
        assert handle.phase.value == "ended"
        again = manager.begin("op", "copy", stage_id="s")
        (stage,) = (await manager.read("op")).stages
        assert stage.status is Status.RUNNING
        manager.record("op", completed("copy"))
        assert again.phase.value == "ended"
        (stage,) = (await manager.read("op")).stages
    assert stage == completed("copy")


async def test_the_order_of_acceptance_decides(autojump_clock: MockClock) -> None:
    # parity 15
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as manager:
        for begin, flush in ((False, True), (True, True), (False, False)):
            if begin:
                manager.begin("op", "work", stage_id="s")
            else:
                manager.record("op", completed())
            if flush:
                await manager.flush("op")
        assert (await manager.read("op")).stages == (completed(),)
    assert (await stored(store)).stages["s", ""] == completed()


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        (Stage(id="s", name="n", started_at=1), "finished_at"),
        (Stage(id="", name="n", started_at=1, finished_at=2, status=Status.SUCCEEDED), "id"),
        (Stage(id="s", name="", started_at=1, finished_at=2, status=Status.SUCCEEDED), "name"),
        (Stage(id="s", name="n", started_at=1, finished_at=2), "status"),
        (Stage(id="s", name="n", started_at=1, finished_at=2, status=Status.UNKNOWN), "status"),
        (Stage(id="s", name="n", started_at=3, finished_at=2, status=Status.FAILED), "finished_at"),
        (Stage(id="s", name="n", started_at=1, finished_at=2, status=Status.FAILED, parent_id="s"), "parent_id"),
        (Stage(id="s", name="n", started_at=1, finished_at=2, status=Status.FAILED, elapsed_ns=-1), "elapsed_ns"),
        (Stage(id="operation:op", name="n", started_at=1, finished_at=2, status=Status.FAILED), "id"),
        ("a stage", "stage"),
    ],
)
async def test_an_incomplete_interval_is_refused_and_leaves_nothing(
    stage: Stage, field: str, autojump_clock: MockClock
) -> None:
    # parity 5
    async with open_manager(config=quiet()) as manager:
        with pytest.raises(InvalidStage) as caught:
            manager.record("op", stage)
        assert caught.value.field == field
        with pytest.raises(NotFound):
            await manager.read("op")
        assert manager.statistics().accepted_updates == 0


async def test_an_interval_with_raw_attributes_that_are_none_is_refused(autojump_clock: MockClock) -> None:
    # parity 5
    deep = '{"a":' + "[" * 30 + "]" * 30 + "}"
    async with open_manager(config=quiet()) as manager:
        for raw in ("[1]", "nonsense", '{"a": NaN}', deep):
            stage = Stage(id="s", name="n", started_at=1, finished_at=2, status=Status.SUCCEEDED, attributes_json=raw)
            with pytest.raises(InvalidAttribute if raw == deep else InvalidValue):
                manager.record("op", stage)
        assert manager.statistics().accepted_updates == 0


async def test_a_handle_names_its_stage(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "copy", stage_id="s", actor=Actor("7"))
        assert (handle.opid, handle.ref.opid, handle.ref.stage_id) == ("op", "op", "s")
        assert handle.ref.actor == handle.actor == Actor("7")
        assert repr(handle) == "<StageHandle 'copy' of 'op', running>"
