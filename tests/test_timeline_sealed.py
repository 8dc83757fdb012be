"""
Tests of timelines in this process only, and of the one that is none.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import (
    ActiveStages,
    Actor,
    Canceled,
    InvalidAttribute,
    InvalidValue,
    Noop,
    Sealed,
    Snapshot,
    StageRef,
    Status,
    Timeline,
    current_stage,
    new,
    noop,
    open_sealed,
)

from .recording import NEW_YEAR, completed

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock


async def test_a_sealed_timeline_runs_from_its_creation_to_its_finish(autojump_clock: MockClock) -> None:
    # parity 90, 91, 92, 104
    async with open_sealed("op", "job", actor=Actor("me"), attributes={"a": 1}) as timeline:
        before = await timeline.snapshot()
        assert (before.name, before.status, before.attributes) == ("job", Status.UNKNOWN, {"a": 1})
        with timeline.stage("outer") as outer:
            running = await timeline.snapshot()
            with outer.child("inner"):
                pass
        timeline.begin("shared", stage_id="s").end("bad")
        timeline.begin("shared", stage_id="s", actor=Actor("you")).end(TimeoutError())
        assert not timeline.is_sealed
        snapshot = await timeline.finish()
        assert timeline.is_sealed
        await timeline.flush()
    assert [stage.name for stage in running.running_stages()] == ["outer"]
    assert (snapshot.status, len(snapshot.stages)) == (Status.SUCCEEDED, 4)
    assert snapshot.stage("s", "id:you").status is Status.CANCELED
    assert snapshot.stage("s", "id:me").status is Status.FAILED
    assert (snapshot.collection.local_flushed, snapshot.collection.store_read) == (True, True)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


async def test_a_finish_waits_for_the_stages_of_this_process(autojump_clock: MockClock) -> None:
    # parity 93, 98
    async with open_sealed("op", "job") as timeline:
        handle = timeline.begin("copy")
        with pytest.raises(ActiveStages) as caught:
            await timeline.finish("first", deadline=trio.current_time() + 1)
        assert trio.current_time() == pytest.approx(1.0)
        assert caught.value.running == (StageRef("op", handle.stage_id),)
        with trio.move_on_after(1) as scope:
            await timeline.finish()
        assert scope.cancelled_caught

        async def end_later() -> None:
            await trio.sleep(5)
            handle.end()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_later)
            snapshot = await timeline.finish("second")
        assert trio.current_time() == pytest.approx(7.0)
        assert (snapshot.error, snapshot.running_stages()) == ("first", ())
        assert (await timeline.finish()).document == snapshot.document


async def test_after_the_finish_begins_are_inert_and_intervals_still_recorded(autojump_clock: MockClock) -> None:
    # parity 24, 90, 93
    async with open_sealed("op", "job") as timeline:
        early = timeline.begin("early", stage_id="s")
        early.end(code="first")
        result = await timeline.finish(at=NEW_YEAR)
        late = timeline.begin("late")
        assert not late.accepted
        with timeline.stage("later") as later:
            assert not later.accepted
        early.end("again", code="second")
        assert (await timeline.snapshot()).document == result.document
        timeline.record(completed("replaced"))
        timeline.record(completed("new", id="n"))
        snapshot = await timeline.finish("ignored")
    assert {stage.name for stage in snapshot.stages} == {"replaced", "new"}
    assert (snapshot.status, snapshot.finished_at) == (Status.SUCCEEDED, NEW_YEAR)


async def test_after_the_finish_neither_a_start_nor_attributes_change_anything(autojump_clock: MockClock) -> None:
    async with open_sealed("op", "job", attributes={"a": 1}) as timeline:
        result = await timeline.finish()
        timeline.start("another job", at=NEW_YEAR)
        timeline.set_attributes({"b": 2})
        assert (await timeline.snapshot()).document == result.document


async def test_a_refused_finish_leaves_the_exception_of_the_body_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Nothing that a body raises is refused any more, so the bound has to be small.
    block = open_sealed("op", "job")
    timeline = await block.__aenter__()
    monkeypatch.setattr(timeline._sealable, "_max_characters", 0)  # noqa: SLF001
    monkeypatch.setattr(timeline._sealable, "_max_fact_bytes", 100)  # noqa: SLF001
    error = LookupError("mine" * 100)
    assert not await block.__aexit__(LookupError, error, None)
    snapshot = await timeline.snapshot()
    assert (timeline.is_sealed, snapshot.status, snapshot.error) == (True, Status.FAILED, "")
    (record,) = caplog.records
    assert "InvalidValue: fact: expected at most max_fact_bytes=100" in record.getMessage()


@pytest.mark.parametrize(
    ("error", "status"), [(None, Status.SUCCEEDED), (ValueError("bad"), Status.FAILED), (TimeoutError(), "canceled")]
)
async def test_a_block_that_is_left_finishes_by_how_it_is_left(error: Exception | None, status: Status) -> None:
    holder: list[Sealed] = []
    with nullcontext() if error is None else pytest.raises(type(error)):
        async with open_sealed("op", "job") as timeline:
            holder.append(timeline)
            timeline.begin("still running")
            if error is not None:
                raise error
    snapshot = await holder[0].snapshot()
    assert snapshot.status == status
    assert len(snapshot.running_stages()) == 1
    assert repr(timeline) == "<Sealed 'op', sealed>"


async def test_a_cancellation_around_ends_neither_stage_nor_operation(autojump_clock: MockClock) -> None:
    # parity 94
    async with open_sealed("op", "job") as timeline:
        with trio.move_on_after(1):
            timeline.begin("copy")
            await trio.sleep_forever()
        assert current_stage() is None
        snapshot = await timeline.snapshot()
        assert (len(snapshot.running_stages()), snapshot.status) == (1, Status.UNKNOWN)
        assert repr(timeline) == "<Sealed 'op', open>"


async def test_a_foreign_reference_gives_no_parent(autojump_clock: MockClock) -> None:
    # parity 95, 100
    async with open_sealed("op", "job") as timeline, open_sealed("other", "job") as other:
        with other.stage("foreign") as foreign:
            timeline.begin("copy", parent=foreign).end()
            timeline.begin("copy", parent=foreign.ref).end()
            timeline.begin("copy").end()
        assert {stage.parent_id for stage in (await timeline.finish()).stages} == {""}


async def test_many_parents_and_children_at_once_leave_no_orphan(autojump_clock: MockClock) -> None:
    # parity 96
    async with open_sealed("op", "job") as timeline:

        async def work(number: int) -> None:
            with timeline.stage(f"parent {number}") as parent:
                await timeline.snapshot()
                with parent.child(f"child {number}"):
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(work, number)
        snapshot = await timeline.finish()
    assert len(snapshot.stages) == 400
    assert [len(node.children) for node in snapshot.tree()] == [1] * 200
    assert not any(node.orphan for node in snapshot.tree())


async def test_bad_attributes_are_refused_wherever_they_come_and_nothing_else_suffers(
    autojump_clock: MockClock,
) -> None:
    # parity 99, 103
    bad = {"bad": float("nan")}
    with pytest.raises(InvalidAttribute):
        async with open_sealed("op", "job", attributes=bad):
            pass
    for arguments in (
        {"opid": " ", "name": "job"},
        {"opid": "op", "name": ""},
        {"opid": "op", "name": "n", "actor": 5},
    ):
        with pytest.raises(InvalidValue):
            async with open_sealed(**arguments):
                pass
    async with open_sealed("op", "job", attributes={"live": True, "operation:op": 1}) as timeline:
        handle = timeline.begin("copy")
        for call in (
            lambda: timeline.begin("bad", attributes=bad),
            lambda: handle.set_attributes(bad),
            lambda: handle.end(attributes=bad),
            lambda: timeline.set_attributes(bad),
        ):
            with pytest.raises(InvalidAttribute):
                call()
        timeline.set_attributes({"more": 2**70})
        timeline.start("job again")
        timeline.start("job", attributes={"live": True, "operation:op": 1, "more": 2**70})
        handle.end()
        snapshot = await timeline.finish()
    assert (snapshot.status, len(snapshot.stages)) == (Status.SUCCEEDED, 1)
    assert Snapshot.from_json(snapshot.to_json()).attributes == {"live": True, "operation:op": 1, "more": 2**70}


async def test_a_noop_timeline_takes_everything_and_keeps_nothing() -> None:
    # parity 25
    timeline = noop("op")
    handle = timeline.begin("copy", attributes={"bad": object()})
    handle.set_attributes({"a": 1})
    handle.end("bad")
    assert not handle.accepted
    with timeline.stage("") as stage, stage.child("child") as child:
        assert not child.accepted
    timeline.record(completed())
    timeline.start("", at=5)
    timeline.set_attributes({"bad": object()})
    await timeline.flush()
    snapshot = await timeline.finish(5)  # type: ignore[arg-type]
    assert (snapshot.opid, snapshot.stages, snapshot.status) == ("op", (), Status.UNKNOWN)
    assert (snapshot.collection.local_flushed, snapshot.collection.store_read) == (True, True)
    assert isinstance(timeline, Noop)
    assert repr(timeline) == "<Noop 'op'>"
    with trio.CancelScope() as scope:
        scope.cancel()
        await timeline.finish()
    assert scope.cancelled_caught
    with pytest.raises(InvalidValue):
        noop("")


@pytest.mark.parametrize(
    "make",
    [lambda: new("op"), lambda: noop("op"), lambda: Sealed("op", "job", Actor(), None)],
    ids=["handle", "noop", "sealed"],
)
async def test_all_timelines_can_do_the_same(make: Callable[[], Timeline]) -> None:
    timeline: Timeline = make()
    assert isinstance(timeline, Timeline)
    assert timeline.opid == "op"
    timeline.start("job", attributes={"a": 1})
    handle = timeline.begin("copy", stage_id="s")
    with timeline.stage("block", parent=handle, attributes={"b": 1}):
        pass
    timeline.record(completed(id="old"))
    timeline.set_attributes({"c": 1})
    handle.end()
    await timeline.flush()
    assert (await timeline.snapshot()).opid == "op"
    snapshot = await timeline.finish("bad")
    assert snapshot.collection.local_flushed
    assert len(snapshot.stages) in {0, 3}


async def test_snapshots_of_a_sealed_timeline_come_back_from_json_whole(autojump_clock: MockClock) -> None:
    # parity 102
    attributes = {"id": 2**64 - 1, "big": 10**30}
    async with open_sealed("op", "run", attributes=attributes) as timeline:
        parent = timeline.begin("parent", attributes=attributes)
        child = timeline.begin("child", parent=parent)
        progress = await timeline.snapshot()
        child.end(Canceled("stopped"))
        parent.end()
        attributes["big"] = 0
        final = await timeline.finish()
    for snapshot in (progress, final):
        assert Snapshot.from_json(snapshot.to_json()) == snapshot
        assert snapshot.attributes["big"] == 10**30
    assert [stage.status for stage in progress.stages] == ["running", "running"]
    assert {stage.name: (stage.status, stage.error) for stage in final.stages} == {
        "parent": ("succeeded", ""),
        "child": ("canceled", "stopped"),
    }
