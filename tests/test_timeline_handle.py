"""
Tests of one operation as an object, by itself and on a manager.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import (
    Actor,
    BufferFull,
    Handle,
    InvalidAttribute,
    InvalidValue,
    NoDefaultManager,
    NotFound,
    Snapshot,
    Stage,
    StageRef,
    Status,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    get_default,
    new,
    open_manager,
)
from timeline_trio.store import MemoryStore
from timeline_trio.store import StoreRejected as Rejected
from timeline_trio.testing import FaultyStore

from .recording import NEW_YEAR, completed, quiet, stored

if TYPE_CHECKING:
    from trio.testing import MockClock


def test_a_handle_records_without_any_trio() -> None:
    # parity 2, 67
    handle = new("op", actor=Actor("me"))
    stage = handle.begin("copy", stage_id="s", attributes={"a": 1})
    with handle.stage("block", parent=stage) as block, block.child("child"):
        pass
    handle.start("job")
    handle.set_attributes({"b": 2})
    handle.record(completed(id="old"))
    stage.end()
    assert (handle.opid, handle.root_id, handle.actor) == ("op", "operation:op", Actor("me"))
    assert repr(handle).startswith("<Handle 'op' on <timeline_trio.")
    with pytest.raises(NoDefaultManager):
        get_default()

    async def look() -> Snapshot:
        return await handle.finish()

    snapshot = trio.run(look)
    assert {found.name: found.actor.id for found in snapshot.stages} == {
        "copy": "me",
        "block": "me",
        "child": "me",
        "work": "",
    }
    assert (snapshot.name, snapshot.status, snapshot.attributes) == ("job", Status.SUCCEEDED, {"b": 2})
    assert (snapshot.collection.local_flushed, snapshot.collection.store_read) == (True, False)


async def test_no_actor_is_written_for_those_who_name_none() -> None:
    # parity 2
    handle = new("op")
    handle.begin("copy")
    assert "actor" not in (await handle.snapshot()).to_json()


@pytest.mark.parametrize(("arguments", "field"), [({"opid": ""}, "opid"), ({"opid": "op", "actor": "me"}, "actor")])
def test_bad_arguments_are_refused_by_name(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        new(**arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


async def test_two_handles_share_a_store_and_hand_stages_over() -> None:
    # parity 12, 29
    store = MemoryStore()
    first, second = new("op", store=store), new("op", store=store, actor=Actor("2", "second"))
    first.start("job")
    parent = first.begin("parent", stage_id="p")
    reference = StageRef.from_json(parent.ref.to_json())
    await first.finish()
    child = second.begin("child", stage_id="c", parent=reference)
    stranger = second.begin("stranger", stage_id="x", parent=StageRef("other", "p"))
    child.end()
    child.end("again")
    stranger.end("bad")
    snapshot = await second.snapshot()
    assert (snapshot.name, snapshot.status) == ("job", Status.SUCCEEDED)
    (node, other) = snapshot.tree() if snapshot.tree()[0].stage.id == "p" else snapshot.tree()[::-1]
    assert [below.stage.id for below in node.children] == ["c"]
    assert (other.stage.id, other.stage.parent_id) == ("x", "")
    found = snapshot.stage("c")
    assert found is not None
    assert found.elapsed_ns is not None
    assert (found.elapsed_ns > 0, found.status, found.actor) == (True, Status.SUCCEEDED, Actor("2", "second"))
    assert [stage.id for stage in snapshot.running_stages()] == ["p"]
    parent.end()
    assert (await first.snapshot()).running_stages() == ()


async def test_twenty_handles_record_a_shared_stage_and_their_own() -> None:
    # parity 8
    store = MemoryStore()

    async def work(number: int) -> None:
        handle = new("op", store=store)
        handle.record(completed("shared", id="shared"))
        handle.record(completed("own", id=str(number)))
        await handle.flush()

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(work, number)
    assert len((await stored(store)).stages) == 21


async def test_many_handles_with_interleaved_snapshots() -> None:
    # parity 13
    store = MemoryStore()

    async def work() -> None:
        handle = new("op", store=store)
        for index in range(8):
            with handle.stage(f"stage {index}"):
                await handle.snapshot()

        await handle.flush()

    async with trio.open_nursery() as nursery:
        for _ in range(24):
            nursery.start_soon(work)
    stages = (await stored(store)).stages.values()
    assert len(stages) == 192
    assert {stage.status for stage in stages} == {Status.SUCCEEDED}


async def test_a_replayed_begin_reopens_and_another_record_closes() -> None:
    # parity 9
    store = MemoryStore()
    first, second = new("op", store=store), new("op", store=store)
    first.begin("work", stage_id="s")
    await first.flush()
    second.record(completed())
    await second.flush()
    first.begin("work", stage_id="s")
    assert (await first.snapshot()).stages[0].status is Status.RUNNING
    assert (await second.snapshot()).stages[0].status is Status.RUNNING
    second.record(completed())
    assert (await second.snapshot()).stages == (completed(),)


async def test_a_lost_reply_is_reported_and_the_next_flush_repeats_the_batch() -> None:
    # parity 14
    store = FaultyStore(MemoryStore())
    handle = new("op", store=store)
    handle.record(completed())
    store.lose_reply()
    with pytest.raises(StoreUnavailable, match="could not save"):
        await handle.flush()
    handle.begin("later", stage_id="later")
    await handle.flush()
    answer = await store.read("op")
    assert answer.revision.version == 2
    assert store.calls[0].updates == store.calls[1].updates
    assert len(store.calls[2].updates[0].stages) == 1
    other = new("op", store=store)
    other.record(completed("replaced"))
    await other.flush()
    assert (await handle.snapshot()).stage("s") == completed("replaced")
    await handle.flush()
    assert store.count("merge") == 4


async def test_a_second_flush_honours_its_deadline_while_the_first_is_stuck(autojump_clock: MockClock) -> None:
    # parity 17
    store = FaultyStore(MemoryStore())
    hang = store.hang("merge")
    handle = new("op", store=store)
    handle.begin("copy")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.flush)
        await hang.wait_reached()
        with trio.move_on_after(1) as scope:
            await handle.flush()
        assert scope.cancelled_caught
        hang.release()
    assert len((await stored(store)).stages) == 1
    await handle.flush()
    assert store.count("merge") == 1


async def test_a_flush_of_nothing_is_a_checkpoint() -> None:
    handle = new("op", store=MemoryStore())
    with trio.testing.assert_checkpoints():
        await handle.flush()
    with pytest.raises(NotFound):
        await handle.snapshot()


async def test_a_rejected_fact_is_lost_alone_and_named() -> None:
    class Picky:
        def __init__(self) -> None:
            self.inner = MemoryStore()
            self.read, self.mget, self.latest = self.inner.read, self.inner.mget, self.inner.latest

        async def merge(self, opid, update, known=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            if any(stage.name == "bad" for stage in update.stages):
                raise Rejected(opid, "a bad stage")
            return await self.inner.merge(opid, update, known)

    store = Picky()
    handle = new("op", store=store)
    for index in range(4):
        handle.record(completed("bad" if index == 2 else "good", id=str(index)))
    with pytest.raises(StoreRejected):
        await handle.flush()
    assert len((await stored(store)).stages) == 3
    await handle.flush()
    assert not (await handle.snapshot()).collection.local_flushed


async def test_a_failed_read_carries_what_is_known_here() -> None:
    store = FaultyStore(MemoryStore())
    handle = new("op", store=store)
    store.fail("read", RuntimeError("a bug"))
    with pytest.raises(StoreError) as bare:
        await handle.snapshot()
    assert bare.value.snapshot is None
    handle.begin("copy")
    store.fail("read")
    with pytest.raises(StoreUnavailable) as caught:
        await handle.finish("bad")
    assert caught.value.snapshot is not None
    assert caught.value.snapshot.error == "bad"
    assert (await stored(store)).error == "bad"


async def test_a_finish_is_accepted_before_anything_is_waited_for() -> None:
    store = MemoryStore()
    handle = new("op", store=store)
    with trio.CancelScope() as scope:
        scope.cancel()
        await handle.finish("bad", at=NEW_YEAR)
    assert scope.cancelled_caught
    snapshot = await handle.snapshot()
    assert (snapshot.error, snapshot.finished_at) == ("bad", NEW_YEAR)
    with pytest.raises(InvalidValue):
        await handle.finish(5)  # type: ignore[arg-type]


async def test_attributes_are_taken_as_they_are_at_the_call_and_round_trip() -> None:
    # parity 16, 18
    handle = new("op")
    attributes = {"big": 2**64 - 1, "nested": {"list": [1, 2]}}
    handle.start("job", attributes=attributes)
    handle.begin("copy", actor=Actor(name="only a name"), attributes=attributes).end()
    handle.begin("copy", actor=Actor(id="only an id"))
    attributes["nested"]["list"].append(3)  # type: ignore[index]
    with pytest.raises(InvalidAttribute):
        handle.set_attributes({"bad": b""})
    snapshot = await handle.snapshot()
    assert snapshot.attributes == {"big": 2**64 - 1, "nested": {"list": [1, 2]}}
    again = Snapshot.from_json(snapshot.to_json())
    assert again == snapshot
    assert {stage.actor for stage in again.stages} == {Actor(name="only a name"), Actor(id="only an id")}


async def test_the_buffer_of_a_handle_is_bounded_too() -> None:
    handle = new("op", store=MemoryStore())
    for index in range(1024):
        handle.record(completed(id=str(index)))
    with pytest.raises(BufferFull):
        handle.record(completed(id="more"))
    await handle.flush()
    handle.record(completed(id="more"))
    await handle.flush()


def test_a_handle_that_is_dropped_unsaved_leaves_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    handle = new("op", store=MemoryStore())
    handle.begin("copy")
    handle.start("job")
    del handle
    gc.collect()
    new("quiet", store=MemoryStore())
    gc.collect()
    (record,) = caplog.records
    assert record.getMessage() == ("timeline 'op': 2 updates were recorded and never flushed; call flush() or finish()")


async def test_a_writer_is_the_same_on_a_manager(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet(actor=Actor("host"))) as manager:
        writer = manager.writer("op")
        assert (writer.actor, manager.writer("op", Actor()).actor) == (Actor("host"), Actor())
        assert isinstance(writer, Handle)
        writer.start("job")
        with writer.stage("copy"):
            pass
        assert manager.statistics().pending_updates == 2
        snapshot = await writer.finish()
        assert (snapshot.status, snapshot.stages[0].actor) == (Status.SUCCEEDED, Actor("host"))
        assert (snapshot.collection.local_flushed, snapshot.collection.store_read) == (True, True)
        for arguments in ({"opid": " "}, {"opid": "op", "actor": 5}):
            with pytest.raises(InvalidValue):
                manager.writer(**arguments)


async def test_a_completed_stage_of_another_actor_is_recorded_as_it_is() -> None:
    # parity 1
    handle = new("op", actor=Actor("me"))
    stage = Stage.completed("work", 1, 2, id="s")
    handle.record(stage)
    assert (await handle.snapshot()).stages == (stage,)
