"""
Tests of actors, stages, references, and of what is accepted as one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given

from timeline_trio._model._text import check_opid, one_line, printable_text
from timeline_trio._model._validation import check_boundary, check_completed, check_stage
from timeline_trio.model import (
    NO_ACTOR,
    Actor,
    InvalidAttribute,
    InvalidStage,
    InvalidValue,
    Stage,
    StageRef,
    Start,
    Status,
    root_id,
)

from . import strategies

GOOD = Stage.completed("work", 1, 3, id="s")


@given(strategies.actors, strategies.actors)
def test_actors_are_one_by_id_or_else_by_name(one: Actor, other: Actor) -> None:
    same = one.id == other.id and (bool(one.id) or one.name == other.name)
    assert (one.key == other.key) is same


def test_actor_keys_are_as_documented() -> None:
    assert [NO_ACTOR.key, Actor("x", "n").key, Actor("", "x").key] == ["", "id:x", "name:x"]


@given(strategies.opids)
def test_opid_is_accepted_whatever_its_script(opid: str) -> None:
    check_opid(opid)


@pytest.mark.parametrize(
    ("opid", "problem"),
    [
        ("", "1 to 191 characters, got 0"),
        ("x" * 192, "got 192"),
        (" a", "no space"),
        ("a\u3000", "no space"),
        ("a\nb", "control"),
        ("a\x00b", "control"),
        ("a\x7fb", "control"),
        ("a\x9fb", "control"),
        ("a\ud800", "surrogate at position 1"),
        (b"a", "got bytes"),
        (None, "got NoneType"),
    ],
)
def test_opid_that_databases_disagree_on_is_refused(opid: object, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem) as caught:
        check_opid(opid)
    assert caught.value.field == "opid"


def test_text_of_a_subclass_is_refused_but_an_enumeration_is_plain_text() -> None:
    class Label(str):
        __slots__ = ()

    with pytest.raises(InvalidValue, match="plain text, got Label"):
        check_opid(Label("op"))
    check_opid(Status.FAILED)


def test_unprintable_but_harmless_opid_is_accepted() -> None:
    check_opid("a\xadb\u200dc")


def test_text_of_other_programs_is_made_printable() -> None:
    assert printable_text("plain", 10) == "plain"
    assert printable_text("a\udcffb", 10) == "a\\udcffb"
    assert printable_text("x" * 12, 10) == "x" * 10 + "\N{HORIZONTAL ELLIPSIS} (2 more characters)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcödé \N{ZERO WIDTH JOINER}", "plain ünïcödé \N{ZERO WIDTH JOINER}"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2K\x07\x7f\x9b", r"\x1b[2K\x07\x7f\x9b"),
        ("\x0b\x0c\x1c\x85\u2028\u2029", r"\x0b\x0c\x1c\x85\u2028\u2029"),
        ("\u202egnol\u2066", r"\u202egnol\u2066"),
    ],
)
def test_text_is_shown_in_one_line_with_what_is_unruly_escaped(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert len(one_line(text).splitlines()) == 1


def test_completed_stage_takes_datetimes_and_attributes() -> None:
    stage = Stage.completed(
        "work",
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
        id="s",
        status=Status.FAILED,
        parent_id="p",
        actor=Actor("1"),
        error="no",
        code="E",
        elapsed_ns=5,
        attributes={"b": 1, "a": 2**70},
    )
    assert stage.attributes_json == '{"a":1180591620717411303424,"b":1}'
    assert stage.attributes == {"a": 2**70, "b": 1}
    assert stage.key == ("s", "id:1")
    assert (stage.started, stage.finished) == (
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
    )
    assert stage.duration(0) == 5


def test_duration_without_a_monotonic_length_is_a_difference() -> None:
    assert GOOD.duration(100) == 2
    running = Stage(id="s", name="work", started_at=10)
    assert running.duration(25) == 15
    assert running.finished is None


def test_status_knows_results() -> None:
    assert [status for status in Status if status.is_terminal] == list(strategies.TERMINAL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("id", None),
        ("id", "\ud800"),
        ("id", "operation:op"),
        ("name", ""),
        ("name", 1),
        ("parent_id", "s"),
        ("parent_id", None),
        ("error", "\ud800"),
        ("code", 5),
        ("actor", "me"),
        ("actor.id", Actor(1)),  # type: ignore[arg-type]
        ("actor.name", Actor("", "\ud800")),
        ("started_at", 1.0),
        ("started_at", 4),
        ("finished_at", None),
        ("finished_at", "now"),
        ("finished_at", strategies.EARLIEST),
        ("status", Status.RUNNING),
        ("status", Status.UNKNOWN),
        ("status", "odd"),
        ("status", None),
        ("elapsed_ns", -1),
        ("elapsed_ns", 1.0),
        ("elapsed_ns", True),
    ],
)
def test_completed_stage_that_breaks_a_rule_is_refused_by_field(field: str, value: Any) -> None:
    attribute = field.partition(".")[0]
    stage = msgspec.structs.replace(GOOD, **{attribute: value})
    with pytest.raises(InvalidStage) as caught:
        check_completed(stage, "op")
    expected = "finished_at" if (field, value) == ("started_at", 4) else field
    assert caught.value.field == expected


def test_completed_stage_in_canonical_form_is_returned() -> None:
    assert check_completed(GOOD) is GOOD
    loose = msgspec.structs.replace(GOOD, status="failed", attributes_json=' {"b": 1, "a": 2}')
    canonical = check_completed(loose)
    assert canonical.status is Status.FAILED
    assert canonical.attributes_json == '{"a":2,"b":1}'
    with pytest.raises(InvalidStage, match="expected a Stage, got dict"):
        check_completed({})  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="attributes_json"):
        check_completed(msgspec.structs.replace(GOOD, attributes_json="[1]"))
    with pytest.raises(InvalidAttribute, match="'k'"):
        check_completed(msgspec.structs.replace(GOOD, attributes_json='{"k":' + "[" * 30 + "]" * 30 + "}"))


def test_running_stage_may_not_have_a_result() -> None:
    check_stage(Stage(id="s", name="n", started_at=5))
    with pytest.raises(InvalidStage, match="running"):
        check_stage(Stage(id="s", name="n", started_at=5, status=Status.FAILED))


def test_live_stage_may_end_before_it_began() -> None:
    check_stage(msgspec.structs.replace(GOOD, started_at=100))


def test_boundary_needs_a_time_and_a_name() -> None:
    check_boundary(Start(name="n", at=5))
    with pytest.raises(InvalidValue, match="name"):
        check_boundary(Start(name="", at=5))
    with pytest.raises(InvalidValue, match="at"):
        check_boundary(Start(name="n", at=None))  # type: ignore[arg-type]


@given(strategies.opids, strategies.names, strategies.actors)
def test_reference_comes_back_from_json_and_header(opid: str, stage_id: str, actor: Actor) -> None:
    reference = StageRef(opid, stage_id, actor)
    assert StageRef.from_json(reference.to_json()) == reference
    header = reference.to_header()
    assert header.isascii()
    assert header.isprintable()
    assert StageRef.from_header(f" {header}\t") == reference


@pytest.mark.parametrize("opid", ["", "op", " no opid\n", "x" * 200])
def test_reference_to_no_stage_comes_back_whatever_its_opid(opid: str) -> None:
    reference = StageRef(opid, "")
    assert StageRef.from_json(reference.to_json()) == reference
    assert StageRef.from_header(reference.to_header()) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"opid":"","stage_id":"s"}',
        '{"opid":" ","stage_id":"s"}',
        '{"opid":"op","stage_id":"\ud800"}',
        b'{"opid":"op","stage_id":"\xff"}',
        '{"opid":"op","stage_id":"s","x":' + "[" * 100_000 + "]" * 100_000 + "}",
        5,
    ],
)
def test_bad_reference_in_json_is_refused(text: Any) -> None:
    with pytest.raises(InvalidValue):
        StageRef.from_json(text)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a",
        "a;b;c",
        "a;b;c;d;e",
        ";s;;",
        "%20op;s;;",
        "op;%ff;;",
        "op;%ed%a0%80;;",
        "op;%ZZ;;",
        "op;s;;%",
        "op;s;;\ud800",
        b"op;s;;",
        5,
    ],
)
def test_bad_reference_in_a_header_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue):
        StageRef.from_header(value)


@pytest.mark.parametrize(
    ("reference", "field"),
    [
        (StageRef(" ", "s"), "opid"),
        (StageRef("\ud800", ""), "opid"),
        (StageRef("op", "\ud800"), "stage_id"),
        (StageRef("op", "s", Actor("", "\ud800")), "actor.name"),
        (StageRef("op", 5), "stage_id"),  # type: ignore[arg-type]
    ],
)
def test_bad_reference_is_refused_before_it_is_written(reference: StageRef, field: str) -> None:
    for write in (reference.to_json, reference.to_header):
        with pytest.raises(InvalidValue) as caught:
            write()
        assert caught.value.field == field


def test_root_id_stands_for_the_operation() -> None:
    assert root_id("op") == "operation:op"


def test_attribute_is_returned_if_it_is_there_and_of_the_type() -> None:
    # parity 23
    stage = Stage.completed("n", 1, 2, id="s", attributes={"rows": 3, "table": "users", "dry": True, "none": None})
    assert stage.attribute("rows", int) == 3
    assert stage.attribute("table", str) == "users"
    assert stage.attribute("dry", bool) is True
    assert stage.attribute("rows", str) is None
    assert stage.attribute("dry", int) is None
    assert stage.attribute("none", str) is None
    assert stage.attribute("missing", int) is None
