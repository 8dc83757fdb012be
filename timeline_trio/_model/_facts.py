"""
Some facts of an operation as JSON text: what a save adds to an operation that is too large to be written anew.

An object from slots to facts. A stage's slot is its key as a JSON array; a boundary's slot is its name. Texts of this
kind are joined without looking into the facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from .._errors import InvalidValue
from ._codec import decode_document, decode_stage, encode_stage
from ._document import Update
from ._time import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._document import Document
    from ._values import Finish, Start

_START: Final = "start"
_FINISH: Final = "finish"
_BOUNDARIES: Final = frozenset((_START, _FINISH))
_NOTHING: Final = msgspec.Raw(b"")

_encode: Final = msgspec.json.Encoder().encode
_decode_facts: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


class _StartOut(msgspec.Struct, omit_defaults=True):
    operation: str
    started_at: str
    attributes: msgspec.Raw = _NOTHING


class _FinishOut(msgspec.Struct, omit_defaults=True):
    finished_at: str
    status: str
    error: str = ""


def encode_facts(update: Update) -> str:
    """
    Write the facts of an update.
    """
    facts = {_encode(stage.key).decode(): msgspec.Raw(encode_stage(stage).encode()) for stage in update.stages}
    if update.start:
        facts[_START] = msgspec.Raw(_encode_start(update.start))
    if update.finish:
        facts[_FINISH] = msgspec.Raw(_encode_finish(update.finish))
    return _encode(facts).decode()


def decode_facts(text: str | bytes, opid: str) -> Update:
    """
    Read facts of an operation. All of them are checked before anything is returned.

    Raises:
        InvalidValue: naming the slot.
    """
    facts = _decode(text)
    start, finish = (_decode_boundary(facts, slot, opid) for slot in (_START, _FINISH))
    stages = tuple(decode_stage(bytes(raw), opid) for slot, raw in facts.items() if slot not in _BOUNDARIES)
    return Update(start=start.start if start else None, finish=finish.finish if finish else None, stages=stages)


def join_facts(texts: Iterable[str | bytes]) -> str:
    """
    Write the facts of several texts as one: of each slot the last one.

    Raises:
        InvalidValue: one is not such a text.
    """
    joined: dict[str, msgspec.Raw] = {}
    for text in texts:
        joined |= _decode(text)
    return _encode(joined).decode()


def _decode(text: str | bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decode_facts(text)
    except _UNREADABLE as error:
        raise InvalidValue("facts", str(error)) from error


def _encode_start(start: Start) -> bytes:
    attributes = msgspec.Raw(start.attributes_json.encode()) if start.attributes_json else _NOTHING
    return _encode(_StartOut(start.name, format_time(start.at), attributes))


def _encode_finish(finish: Finish) -> bytes:
    return _encode(_FinishOut(format_time(finish.at), finish.status, finish.error))


def _decode_boundary(facts: dict[str, msgspec.Raw], slot: str, opid: str) -> Document | None:
    raw = facts.get(slot)
    if raw is None:
        return None
    try:
        members = _decode_facts(bytes(raw)) | {"id": msgspec.Raw(_encode(opid))}
    except _UNREADABLE as error:
        raise InvalidValue(slot, str(error)) from error
    return decode_document(_encode(members))
