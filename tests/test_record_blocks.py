"""
Tests of stages and operations as blocks.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

import pytest
import trio

from timeline_trio import (
    Actor,
    BufferFull,
    Canceled,
    InvalidAttribute,
    InvalidValue,
    ManagerClosed,
    StageHandle,
    StageRef,
    Status,
    current_stage,
    noop,
    open_manager,
)
from timeline_trio.store import MemoryStore

from .recording import Errors, quiet
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ValueError("bad"), Status.FAILED, "ValueError: bad"),
        (KeyboardInterrupt(), Status.CANCELED, "KeyboardInterrupt"),
        (SystemExit(0), Status.SUCCEEDED, ""),
        (SystemExit([1]), Status.FAILED, "SystemExit: [1]"),
        (ExceptionGroup("g", [TimeoutError()]), Status.CANCELED, "TimeoutError"),
    ],
)
async def test_the_result_comes_from_how_a_block_is_left_and_the_exception_goes_on(
    error: BaseException, status: Status, text: str, autojump_clock: MockClock
) -> None:
    async with open_manager(config=quiet()) as manager:
        with pytest.raises(type(error)) as caught, manager.operation("op", "job"), manager.stage("op", "copy"):
            raise error
        assert caught.value is error
        snapshot = await manager.read("op")
    (stage,) = snapshot.stages
    assert (stage.status, stage.error) == (snapshot.status, snapshot.error) == (status, text)


async def test_a_block_that_is_left_quietly_has_succeeded(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet(actor=Actor("me"))) as manager:
        with manager.stage("op", "copy", stage_id="s", parent="p", attributes={"a": 1}) as stage:
            stage.set_attributes({"b": 2})
        (found,) = (await manager.read("op")).stages
    assert (found.id, found.parent_id, found.actor, found.attributes) == ("s", "p", Actor("me"), {"a": 1, "b": 2})
    assert found.status is Status.SUCCEEDED
    assert found.elapsed_ns is not None


async def test_a_block_whose_stage_was_ended_inside_keeps_that_end(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        with manager.stage("op", "copy") as stage:
            stage.end("given up")
        assert (await manager.read("op")).stages[0].error == "given up"


async def test_a_cancelled_block_is_canceled(autojump_clock: MockClock) -> None:
    # parity 92, 94
    async with open_manager(config=quiet()) as manager:
        with trio.move_on_after(1), manager.operation("op", "job"), manager.stage("op", "copy"):
            await trio.sleep_forever()
        snapshot = await manager.read("op")
    assert snapshot.stages[0].status is snapshot.status is Status.CANCELED


async def test_a_child_has_its_parent_and_its_parents_actor(autojump_clock: MockClock) -> None:
    # parity 60
    async with open_manager(config=quiet(actor=Actor("me"))) as manager:
        with manager.stage("op", "parent", actor=Actor("you")) as parent:
            with parent.child("child", attributes={"a": 1}) as child, child.child("grandchild") as grandchild:
                pass
            with parent.child("other", stage_id="o", actor=Actor()) as other:
                pass
        (node,) = (await manager.read("op")).tree()
    assert [below.stage.name for below in node.children] == ["child", "other"]
    assert child.actor == grandchild.actor == Actor("you")
    assert (other.stage_id, other.actor) == ("o", Actor())
    assert node.children[0].children[0].stage.name == "grandchild"


async def test_the_current_stage_is_that_of_the_innermost_block(autojump_clock: MockClock) -> None:
    # parity 11
    assert current_stage() is None
    async with open_manager(config=quiet()) as manager:
        with manager.stage("op", "outer") as outer:
            assert current_stage() is outer
            with manager.stage("op", "inner") as inner:
                assert current_stage() is inner
                asked = manager.begin("op", "asked", parent=current_stage())
                plain = manager.begin("op", "plain")
            assert current_stage() is outer
            with pytest.raises(ValueError, match="x"), outer.child("failing"):
                raise ValueError("x")
            assert current_stage() is outer
        assert current_stage() is None
        snapshot = await manager.read("op")
    assert snapshot.stage(inner.stage_id).parent_id == ""  # type: ignore[union-attr]
    assert snapshot.stage(asked.stage_id).parent_id == inner.stage_id  # type: ignore[union-attr]
    assert snapshot.stage(plain.stage_id).parent_id == ""  # type: ignore[union-attr]


async def test_the_current_stage_reaches_the_tasks_and_threads_of_a_block_and_no_others(
    autojump_clock: MockClock,
) -> None:
    seen: dict[str, StageHandle | None] = {}
    both = trio.Event()

    async def work(name: str) -> None:
        with manager.stage("op", name) as stage:
            if name == "b":
                both.set()
            await both.wait()
            assert current_stage() is stage
            seen[f"{name} thread"] = await trio.to_thread.run_sync(current_stage)
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112 - another task is the point
                nursery.start_soon(look, f"{name} task")
            seen[name] = stage

    async def look(name: str) -> None:  # noqa: ASYNC124 - a task is to run it
        seen[name] = current_stage()

    async with open_manager(config=quiet()) as manager:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, "a")
            nursery.start_soon(work, "b")
        assert current_stage() is None
    assert seen["a"] is seen["a thread"] is seen["a task"]
    assert seen["b"] is seen["b thread"] is seen["b task"]
    assert seen["a"] is not seen["b"]


async def test_a_block_may_be_left_in_another_context_as_generators_do(autojump_clock: MockClock) -> None:
    errors = Errors()
    async with open_manager(config=quiet(on_error=errors)) as manager:

        def rows() -> Iterator[int]:
            with manager.stage("op", "rows"):
                yield 1

        iterator = rows()
        assert contextvars.copy_context().run(next, iterator) == 1
        assert list(iterator) == []
        assert (await manager.read("op")).stages[0].status is Status.SUCCEEDED
    assert errors.told == []


async def test_a_refused_begin_is_reported_and_the_body_runs_with_an_inert_handle(autojump_clock: MockClock) -> None:
    errors = Errors()
    async with open_manager(config=quiet(max_pending_updates=1, on_error=errors)) as manager:
        manager.begin("op", "first")
        with manager.stage("op", "second") as stage:
            assert not stage.accepted
            assert current_stage() is stage
            stage.set_attributes({"a": object()})
            stage.end("nothing")
            with stage.child("third") as child:
                assert not child.accepted
        assert (stage.stage_id, stage.actor, stage.opid) == ("", Actor(), "op")
        assert repr(stage) == "<StageHandle '' of 'op', refused>"
        assert [stage.name for stage in (await manager.read("op")).stages] == ["first"]
        assert errors.kinds == [BufferFull, BufferFull]
        assert manager.statistics().refused_updates == 2
        assert_counters_add_up(manager)
        await manager.flush("op")
        child_of_none = manager.begin("op", "fourth", parent=stage)
        assert child_of_none.begun is not None
        assert child_of_none.begun.parent_id == ""


async def test_a_refused_begin_leaves_the_outcome_of_the_body(autojump_clock: MockClock) -> None:
    errors = Errors()
    async with open_manager(config=quiet(on_error=errors)) as manager:
        with pytest.raises(LookupError, match="mine"), manager.stage("op", "copy", attributes={"a": b""}):
            raise LookupError("mine")
        with manager.stage(" bad opid", "copy") as stage:
            assert not stage.accepted
    assert errors.kinds == [InvalidAttribute, InvalidValue]
    assert [opid for opid, _ in errors.told] == ["op", " bad opid"]


async def test_a_refused_end_is_reported_and_leaves_the_outcome_of_the_body(autojump_clock: MockClock) -> None:
    errors = Errors()

    def redact(name: str, value: object) -> object:
        raise RuntimeError(name, value)

    async with open_manager(config=quiet(on_error=errors, redact=redact)) as manager:
        with pytest.raises(LookupError, match="mine"), manager.operation("op", "job"), manager.stage("op", "copy"):
            raise LookupError("mine")
        (stage,) = (await manager.read("op")).stages
        assert (await manager.read("op")).status is Status.FAILED
    assert (stage.status, stage.error) == (Status.FAILED, "")
    assert errors.kinds == [RuntimeError, RuntimeError]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x" * 5_000), Status.FAILED),
        (Canceled("x" * 5_000), Status.CANCELED),
        (ExceptionGroup("g", [TimeoutError("x" * 5_000)] * 20), Status.CANCELED),
    ],
)
async def test_an_end_whose_text_is_refused_is_reported_and_recorded_without_it(
    error: Exception, status: Status, autojump_clock: MockClock
) -> None:
    errors = Errors()
    async with open_manager(config=quiet(on_error=errors, max_fact_bytes=1_024)) as manager:
        with pytest.raises(type(error)), manager.operation("op", "job"), manager.stage("op", "copy"):
            raise error
        snapshot = await manager.read("op")
    (stage,) = snapshot.stages
    assert (stage.status, stage.error) == (snapshot.status, snapshot.error) == (status, "")
    assert errors.kinds == [InvalidValue, InvalidValue]


async def test_an_end_that_is_refused_for_another_reason_is_tried_and_counted_once(autojump_clock: MockClock) -> None:
    errors = Errors()
    async with open_manager(config=quiet(on_error=errors, max_pending_updates=1)) as manager:
        with pytest.raises(LookupError), manager.operation("op", "job"):
            raise LookupError
        assert manager.statistics().refused_updates == 1
    assert errors.kinds == [BufferFull]


async def test_a_raised_cancellation_ends_its_stage_whatever_its_text(autojump_clock: MockClock) -> None:
    errors = Errors()
    async with open_manager(config=quiet(on_error=errors)) as manager:
        with pytest.raises(Canceled), manager.stage("op", "copy"):
            raise Canceled("\ud800")
        (stage,) = (await manager.read("op")).stages
        assert (stage.status, stage.error) == (Status.CANCELED, "\\ud800")
        block = manager.stage("op", "left by hand")
        block.__enter__()
        block.__exit__(Canceled, Canceled("\ud800"), None)
        (stage,) = (await manager.read("op")).named("left by hand")
        assert (stage.status, stage.error) == (Status.CANCELED, "")
    assert errors.kinds == [InvalidValue]


@pytest.mark.parametrize("opid", [" bad opid", "\ud800", None, []])
async def test_the_reference_of_an_inert_handle_can_be_handed_over_and_means_no_parent(
    opid: Any, autojump_clock: MockClock
) -> None:
    async with open_manager(config=quiet(on_error=Errors())) as manager:
        with manager.stage(opid, "copy") as refused, manager.stage("op", "") as unnamed:
            for handle in (refused, unnamed, noop("op").begin("copy")):
                reference = StageRef.from_json(handle.ref.to_json())
                assert reference == StageRef.from_header(handle.ref.to_header()) == handle.ref
                assert reference.stage_id == ""
                for parent in (handle, reference):
                    child = manager.begin("op", "child", parent=parent)
                    assert child.begun is not None
                    assert child.begun.parent_id == ""
        assert unnamed.ref.opid == "op"


async def test_blocks_of_a_closed_manager_run_their_bodies(autojump_clock: MockClock) -> None:
    errors = Errors()
    async with open_manager(config=quiet(on_error=errors)) as manager:
        block = manager.stage("op", "left late")
        block.__enter__()
    ran: list[object] = []
    block.__exit__(None, None, None)
    with manager.stage("op", "copy"):
        ran.append(1)
    with manager.operation("op", "job") as handle:
        ran.append(2)
        with pytest.raises(ManagerClosed):
            handle.begin("copy")
    assert ran == [1, 2]
    assert errors.kinds == [ManagerClosed] * 4


async def test_an_operation_block_of_a_bad_opid_runs_its_body(autojump_clock: MockClock) -> None:
    errors = Errors()
    async with open_manager(config=quiet(on_error=errors)) as manager:
        with manager.operation(" op", "job") as handle, pytest.raises(InvalidValue):
            handle.begin("copy")
    assert errors.kinds == [InvalidValue, InvalidValue]


async def test_an_operation_block_starts_and_finishes_for_everybody(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet(actor=Actor("me"))) as manager:
        with manager.operation("op", "job", attributes={"a": 1}) as handle:
            assert handle.actor == Actor("me")
            handle.begin("copy").end()
            handle.set_attributes({"b": 2})
        snapshot = await handle.snapshot()
    assert (snapshot.name, snapshot.status, snapshot.attributes) == ("job", Status.SUCCEEDED, {"a": 1, "b": 2})
    assert [stage.actor for stage in snapshot.stages] == [Actor("me")]
    assert snapshot.collection.local_flushed


async def test_an_on_error_that_raises_is_contained(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def on_error(opid: str, error: Exception) -> None:
        raise RuntimeError(opid) from error

    async with open_manager(config=quiet(on_error=on_error)) as manager:
        with manager.stage("op", "") as stage:
            assert not stage.accepted
    assert [record.message for record in caplog.records] == ["timeline: on_error raised"]


async def test_an_on_error_that_records_in_vain_does_not_go_round_for_ever(autojump_clock: MockClock) -> None:
    told: list[Exception] = []

    def on_error(opid: str, error: Exception) -> None:
        told.append(error)
        with manager.stage(opid, ""):
            pass

    async with open_manager(config=quiet(on_error=on_error)) as manager:
        with manager.stage("op", ""):
            pass
        with manager.stage("op", ""):
            pass
    assert len(told) == 2
