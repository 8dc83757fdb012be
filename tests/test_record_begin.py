"""
Tests of beginning stages: through a manager, whose facts are read back without any Store.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from timeline_trio import (
    Actor,
    BufferFull,
    InvalidAttribute,
    InvalidStage,
    InvalidValue,
    ManagerClosed,
    Stage,
    StageRef,
    Status,
    open_manager,
)
from timeline_trio.testing import ManualClock

from .recording import NEW_YEAR, SECOND, Errors, completed, quiet
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock


class Step(StrEnum):
    BUILD = "build"


class Label(str):
    __slots__ = ()


async def test_a_stage_runs_from_its_begin_with_an_id_of_its_own(autojump_clock: MockClock) -> None:
    clock = ManualClock()
    async with open_manager(config=quiet(clock=clock)) as manager:
        first, second = manager.begin("op", "copy"), manager.begin("op", "copy")
        snapshot = await manager.read("op")
    assert first.stage_id != second.stage_id
    assert UUID(first.stage_id).version == 4
    assert [stage.status for stage in snapshot.stages] == [Status.RUNNING, Status.RUNNING]
    stage = snapshot.stage(first.stage_id)
    assert stage == Stage(id=first.stage_id, name="copy", started_at=NEW_YEAR)


async def test_everything_given_at_begin_and_end_is_kept(autojump_clock: MockClock) -> None:
    # parity 7
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin(
            "op",
            "copy",
            stage_id="s",
            parent="p",
            actor=Actor("7", "worker"),
            started_at=datetime(2026, 1, 1, tzinfo=UTC),
            attributes={"a": 1, "b": 2},
        )
        handle.set_attributes({"b": 3, "c": 4})
        handle.end("broken", code="E7", ended_at=NEW_YEAR + SECOND, attributes={"c": 5, "d": 6})
        (stage,) = (await manager.read("op")).stages
    assert stage.attributes == {"a": 1, "b": 3, "c": 5, "d": 6}
    assert (stage.id, stage.parent_id, stage.actor) == ("s", "p", Actor("7", "worker"))
    assert (stage.started_at, stage.finished_at) == (NEW_YEAR, NEW_YEAR + SECOND)
    assert (stage.status, stage.error, stage.code) == (Status.FAILED, "broken", "E7")
    assert stage.elapsed_ns is None


async def test_ids_and_times_come_from_the_options(autojump_clock: MockClock) -> None:
    ids = iter(["one", "two"])
    config = quiet(clock=ManualClock(), new_id=lambda: next(ids), actor=Actor(name="host"))
    async with open_manager(config=config) as manager:
        first = manager.begin("op", "copy")
        second = manager.begin("op", "copy", actor=Actor())
    assert (first.stage_id, first.actor) == ("one", Actor(name="host"))
    assert (second.stage_id, second.actor) == ("two", Actor())


@pytest.mark.parametrize("parent", ["p", StageRef("op", "p", Actor("x")), "handle"])
async def test_a_parent_is_an_id_a_reference_or_a_handle(parent: str | StageRef, autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "parent", stage_id="p")
        child = manager.begin("op", "child", stage_id="c", parent=handle if parent == "handle" else parent)
        snapshot = await manager.read("op")
    assert child.begun is not None
    assert child.begun.parent_id == "p"
    (node,) = snapshot.tree()
    assert [below.stage.id for below in node.children] == ["c"]


async def test_a_stage_of_another_operation_is_no_parent(autojump_clock: MockClock) -> None:
    # parity 12, 95
    async with open_manager(config=quiet()) as manager:
        foreign = manager.begin("other", "parent")
        manager.begin("op", "child", parent=foreign)
        manager.begin("op", "child", parent=foreign.ref)
        assert [stage.parent_id for stage in (await manager.read("op")).stages] == ["", ""]


async def test_a_missing_parent_is_accepted_and_may_come_late(autojump_clock: MockClock) -> None:
    # parity 10
    async with open_manager(config=quiet()) as manager:
        manager.begin("op", "live child", stage_id="c", parent="p", started_at=NEW_YEAR + 5)
        manager.record("op", Stage.completed("old child", NEW_YEAR, NEW_YEAR, id="d", parent_id="q"))
        snapshot = await manager.read("op")
        assert [(node.stage.id, node.orphan) for node in snapshot.tree()] == [("d", True), ("c", True)]
        assert "live child" in snapshot.summary()
        assert "old child" in snapshot.summary()
        manager.begin("op", "parent", stage_id="p", started_at=NEW_YEAR + 6)
        snapshot = await manager.read("op")
    orphan, parent = snapshot.tree()
    assert (orphan.stage.parent_id, parent.stage.parent_id) == ("q", "")
    assert [child.stage.id for child in parent.children] == ["c"]


async def test_the_root_can_be_a_parent_and_never_a_stage(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        root = manager.writer("op").root_id
        manager.begin("op", "child", parent=root)
        (node,) = (await manager.read("op")).tree()
        assert not node.orphan
        with pytest.raises(InvalidStage) as caught:
            manager.begin("op", "child", stage_id=root)
        assert caught.value.field == "stage_id"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"name": Label("copy")}, "name"),
        ({"stage_id": ""}, "stage_id"),
        ({"stage_id": "\ud800"}, "stage_id"),
        ({"stage_id": "s", "parent": "s"}, "parent_id"),
        ({"parent": 7}, "parent"),
        ({"parent": "\ud800"}, "parent"),
        ({"parent": StageRef("op", "\ud800")}, "parent"),
        ({"actor": "me"}, "actor"),
        ({"actor": Actor(id="\ud800")}, "actor.id"),
        ({"started_at": datetime(2026, 1, 1)}, "started_at"),  # noqa: DTZ001 - a naive time is refused
        ({"started_at": 1.5}, "started_at"),
        ({"attributes": [1]}, "attributes"),
        ({"attributes": []}, "attributes"),
        ({"attributes": 0}, "attributes"),
        ({"attributes": {"a": float("nan")}}, "attributes['a']"),
        ({"attributes": {"a": object()}}, "attributes['a']"),
        ({"attributes": {1: 2}}, "attributes['1']"),
        ({"opid": ""}, "opid"),
        ({"opid": " op"}, "opid"),
        ({"opid": "x" * 192}, "opid"),
        ({"opid": "a\nb"}, "opid"),
        ({"opid": None}, "opid"),
        ({"opid": []}, "opid"),
        ({"opid": {}}, "opid"),
    ],
)
async def test_a_bad_argument_is_refused_by_name_and_leaves_nothing(
    arguments: dict[str, object], field: str, autojump_clock: MockClock
) -> None:
    async with open_manager(config=quiet()) as manager:
        with pytest.raises(InvalidValue) as caught:
            manager.begin(**({"opid": "op", "name": "copy"} | arguments))  # type: ignore[arg-type]
        assert caught.value.field == field
        statistics = manager.statistics()
    assert (statistics.accepted_updates, statistics.cached_timelines, statistics.refused_updates) == (0, 0, 0)


async def test_a_bad_id_of_the_callers_source_is_refused(autojump_clock: MockClock) -> None:
    for bad in (7, "", "\ud800"):
        async with open_manager(config=quiet(new_id=lambda bad=bad: bad)) as manager:
            with pytest.raises(InvalidValue):
                manager.begin("op", "copy")
            assert manager.statistics().cached_timelines == 0


async def test_an_enumeration_of_text_is_a_name(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        manager.begin("op", Step.BUILD, attributes={"step": Step.BUILD})
        (stage,) = (await manager.read("op")).stages
    assert stage.name == "build"
    assert stage.attributes == {"step": "build"}


async def test_what_the_caller_changes_afterwards_is_not_seen(autojump_clock: MockClock) -> None:
    # parity 4, 16, 43
    attributes: dict[str, object] = {"big": 2**64 - 1, "list": [1]}
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "copy", attributes=attributes)
        attributes["list"].append(2)  # type: ignore[attr-defined]
        attributes["new"] = 1
        before = await manager.read("op")
        before.stages[0].attributes["big"] = 0
        handle.set_attributes({"more": True})
        assert before.stages[0].attributes == {"big": 2**64 - 1, "list": [1]}
        after = await manager.read("op")
    assert after.stages[0].attributes == {"big": 2**64 - 1, "list": [1], "more": True}
    assert type(after).from_json(after.to_json()) == after


async def test_beginning_a_key_anew_makes_older_handles_inert(autojump_clock: MockClock) -> None:
    clock = ManualClock()
    async with open_manager(config=quiet(clock=clock)) as manager:
        older = manager.begin("op", "copy", stage_id="s", attributes={"try": 1})
        clock.advance(1)
        newer = manager.begin("op", "copy again", stage_id="s")
        older.set_attributes({"lost": True})
        older.end("lost")
        (stage,) = (await manager.read("op")).stages
        assert stage == Stage(id="s", name="copy again", started_at=NEW_YEAR + SECOND)
        newer.end()
        (stage,) = (await manager.read("op")).stages
    assert stage.status is Status.SUCCEEDED
    assert repr(older) == "<StageHandle 'copy' of 'op', replaced>"
    assert repr(newer) == "<StageHandle 'copy again' of 'op', ended>"
    assert older.accepted


async def test_several_actors_work_on_one_stage_id(autojump_clock: MockClock) -> None:
    # parity 73, 90
    actors = [Actor(), Actor("1"), Actor("2"), Actor(name="1")]
    async with open_manager(config=quiet()) as manager:
        handles = [manager.begin("op", "copy", stage_id="s", actor=actor) for actor in actors]
        handles[1].end("broken")
        handles[3].end()
        snapshot = await manager.read("op")
    found = {stage.actor: stage.status for stage in snapshot.stages}
    assert found == {
        Actor(): Status.RUNNING,
        Actor("1"): Status.FAILED,
        Actor("2"): Status.RUNNING,
        Actor(name="1"): Status.SUCCEEDED,
    }


async def test_nothing_is_recorded_in_json_for_those_who_name_no_actor(autojump_clock: MockClock) -> None:
    # parity 2
    async with open_manager(config=quiet()) as manager:
        manager.begin("op", "live")
        manager.record("op", completed())
        snapshot = await manager.read("op")
    assert "actor" not in snapshot.to_json()
    assert {stage.actor for stage in type(snapshot).from_json(snapshot.to_json()).stages} == {Actor()}


async def test_a_full_buffer_refuses_and_says_which_bound(autojump_clock: MockClock) -> None:
    errors = Errors()
    async with open_manager(config=quiet(max_pending_updates=1, on_error=errors)) as manager:
        manager.begin("op", "one", stage_id="1")
        with pytest.raises(BufferFull) as caught:
            manager.begin("op", "two", stage_id="2")
        assert (caught.value.opid, caught.value.option, caught.value.limit) == ("op", "max_pending_updates", 1)
        assert "raise max_pending_updates" in str(caught.value)
        manager.begin("op", "one", stage_id="1")
        assert manager.statistics().refused_updates == 1
        assert_counters_add_up(manager)
        assert [stage.name for stage in (await manager.read("op")).stages] == ["one"]
    assert errors.told == []


async def test_a_closed_manager_refuses(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "copy")
    for call in (
        lambda: manager.begin("op", "copy"),
        lambda: manager.record("op", completed()),
        lambda: manager.start("op", "job"),
        lambda: manager.finish("op"),
        lambda: manager.writer("op"),
        lambda: handle.set_attributes({"a": 1}),
        handle.end,
    ):
        with pytest.raises(ManagerClosed):
            call()
    assert manager.statistics().refused_updates == 6
    assert_counters_add_up(manager)


@pytest.mark.parametrize("which", ["begin", "set", "end", "start", "finish", "record", "operation"])
async def test_a_fact_that_is_too_large_is_refused_at_the_call(which: str, autojump_clock: MockClock) -> None:
    large = {"large": "x" * 2000}
    async with open_manager(config=quiet(max_fact_bytes=2000)) as manager:
        handle = manager.begin("op", "copy", stage_id="s")
        manager.start("op", "job")
        before = await manager.read("op")
        calls: dict[str, Callable[[], object]] = {
            "begin": lambda: manager.begin("op", "n", attributes=large),
            "set": lambda: handle.set_attributes(large),
            "end": lambda: handle.end("e" * 2000),
            "start": lambda: manager.start("op", "n", attributes=large),
            "finish": lambda: manager.finish("op", "e" * 2000),
            "record": lambda: manager.record("op", Stage.completed("n", 1, 2, id="x", attributes=large)),
            "operation": lambda: manager.writer("op").set_attributes(large),
        }
        with pytest.raises(InvalidValue, match="max_fact_bytes=2000") as caught:
            calls[which]()
        assert caught.value.field == "fact"
        assert (await manager.read("op")).document == before.document
        handle.end()


async def test_a_fact_just_within_the_bound_is_taken(autojump_clock: MockClock) -> None:
    async with open_manager(config=quiet(max_fact_bytes=2000)) as manager:
        manager.begin("op", "copy", attributes={"text": "x" * 1700})
        manager.finish("op", "e" * 1700)
        assert manager.statistics().accepted_updates == 2


async def test_attributes_and_error_texts_are_redacted_before_they_are_encoded(autojump_clock: MockClock) -> None:
    def redact(name: str, value: object) -> object:
        return "***" if name in {"password", "error"} else value

    async with open_manager(config=quiet(redact=redact)) as manager:
        handle = manager.begin("op", "copy", attributes={"password": object(), "user": "me"})
        handle.set_attributes({"password": "secret"})
        handle.end("secret", attributes={"password": "secret"})
        manager.record(
            "op",
            Stage.completed("old", 1, 2, id="old", status=Status.FAILED, error="secret", attributes={"password": 1}),
        )
        manager.start("op", "job", attributes={"password": "secret"})
        manager.writer("op").set_attributes({"password": "secret", "x": 1})
        manager.finish("op", ValueError("secret"))
        snapshot = await manager.read("op")
    assert "secret" not in snapshot.to_json()
    assert snapshot.attributes == {"password": "***", "x": 1}
    assert {stage.error for stage in snapshot.stages} == {"***"}
    assert snapshot.stages[1].attributes == {"password": "***", "user": "me"}
    assert snapshot.error == "***"


async def test_a_redaction_that_fails_or_returns_no_text_refuses_the_call(autojump_clock: MockClock) -> None:
    def redact(name: str, value: object) -> object:
        if name == "error":
            return 5
        raise LookupError(value)

    async with open_manager(config=quiet(redact=redact)) as manager:
        handle = manager.begin("op", "copy")
        with pytest.raises(LookupError):
            handle.set_attributes({"a": 1})
        for bad in ([1], [], 0):
            with pytest.raises(InvalidValue, match="attributes: expected a mapping"):
                handle.end(attributes=bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue):
            handle.end("bad")
        handle.end()
        assert manager.statistics().accepted_updates == 2


async def test_an_attribute_that_json_cannot_hold_names_its_key(autojump_clock: MockClock) -> None:
    # parity 16, 66
    async with open_manager(config=quiet()) as manager:
        handle = manager.begin("op", "copy")
        with pytest.raises(InvalidAttribute) as caught:
            handle.set_attributes({"good": 1, "bad": b""})
        assert caught.value.key == "bad"
        with pytest.raises(InvalidAttribute):
            handle.end(attributes={"bad": {1, 2}})
        with pytest.raises(InvalidAttribute):
            manager.start("op", "job", attributes={"bad": float("inf")})
        handle.end()
        snapshot = await manager.read("op")
    assert snapshot.stages[0].status is Status.SUCCEEDED
    assert snapshot.stages[0].attributes == {}
    assert snapshot.started_at is None
