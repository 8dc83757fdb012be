"""
One merge: what is sent for it, and what the answer means.

A live boundary replaces the stored one or not, by decoded values. So what is stored is assumed, from what the caller
knows, and the script checks that; where it is wrong it tells what is stored, and the decision is made anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from timeline_trio.model import Document, InvalidValue, Update, merge
from timeline_trio.store import CorruptEntry, Merged, StoreRejected

from ._facts import decode_boundaries, decode_revision, encode_finish, encode_stages, encode_start
from ._layout import FINISH, START, foreign_key
from ._scripts import MERGE, ScriptCall
from ._server import ContentDamaged, KeyForeign, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeline_trio.store import MergeRequest

    from ._layout import Layout
    from ._scripts import Argument

_MICROSECOND = 1_000


class Times(msgspec.Struct, frozen=True):
    """
    What the script needs to know of time.

    Attributes:
        now: nanoseconds since the epoch.
        overlap: nanoseconds by which an update time may be ahead and still be stepped past.
        lifetime: milliseconds until the operation expires; None for never.
    """

    now: int
    overlap: int
    lifetime: int | None


class Merging:
    """
    A merge under way.

    Args:
        layout: names the keys.
        request: what is to be merged.

    Raises:
        StoreRejected: the update is invalid.
    """

    def __init__(self, layout: Layout, request: MergeRequest) -> None:
        self._opid = request.opid
        self._update = request.update
        try:
            facts, _ = merge(Document(opid=request.opid), request.update)
        except InvalidValue as error:
            raise StoreRejected(request.opid, str(error)) from error
        self._keys = layout.keys(request.opid)
        self._channel = layout.channel
        self._sequence_keys = (
            (layout.sequence_key(request.opid, request.update.writer),) if request.update.writer else ()
        )
        self._stages = encode_stages(facts)
        # Of what the caller knows, the boundaries alone: they are what a decision may depend on.
        known = request.known.document if request.known else None
        self._stored = Document(
            opid=request.opid, start=known.start if known else None, finish=known.finish if known else None
        )

    def call(self, times: Times) -> ScriptCall:
        """
        Return the call of the script, with the boundaries decided by what is assumed to be stored.
        """
        start, finish = self._update.start, self._update.finish
        decided, _ = merge(self._stored, Update(start=start, finish=finish))
        assumptions: list[Argument] = []
        facts: list[Argument] = []
        if start is not None and decided.start is not None:
            facts += (START, encode_start(decided.start))
            if start.live:
                assumptions += (START, encode_start(self._stored.start) if self._stored.start else b"")
        if finish is not None and decided.finish is not None:
            facts += (FINISH, encode_finish(decided.finish))
            if finish.live:
                assumptions += (FINISH, encode_finish(self._stored.finish) if self._stored.finish else b"")
        return ScriptCall(
            MERGE,
            self._keys.slot,
            self._named_keys(),
            (
                self._opid,
                self._channel,
                self._update.sequence,
                times.now // _MICROSECOND,
                times.overlap // _MICROSECOND,
                "" if times.lifetime is None else times.lifetime,
                len(assumptions) // 2,
                *assumptions,
                *facts,
                *self._stages,
            ),
        )

    def accept(self, reply: Reply) -> Merged | None:
        """
        Return what the script's reply means; None if it is to be called again, with other assumptions.

        Raises:
            CorruptEntry: what is stored is not the store's, or damaged.
            StoreUnavailable: nothing is known of the outcome.
        """
        match reply:
            case [0]:
                return Merged(revision=None, changed=False)
            case [0 | 1 as changed, bytes(incarnation), bytes(version)]:
                return Merged(revision=decode_revision(self._opid, incarnation, version), changed=bool(changed))
            case [2, *texts]:
                self._assume(texts)
                return None
            case KeyForeign(position=position):
                # What was to be saved is sound, and waits until somebody has put the key in order.
                raise foreign_key(self._named_keys()[position - 1]) from reply
            case ContentDamaged():
                raise CorruptEntry(self._opid, "what is stored there is not an operation, or is damaged") from reply
            case Exception():
                raise reply
            case _:
                raise CorruptEntry(self._opid, f"the script answered with {type(reply).__name__}")

    def _named_keys(self) -> tuple[str, ...]:
        keys = self._keys
        return (keys.facts, keys.versions, keys.index, keys.due, keys.incarnation, *self._sequence_keys)

    def _assume(self, texts: Sequence[Reply]) -> None:
        fields = [
            field
            for field, boundary in ((START, self._update.start), (FINISH, self._update.finish))
            if boundary is not None and boundary.live
        ]
        stored = {field: text for field, text in zip(fields, texts, strict=True) if isinstance(text, bytes) and text}
        found = decode_boundaries(self._opid, stored)
        # What was not asked for stays assumed; it decides nothing.
        self._stored = msgspec.structs.replace(
            self._stored,
            start=found.start if START in fields else self._stored.start,
            finish=found.finish if FINISH in fields else self._stored.finish,
        )
