"""
One read: what is sent for it, and what the answer means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeline_trio.store import Changes, CorruptEntry, Found, Unchanged

from ._facts import as_update, decode_facts, decode_revision
from ._scripts import READ, ScriptCall
from ._server import ContentDamaged, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeline_trio.store import Answer, Known

    from ._layout import Layout


def read_call(layout: Layout, opid: str, known: Known | None) -> ScriptCall:
    """
    Return the call that reads an operation.
    """
    keys = layout.keys(opid)
    revision = ("", "") if known is None else (known.revision.incarnation, known.revision.version)
    return ScriptCall(READ, keys.slot, (keys.facts, keys.versions), revision)


def answer_of(opid: str, reply: Reply, known: Known | None) -> Answer | None:
    """
    Return what the script's reply means; None if there is no such operation.

    Raises:
        CorruptEntry: what is stored is not the store's, or damaged.
        StoreUnavailable: try again.
    """
    match reply:
        case None:
            return None
        case [bytes(incarnation), bytes(version)]:
            return Unchanged(opid=opid, revision=decode_revision(opid, incarnation, version))
        case [bytes(incarnation), bytes(version), b"changes", list(pairs)] if known is not None:
            update = as_update(decode_facts(opid, _as_mapping(pairs)))
            revision = decode_revision(opid, incarnation, version)
            return Changes(opid=opid, since=known.revision, revision=revision, update=update)
        case [bytes(incarnation), bytes(version), b"all", list(pairs)]:
            document = decode_facts(opid, _as_mapping(pairs))
            return Found(opid=opid, revision=decode_revision(opid, incarnation, version), document=document)
        case ContentDamaged():
            raise CorruptEntry(opid, "what is stored there is not an operation, or is damaged") from reply
        case Exception():
            raise reply
        case _:
            raise CorruptEntry(opid, f"the script answered with {type(reply).__name__}")


def _as_mapping(pairs: Sequence[Reply]) -> dict[bytes, bytes]:
    texts = [text for text in pairs if isinstance(text, bytes)]
    return dict(zip(texts[::2], texts[1::2], strict=True))
