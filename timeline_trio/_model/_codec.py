"""
The payload: a document as JSON text, for stores and for other programs.

Actors are written once, in a table that is local to the payload; stages point into it by a 1-based `actor_ref`.
Older spellings are read and never written. Members that this version does not know are kept with their record and
written back, so that processes of different versions lose nothing of each other's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from .._errors import InvalidStage, InvalidValue
from ._document import Document
from ._json import canonical_object
from ._text import check_opid
from ._time import NO_TIME, format_time, parse_time
from ._validation import check_state
from ._values import NO_ACTOR, Actor, Finish, Stage, StageKey, Start, Status
from ._wire import NONE, Collection, DocumentIn, DocumentOut, StageIn, StageOut

if TYPE_CHECKING:
    from collections.abc import Iterable

_Record = TypeVar("_Record", StageIn, DocumentIn)

_encode: Final = msgspec.json.Encoder().encode
_decode_stages: Final = msgspec.json.Decoder(list[StageIn]).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_STATUSES: Final = {status.value: status for status in Status}
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


def encode_document(document: Document) -> str:
    """
    Write a document as JSON text. Decoding and encoding it again gives the same text.
    """
    return encode_payload(document, document.stages.values())


def encode_payload(
    document: Document,
    stages: Iterable[Stage],
    captured_at: int | None = None,
    collection: Collection | None = None,
) -> str:
    """
    Write a document with its stages in the given order; a snapshot adds when and how it was captured.
    """
    table: dict[Actor, int] = {}
    rows = [
        _stage_out(stage, actor_ref=table.setdefault(stage.actor, len(table) + 1) if stage.actor != NO_ACTOR else 0)
        for stage in stages
    ]
    start, finish = document.start, document.finish
    out = DocumentOut(
        id=document.opid,
        root_stage_id=document.root_id,
        operation=document.name,
        started_at=format_time(start.at) if start else "",
        finished_at=format_time(finish.at) if finish else "",
        status=finish.status if finish else "",
        error=document.error,
        attributes=_raw(start.attributes_json) if start else NONE,
        actors=list(table),
        stages=rows,
        captured_at="" if captured_at is None else format_time(captured_at),
        collection=collection,
    )
    return _with_extra(_encode(out), document.extra_json).decode()


def encode_stage(stage: Stage) -> str:
    """
    Write one stage by itself, its actor inline.
    """
    return _encode(_stage_out(stage, actor=None if stage.actor == NO_ACTOR else stage.actor)).decode()


def _stage_out(stage: Stage, *, actor_ref: int = 0, actor: Actor | None = None) -> StageOut | msgspec.Raw:
    out = StageOut(
        id=stage.id,
        parent_id=stage.parent_id,
        actor_ref=actor_ref,
        actor=actor,
        elapsed_ns=stage.elapsed_ns,
        name=stage.name,
        started_at=format_time(stage.started_at),
        finished_at="" if stage.finished_at is None else format_time(stage.finished_at),
        status=stage.status,
        error=stage.error,
        code=stage.code,
        attributes=_raw(stage.attributes_json),
    )
    return msgspec.Raw(_with_extra(_encode(out), stage.extra_json)) if stage.extra_json else out


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode()) if text else NONE


def _with_extra(encoded: bytes, extra_json: str) -> bytes:
    return encoded[:-1] + b"," + extra_json.encode()[1:] if extra_json else encoded


def decode_document(text: str | bytes) -> Document:
    """
    Read a document. All of it is checked before anything is returned.

    Raises:
        InvalidValue: naming the member; the whole payload is refused.
    """
    return decode_payload(text)[0]


def decode_payload(text: str | bytes) -> tuple[Document, int | None, Collection | None]:
    """
    Read a document, and when and how it was captured if it is a snapshot's.
    """
    record, extra_json = _decode_record(text, DocumentIn, "payload")
    check_opid(record.id, "id")
    actors = record.actors or []
    stages: dict[StageKey, Stage] = {}
    records, extras = _stage_records(record.stages)
    for index, stage_in in enumerate(records):
        try:
            stage = _stage_of(stage_in, extras.get(index, ""), actors, record.id)
        except InvalidValue as error:
            raise InvalidStage(f"stages[{index}].{error.field}", str(error).partition(": ")[2]) from None
        stages[stage.key] = stage
    document = Document(
        opid=record.id,
        start=_start_of(record),
        finish=_finish_of(record),
        stages=stages,
        extra_json=extra_json,
    )
    captured_at = parse_time(record.captured_at, "captured_at") if record.captured_at else None
    return document, captured_at, record.collection


def decode_stage(text: str | bytes, opid: str = "") -> Stage:
    """
    Read one stage that was written by itself.

    Raises:
        InvalidValue: naming the member.
    """
    record, extra_json = _decode_record(text, StageIn, "stage")
    return _stage_of(record, extra_json, [], opid)


def _decode_record(text: str | bytes, kind: type[_Record], field: str) -> tuple[_Record, str]:
    """
    Decode one record by its type; members that the type lacks are returned beside it, as canonical JSON.

    The typed decoder refuses unknown members rather than looking for them: they are rare, and it is many times
    faster than splitting each record up.
    """
    try:
        try:
            return msgspec.json.decode(text, type=kind), ""
        except msgspec.ValidationError:
            known, extra_json = _split_members(text, frozenset(kind.__struct_fields__))
            return msgspec.json.decode(known, type=kind), extra_json
    except _UNREADABLE as error:
        raise InvalidValue(field, str(error)) from error


def _split_members(text: str | bytes, names: frozenset[str]) -> tuple[bytes, str]:
    members = _decode_members(text)
    extra = {name: members.pop(name) for name in members.keys() - names}
    return _encode(members), canonical_object(_encode(extra), "payload") if extra else ""


def _stage_records(stages: msgspec.Raw) -> tuple[list[StageIn], dict[int, str]]:
    """
    Decode the records of all stages, and what they hold beyond the known members, by their number.
    """
    if _is_absent(stages):
        return [], {}
    try:
        return _decode_stages(stages), {}
    except _UNREADABLE:
        pass  # an unknown member, or worse: found out one by one
    try:
        items = _decode_list(stages)
    except _UNREADABLE as error:
        raise InvalidValue("stages", str(error)) from error
    pairs = [_decode_record(bytes(item), StageIn, f"stages[{index}]") for index, item in enumerate(items)]
    return [record for record, _ in pairs], {index: extra for index, (_, extra) in enumerate(pairs) if extra}


def _stage_of(record: StageIn, extra_json: str, actors: list[Actor], opid: str) -> Stage:
    status = _STATUSES.get(record.status)
    if status is None:
        raise InvalidStage("status", "expected running, succeeded, failed or canceled")
    finished = record.finished_at
    stage = Stage(
        id=record.id,
        name=record.name,
        started_at=parse_time(record.started_at, "started_at"),
        finished_at=_optional_time(finished, "finished_at") if finished else None,
        status=status,
        parent_id=record.parent_id or "",
        actor=_actor_of(record, actors) if record.actor_ref or record.actor else NO_ACTOR,
        error=record.error or "",
        code=record.code or "",
        elapsed_ns=record.elapsed_ns,
        attributes_json=_attributes_of(record),
        extra_json=extra_json,
    )
    check_state(stage, opid)
    return stage


def _actor_of(record: StageIn, actors: list[Actor]) -> Actor:
    reference = record.actor_ref or 0
    if not reference:
        return record.actor or NO_ACTOR
    if record.actor is not None:
        raise InvalidStage("actor_ref", "expected either a reference or an actor, not both")
    if not 1 <= reference <= len(actors):
        raise InvalidStage("actor_ref", f"expected a reference into a table of {len(actors)} actors, got {reference}")
    actor = actors[reference - 1]
    if actor == NO_ACTOR:
        raise InvalidStage("actor_ref", f"actor {reference} of the table is empty")
    return actor


def _attributes_of(record: StageIn | DocumentIn) -> str:
    if record.attributes is NONE and record.fields is NONE:
        return ""
    for member in (record.attributes, record.fields):
        if not _is_absent(member):
            return canonical_object(bytes(member), "attributes")
    return ""


def _is_absent(member: msgspec.Raw) -> bool:
    return bytes(member) in {b"", b"null"}


def _optional_time(text: str | None, field: str) -> int | None:
    if not text:
        return None
    at = parse_time(text, field)
    return None if at == NO_TIME else at  # in whatever zone, and with however many decimals


def _start_of(record: DocumentIn) -> Start | None:
    attributes_json = _attributes_of(record)
    if not record.started_at:
        if record.operation or attributes_json:
            raise InvalidValue("started_at", "expected the time of the start whose name or attributes are given")
        return None
    at = parse_time(record.started_at, "started_at")
    return Start(name=record.operation or "", at=at, attributes_json=attributes_json)


def _finish_of(record: DocumentIn) -> Finish | None:
    at = _optional_time(record.finished_at, "finished_at")
    if at is None:
        return None
    try:
        status = Status(record.status or "")
    except ValueError:
        status = Status.UNKNOWN
    if not status.is_terminal:
        raise InvalidValue("status", "expected succeeded, failed or canceled for an operation that has finished")
    return Finish(at=at, status=status, error=record.error or "")
