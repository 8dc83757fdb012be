"""
Tests of the payload: documents, snapshots and stages as JSON.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from timeline_trio.model import (
    NO_ACTOR,
    Actor,
    Collection,
    Document,
    Finish,
    InvalidStage,
    InvalidValue,
    Snapshot,
    Stage,
    Start,
    Status,
    Update,
    decode_document,
    decode_stage,
    encode_document,
    encode_stage,
    merge,
)

from . import strategies

BEGUN = "2026-01-01T00:00:00Z"
ENDED = "2026-01-01T00:00:01.5Z"
NS = 1_767_225_600_000_000_000


def stage_members(**members: object) -> dict[str, object]:
    return {"id": "s", "parent_id": "", "name": "work", "started_at": BEGUN, "status": "running", **members}


def payload(*stages: dict[str, object], **members: object) -> str:
    return json.dumps({"id": "op", "root_stage_id": "operation:op", "stages": list(stages), **members})


def as_json(document: Document) -> dict[str, Any]:
    decoded = json.loads(encode_document(document))
    assert isinstance(decoded, dict)
    return decoded


@given(strategies.documents)
def test_document_comes_back_and_its_text_is_stable(document: Document) -> None:
    text = encode_document(document)
    decoded = decode_document(text)
    assert decoded == document
    assert encode_document(decoded) == text
    assert decode_document(text.encode()) == document


@given(strategies.documents)
def test_reformatted_document_is_no_change(document: Document) -> None:
    members = msgspec.json.decode(encode_document(document), type=dict[str, msgspec.Raw])
    reordered = msgspec.json.encode(dict(reversed(members.items())))
    reformatted = decode_document(msgspec.json.format(reordered, indent=3))
    assert reformatted == document
    facts = Update(start=document.start, finish=document.finish, stages=tuple(reformatted.stages.values()))
    assert merge(document, facts) == (document, False)


@given(strategies.stages)
def test_stage_by_itself_comes_back(stage: Stage) -> None:
    text = encode_stage(stage)
    assert decode_stage(text) == stage
    assert encode_stage(decode_stage(text)) == text
    assert "actor_ref" not in json.loads(text)


@given(strategies.documents, strategies.times)
def test_snapshot_comes_back(document: Document, captured_at: int) -> None:
    snapshot = Snapshot(document, captured_at, Collection(local_flushed=True, store_read=False))
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_payload_has_the_documented_members() -> None:
    stage = Stage(
        id="s",
        name="work",
        started_at=NS,
        finished_at=NS + 1_500_000_000,
        status=Status.FAILED,
        parent_id="p",
        actor=Actor("1", "one"),
        error="no",
        code="E1",
        elapsed_ns=7,
        attributes_json='{"a":1}',
    )
    document = Document(
        opid="op",
        start=Start(name="deploy", at=NS, attributes_json='{"b":[1]}'),
        finish=Finish(at=NS, status=Status.CANCELED, error="stop"),
        stages={stage.key: stage},
    )
    assert as_json(document) == {
        "id": "op",
        "root_stage_id": "operation:op",
        "operation": "deploy",
        "started_at": BEGUN,
        "finished_at": BEGUN,
        "status": "canceled",
        "error": "stop",
        "attributes": {"b": [1]},
        "actors": [{"id": "1", "name": "one"}],
        "stages": [
            {
                "id": "s",
                "parent_id": "p",
                "actor_ref": 1,
                "elapsed_ns": 7,
                "name": "work",
                "started_at": BEGUN,
                "finished_at": ENDED,
                "status": "failed",
                "error": "no",
                "code": "E1",
                "attributes": {"a": 1},
            }
        ],
    }


def test_absent_things_are_left_out() -> None:
    stage = Stage(id="s", name="work", started_at=NS)
    assert as_json(Document(opid="op")) == {"id": "op", "root_stage_id": "operation:op", "stages": []}
    assert as_json(Document(opid="op", stages={stage.key: stage}))["stages"] == [stage_members()]


def test_each_actor_is_written_once_and_none_means_no_table() -> None:
    one, two = Actor("1", "one"), Actor("1", "label")
    actors = (one, two, NO_ACTOR, one)
    stages = [Stage(id=str(n), name="x", started_at=0, actor=actor) for n, actor in enumerate(actors)]
    written = as_json(Document(opid="op", stages={stage.key: stage for stage in stages}))
    assert written["actors"] == [{"id": "1", "name": "one"}, {"id": "1", "name": "label"}]
    assert [stage.get("actor_ref") for stage in written["stages"]] == [1, 2, None, 1]
    assert not any("actor" in stage for stage in written["stages"])
    assert "actors" not in as_json(Document(opid="op", stages={("2", ""): stages[2]}))


def test_references_are_numbered_anew_on_each_writing() -> None:
    text = payload(
        stage_members(id="a", actor_ref=2),
        stage_members(id="b", actor_ref=3),
        actors=[{"id": "unused", "name": ""}, {"id": "x", "name": ""}, {"id": "y", "name": ""}],
    )
    document = decode_document(text)
    assert as_json(document)["actors"] == [{"id": "x", "name": ""}, {"id": "y", "name": ""}]
    replay = Update(stages=tuple(document.stages.values()))
    assert merge(document, replay) == (document, False)
    other = Stage(id="a", name="work", started_at=NS, actor=Actor("z"))
    assert len(merge(document, Update(stages=(other,)))[0].stages) == 3


def test_table_of_actors_makes_the_payload_smaller() -> None:
    actor = Actor("instance-0123456789", "host.example.org")
    stages = [Stage(id=str(number), name="x", started_at=NS, actor=actor) for number in range(100)]
    with_table = encode_document(Document(opid="op", stages={stage.key: stage for stage in stages}))
    assert len(with_table) < sum(len(encode_stage(stage)) for stage in stages)


@pytest.mark.parametrize("reference", [-1, 3, 2, 10**6])
@pytest.mark.parametrize("snapshot", [False, True])
def test_bad_reference_refuses_the_whole_payload(reference: int, snapshot: bool) -> None:  # noqa: FBT001
    actors = [{"id": "1", "name": ""}, {"id": "", "name": ""}]
    extra = {"captured_at": BEGUN, "collection": {"local_flushed": True, "store_read": True}} if snapshot else {}
    text = payload(stage_members(id="good"), stage_members(actor_ref=reference), actors=actors, **extra)
    with pytest.raises(InvalidStage, match=r"stages\[1\]\.actor_ref") as caught:
        Snapshot.from_json(text) if snapshot else decode_document(text)
    assert caught.value.field == "stages[1].actor_ref"


def test_reference_without_a_table_or_beside_an_actor_is_refused() -> None:
    with pytest.raises(InvalidStage, match="table of 0 actors"):
        decode_document(payload(stage_members(actor_ref=1)))
    with pytest.raises(InvalidStage, match="not both"):
        decode_document(payload(stage_members(actor_ref=1, actor={"id": "1"}), actors=[{"id": "1"}]))
    with pytest.raises(InvalidStage, match="table of 0 actors"):
        decode_stage(json.dumps(stage_members(actor_ref=1)))


@pytest.mark.parametrize("actors", [None, []])
def test_reference_of_zero_means_no_actor(actors: list[object] | None) -> None:
    document = decode_document(payload(stage_members(actor_ref=0), actors=actors))
    assert document.stages["s", ""].actor == NO_ACTOR


def test_inline_actor_is_read() -> None:
    assert decode_document(payload(stage_members(actor={"name": "n"}))).stages["s", "name:n"].actor == Actor("", "n")


def test_older_spellings_are_read_and_never_written() -> None:
    old = payload(
        stage_members(fields={"b": 1, "a": 2}, finished_at="0001-01-01T00:00:00Z", revision=7, error=None),
        operation="deploy",
        started_at=BEGUN,
        finished_at="0001-01-01T00:00:00Z",
        status="",
        fields={"y": [], "x": None},
        revision=3,
        attributes=None,
        actors=None,
    )
    document = decode_document(old)
    assert document.finish is None
    assert document.start == Start(name="deploy", at=NS, attributes_json='{"x":null,"y":[]}')
    stage = document.stages["s", ""]
    assert stage == Stage(id="s", name="work", started_at=NS, attributes_json='{"a":2,"b":1}')
    written = encode_document(document)
    assert "fields" not in written
    assert "revision" not in written
    assert decode_document(written) == document
    assert decode_stage(json.dumps(stage_members(fields={"b": 1, "a": 2}))) == stage


@pytest.mark.parametrize(
    "none",
    ["0001-01-01T00:00:00.000Z", "0001-01-01t00:00:00z", "0001-01-01T00:00:00-00:00", "0001-01-01T02:00:00+02:00"],
)
def test_no_finish_is_read_in_any_spelling_and_never_written(none: str) -> None:
    document = decode_document(payload(stage_members(finished_at=none), finished_at=none, status="failed"))
    assert document.finish is None
    assert document.stages["s", ""].finished_at is None
    written = encode_document(document)
    assert "finished_at" not in written
    assert encode_document(decode_document(written)) == written


def test_snapshot_reads_older_spellings_too() -> None:
    old = payload(
        stage_members(fields={"a": 1}),
        started_at=BEGUN,
        fields={"b": 2},
        captured_at=BEGUN,
        collection={"local_flushed": True, "store_read": True},
    )
    snapshot = Snapshot.from_json(old)
    assert snapshot.attributes == {"b": 2}
    assert snapshot.stages[0].attributes == {"a": 1}


@pytest.mark.parametrize(("attributes", "expected"), [({"a": 1}, '{"a":1}'), ({}, ""), (None, '{"old":1}')])
def test_attributes_beat_fields_even_if_empty(attributes: object, expected: str) -> None:
    members = {"attributes": attributes, "fields": {"old": 1}}
    document = decode_document(payload(stage_members(**members), started_at=BEGUN, **members))
    assert document.start is not None
    assert document.start.attributes_json == expected
    assert document.stages["s", ""].attributes_json == expected


def test_attributes_of_null_are_none() -> None:
    stage = decode_document(payload(stage_members(attributes=None, fields=None))).stages["s", ""]
    assert stage.attributes == {}


def test_start_of_an_older_writer_may_lack_a_name() -> None:
    document = decode_document(payload(started_at=BEGUN))
    assert document.start == Start(name="", at=NS)
    assert decode_document(encode_document(document)) == document


def test_unknown_members_are_kept_with_their_record() -> None:
    text = payload(stage_members(later={"b": 1, "a": [1.0]}), stage_members(id="t"), newer=[10**30], x=None)
    document = decode_document(text)
    assert document.extra_json == '{"newer":[1000000000000000000000000000000],"x":null}'
    assert document.stages["s", ""].extra_json == '{"later":{"a":[1.0],"b":1}}'
    changed, _ = merge(document, Update(start=Start(name="n", at=0), stages=(Stage(id="t", name="x", started_at=0),)))
    written = as_json(changed)
    assert written["newer"] == [10**30]
    assert written["x"] is None
    assert written["stages"][0]["later"] == {"a": [1.0], "b": 1}
    assert "later" not in written["stages"][1]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "payload"),
        ("null", "payload"),
        ("[]", "payload"),
        ("{}", "payload"),
        ('{"id":"op","stages":[],', "payload"),
        ('"\ud800"', "payload"),
        (b'{"id":"\xff"}', "payload"),
        ('{"id":1}', "payload"),
        ('{"id":""}', "id"),
        ('{"id":" op"}', "id"),
        ('{"id":"op","stages":{}}', "stages"),
        ('{"id":"op","stages":[1]}', "stages[0]"),
        (b'{"id":"op","stages":[{"id":"\xff"}]}', "stages[0]"),
        ('{"id":"op","operation":"n"}', "started_at"),
        ('{"id":"op","attributes":{"a":1}}', "started_at"),
        ('{"id":"op","started_at":"yesterday"}', "started_at"),
        ('{"id":"op","attributes":[],"started_at":"2026-01-01T00:00:00Z"}', "attributes"),
        ('{"id":"op","finished_at":"2026-01-01T00:00:00Z"}', "status"),
        ('{"id":"op","finished_at":"2026-01-01T00:00:00Z","status":"running"}', "status"),
        ('{"id":"op","finished_at":"2026-01-01T00:00:00Z","status":"odd"}', "status"),
        ('{"id":"op","captured_at":"now"}', "captured_at"),
        (payload(stage_members(status="odd")), "stages[0].status"),
        (payload(stage_members(status="succeeded")), "stages[0].status"),
        (payload(stage_members(finished_at=ENDED)), "stages[0].status"),
        (payload(stage_members(started_at="2026-13-01T00:00:00Z")), "stages[0].started_at"),
        (payload(stage_members(elapsed_ns=-1)), "stages[0].elapsed_ns"),
        (payload(stage_members(elapsed_ns=1.5)), "stages[0]"),
        (payload(stage_members(id="")), "stages[0].id"),
        (payload(stage_members(id="operation:op")), "stages[0].id"),
        (payload(stage_members(parent_id="s")), "stages[0].parent_id"),
        (payload(stage_members(name="")), "stages[0].name"),
        (payload(stage_members(attributes=[1])), "stages[0].attributes"),
        ('{"x":' + "[" * 100_000 + "]" * 100_000 + "}", "payload"),
    ],
)
def test_bad_payload_is_refused_naming_the_member(text: str | bytes, field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_document(text)
    assert caught.value.field == field


@pytest.mark.parametrize("text", [payload(), payload(captured_at=BEGUN)])
def test_document_is_no_snapshot(text: str) -> None:
    with pytest.raises(InvalidValue, match="captured_at"):
        Snapshot.from_json(text)


def test_errors_quote_no_content() -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_document(payload(stage_members(error="secret", started_at="secret", name="secret")))
    assert "secret" not in str(caught.value)
