"""
Tests of the merge of updates into documents.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from timeline_trio.model import (
    NO_ACTOR,
    Actor,
    Document,
    Finish,
    InvalidStage,
    InvalidValue,
    Stage,
    Start,
    Status,
    Update,
    encode_document,
    merge,
)

from . import strategies

EMPTY = Document(opid="op")
START = Start(name="deploy", at=5)
FINISH = Finish(at=9, status=Status.SUCCEEDED)


def stage(stage_id: str, actor: Actor = NO_ACTOR, *, name: str = "work", ended: bool = False) -> Stage:
    status = Status.SUCCEEDED if ended else Status.RUNNING
    return Stage(id=stage_id, name=name, started_at=1, finished_at=2 if ended else None, status=status, actor=actor)


@given(strategies.documents, strategies.updates)
def test_repeat_is_no_change(document: Document, update: Update) -> None:
    once, changed = merge(document, update)
    assert changed == (once != document)
    again, changed_again = merge(once, update)
    assert again is once
    assert not changed_again


@given(strategies.documents, strategies.updates)
def test_merge_leaves_its_input_alone(document: Document, update: Update) -> None:
    before = encode_document(document)
    merge(document, update)
    assert encode_document(document) == before


@given(strategies.documents, strategies.updates, strategies.updates)
def test_order_of_acceptance_decides(document: Document, first: Update, second: Update) -> None:
    merged, _ = merge(merge(document, first)[0], second)
    expected = {**document.stages, **{s.key: s for s in first.stages}, **{s.key: s for s in second.stages}}
    assert merged.stages == expected
    if second.start and not second.start.live:
        assert merged.start == second.start
    if second.finish and not second.finish.live:
        assert merged.finish == second.finish


@given(strategies.documents, strategies.updates, strategies.updates)
def test_disjoint_facts_may_come_in_any_order_and_grouping(document: Document, one: Update, two: Update) -> None:
    taken = {s.key for s in one.stages}
    two = Update(
        start=None if one.start else two.start,
        finish=None if one.finish else two.finish,
        stages=tuple(s for s in two.stages if s.key not in taken),
    )
    both = Update(start=one.start or two.start, finish=one.finish or two.finish, stages=(*one.stages, *two.stages))
    in_order = merge(merge(document, one)[0], two)[0]
    assert merge(merge(document, two)[0], one)[0] == in_order
    assert merge(document, both)[0] == in_order


@given(strategies.documents, strategies.updates)
def test_nothing_is_ever_removed(document: Document, update: Update) -> None:
    merged, _ = merge(document, update)
    assert merged.stages.keys() >= document.stages.keys()
    assert merged.start or not document.start
    assert merged.finish or not document.finish
    assert merged.extra_json == document.extra_json


def test_four_identities_of_actors_coexist() -> None:
    actors = (NO_ACTOR, Actor(id="1"), Actor(id="2"), Actor(name="1"))
    document, _ = merge(EMPTY, Update(stages=tuple(stage("s", actor) for actor in actors)))
    assert set(document.stages) == {("s", ""), ("s", "id:1"), ("s", "id:2"), ("s", "name:1")}


def test_new_label_of_an_actor_is_a_change_of_the_same_stage() -> None:
    document, _ = merge(EMPTY, Update(stages=(stage("s", Actor("1", "old")),)))
    relabelled, changed = merge(document, Update(stages=(stage("s", Actor("1", "new")),)))
    assert changed
    assert [s.actor.name for s in relabelled.stages.values()] == ["new"]


def test_boundaries_in_either_order_give_the_same_document() -> None:
    one = merge(merge(EMPTY, Update(start=START))[0], Update(finish=FINISH))[0]
    two = merge(merge(EMPTY, Update(finish=FINISH))[0], Update(start=START))[0]
    assert one == two
    assert (one.name, one.started_at, one.finished_at, one.status) == ("deploy", 5, 9, Status.SUCCEEDED)


def test_differing_finish_replaces_result_error_and_time_together() -> None:
    document, _ = merge(EMPTY, Update(finish=Finish(at=9, status=Status.FAILED, error="no")))
    document, changed = merge(document, Update(finish=Finish(at=3, status=Status.SUCCEEDED)))
    assert changed
    assert (document.finished_at, document.status, document.error) == (3, Status.SUCCEEDED, "")


def test_differing_start_replaces_name_and_attributes_together() -> None:
    document, _ = merge(EMPTY, Update(start=Start(name="a", at=1, attributes_json='{"x":1}')))
    document, _ = merge(document, Update(start=Start(name="b", at=2)))
    assert (document.name, document.attributes, document.started_at) == ("b", {}, 2)


def test_terminal_stage_can_be_reopened() -> None:
    document, _ = merge(EMPTY, Update(stages=(stage("s", ended=True),)))
    document, changed = merge(document, Update(stages=(stage("s"),)))
    assert changed
    assert document.stages["s", ""].status is Status.RUNNING


@pytest.mark.parametrize(
    ("known", "live", "kept"),
    [
        (None, ("a", ""), False),
        (("a", ""), ("a", ""), True),
        (("b", ""), ("a", ""), False),
        (("a", '{"x":1,"y":2}'), ("a", '{"x":1}'), True),
        (("a", '{"x":1}'), ("a", '{"x":1.0}'), False),
        (("a", ""), ("a", '{"x":1}'), False),
    ],
)
def test_live_start_that_says_no_more_keeps_the_known_time(
    known: tuple[str, str] | None,
    live: tuple[str, str],
    kept: bool,  # noqa: FBT001
) -> None:
    before = Start(name=known[0], at=1, attributes_json=known[1]) if known else None
    said = Start(name=live[0], at=9, attributes_json=live[1], live=True)
    document, changed = merge(msgspec.structs.replace(EMPTY, start=before), Update(start=said))
    assert changed is not kept
    assert document.start == (before if kept else msgspec.structs.replace(said, live=False))


def test_explicit_time_of_a_start_replaces_the_known_one() -> None:
    document, changed = merge(msgspec.structs.replace(EMPTY, start=START), Update(start=Start(name="deploy", at=6)))
    assert changed
    assert document.started_at == 6


@pytest.mark.parametrize(
    ("known", "kept"),
    [
        (None, False),
        (Finish(at=1, status=Status.FAILED, error="no"), True),
        (Finish(at=1, status=Status.FAILED, error="yes"), False),
        (Finish(at=1, status=Status.CANCELED, error="no"), False),
    ],
)
def test_live_finish_that_says_the_same_keeps_the_known_time(known: Finish | None, kept: bool) -> None:  # noqa: FBT001
    live = Finish(at=9, status=Status.FAILED, error="no", live=True)
    document, changed = merge(msgspec.structs.replace(EMPTY, finish=known), Update(finish=live))
    assert changed is not kept
    assert document.finish == (known if kept else msgspec.structs.replace(live, live=False))


def test_equal_attributes_in_another_order_are_no_change() -> None:
    document, _ = merge(EMPTY, Update(start=Start(name="a", at=1, attributes_json='{"a":1,"b":{"c":[]}}')))
    assert not merge(document, Update(start=Start(name="a", at=1, attributes_json='{"a":1,"b":{"c":[]}}')))[1]


@pytest.mark.parametrize(
    "update",
    [
        Update(start=START, stages=(stage("a"), stage("b", name=""))),
        Update(stages=(stage("a"), stage("operation:op"))),
        Update(start=Start(name="", at=1), stages=(stage("a"),)),
        Update(start=Start(name="n", at=10**30), stages=(stage("a"),)),
        Update(finish=Finish(at=strategies.EARLIEST, status=Status.FAILED), stages=(stage("a"),)),
        Update(finish=Finish(at=1, status=Status.UNKNOWN), stages=(stage("a"),)),
        Update(finish=Finish(at=1, status=Status.FAILED, error="\ud800"), stages=(stage("a"),)),
    ],
)
def test_invalid_item_refuses_the_whole_update(update: Update) -> None:
    document = merge(EMPTY, Update(stages=(stage("known"),)))[0]
    with pytest.raises(InvalidValue):
        merge(document, update)
    assert set(document.stages) == {("known", "")}


def test_invalid_opid_is_refused() -> None:
    with pytest.raises(InvalidValue, match="opid"):
        merge(Document(opid=" x"), Update())


def test_document_answers_for_what_is_absent() -> None:
    assert EMPTY.root_id == "operation:op"
    assert (EMPTY.name, EMPTY.started_at, EMPTY.finished_at, EMPTY.error) == ("", None, None, "")
    assert EMPTY.status is Status.UNKNOWN
    assert EMPTY.attributes == {}
    with pytest.raises(InvalidStage):
        merge(EMPTY, Update(stages=(stage(""),)))
