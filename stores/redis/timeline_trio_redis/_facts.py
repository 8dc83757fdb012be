"""
Facts as the text of a hash's fields. Equal facts have equal text, so that Redis can compare them without reading.

A stage is what `encode_stage` writes. A boundary is an object of the members that it has in a document's payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from timeline_trio.model import (
    Document,
    Finish,
    InvalidValue,
    Stage,
    StageKey,
    Start,
    Update,
    decode_document,
    decode_stage,
    encode_stage,
    format_time,
)
from timeline_trio.store import CorruptEntry, Revision

from ._layout import FINISH, START, is_stage_field, stage_field

if TYPE_CHECKING:
    from collections.abc import Mapping

_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NO_ATTRIBUTES: Final = msgspec.Raw(b"")
_BOUNDARIES: Final = frozenset((START, FINISH))


class _StartOut(msgspec.Struct, omit_defaults=True):
    operation: str
    started_at: str
    attributes: msgspec.Raw = _NO_ATTRIBUTES


class _FinishOut(msgspec.Struct, omit_defaults=True):
    finished_at: str
    status: str
    error: str = ""


def encode_start(start: Start) -> bytes:
    """
    Write an operation's start.
    """
    # A default is left out only where it is that very object.
    attributes = msgspec.Raw(start.attributes_json.encode()) if start.attributes_json else _NO_ATTRIBUTES
    return msgspec.json.encode(_StartOut(start.name, format_time(start.at), attributes))


def encode_finish(finish: Finish) -> bytes:
    """
    Write an operation's finish.
    """
    return msgspec.json.encode(_FinishOut(format_time(finish.at), finish.status, finish.error))


def encode_stages(document: Document) -> list[bytes]:
    """
    Return the field and the text of each stage, by turns.
    """
    pairs: list[bytes] = []
    for key, stage in document.stages.items():
        pairs += (stage_field(key), encode_stage(stage).encode())
    return pairs


def decode_revision(opid: str, incarnation: bytes, version: bytes) -> Revision:
    """
    Read the revision in the head of an operation.

    Raises:
        CorruptEntry: it is none.
    """
    try:
        return Revision(int(incarnation), int(version))
    except ValueError as error:
        raise CorruptEntry(opid, "the stored revision cannot be read") from error


def decode_boundaries(opid: str, texts: Mapping[bytes, bytes]) -> Document:
    """
    Read an operation's start and finish, where their fields are there.

    Raises:
        CorruptEntry: one cannot be read.
    """
    found = _BOUNDARIES & texts.keys()
    if not found:
        return Document(opid=opid)
    try:
        members = {name: raw for field in found for name, raw in _decode_members(texts[field]).items()}
        members["id"] = msgspec.Raw(msgspec.json.encode(opid))
        boundaries = decode_document(msgspec.json.encode(members))
        # Whatever else a damaged boundary holds, stages are fields of their own.
        document = Document(opid=opid, start=boundaries.start, finish=boundaries.finish)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, InvalidValue) as error:
        raise CorruptEntry(opid, "a stored start or finish cannot be read") from error
    if (START in found) != (document.start is not None) or (FINISH in found) != (document.finish is not None):
        raise CorruptEntry(opid, "a stored start or finish is incomplete")
    return document


def decode_facts(opid: str, texts: Mapping[bytes, bytes]) -> Document:
    """
    Read an operation's fields. Those that this version does not know are passed over.

    Raises:
        CorruptEntry: a fact cannot be read, or is in the field of another.
    """
    boundaries = decode_boundaries(opid, texts)
    stages: dict[StageKey, Stage] = {}
    for field, text in texts.items():
        if not is_stage_field(field):
            continue
        try:
            stage = decode_stage(text, opid)
        except InvalidValue as error:
            raise CorruptEntry(opid, "a stored stage cannot be read") from error
        if stage_field(stage.key) != field:
            raise CorruptEntry(opid, "a stored stage is in the field of another one")
        stages[stage.key] = stage
    return msgspec.structs.replace(boundaries, stages=stages)


def as_update(document: Document) -> Update:
    """
    Return all facts of a document as an update.
    """
    return Update(start=document.start, finish=document.finish, stages=tuple(document.stages.values()))
