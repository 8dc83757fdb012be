"""
A Store in this process's memory, shared by its managers; also the reference that other stores are tried against.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, final

import msgspec
import trio

from .._errors import InvalidValue, NotFound, StoreError, StoreRejected
from .._model._document import Document, Update, merge
from .._model._text import check_opid
from .._model._values import StageKey
from ._contract import (
    NOTHING_KNOWN,
    Answer,
    AnswerOrError,
    Change,
    Changes,
    Found,
    Known,
    Merged,
    MergeRequest,
    Revision,
    Unchanged,
)
from ._stamp import next_stamp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence


_WATCH_BUFFER: Final = 1_024  # changes that a slow reader may be behind


class _Row(msgspec.Struct):
    document: Document
    revision: Revision
    updated_at: int  # nanoseconds since the epoch
    changed: dict[StageKey | str, int]  # the version that brought each fact's present state


@final
class MemoryStore:
    """
    Keeps documents in memory, for as long as the object lives.

    Args:
        clock: returns nanoseconds since the epoch.
        overlap: seconds by which a row's update time may be ahead of `clock` and still be stepped past.
    """

    def __init__(self, *, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0) -> None:
        self._clock = clock
        self._overlap_ns = int(overlap * 1e9)
        self._rows: dict[str, _Row] = {}
        self._incarnations = 0
        self._watchers: dict[trio.MemorySendChannel[Change], trio.lowlevel.TrioToken] = {}

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        """
        Merge facts into the operation's document. Cancelled, it has done nothing.

        Raises:
            StoreRejected: the update is invalid.
        """
        del known
        await trio.lowlevel.checkpoint()
        return self._merge(opid, update)

    async def merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged | StoreError]:
        """
        Merge into several operations at once. Cancelled, it has done nothing.
        """
        await trio.lowlevel.checkpoint()
        answers: list[Merged | StoreError] = []
        for request in requests:
            try:
                answers.append(self._merge(request.opid, request.update))
            except StoreRejected as error:
                answers.append(error)
        return answers

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        """
        Read one operation.

        Raises:
            NotFound: there is none.
        """
        await trio.lowlevel.checkpoint()
        row = self._rows.get(opid)
        if row is None:
            raise NotFound(opid)
        return _answer(row, known)

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        """
        Read several operations.
        """
        await trio.lowlevel.checkpoint()
        return [_answer(self._rows[opid], known.get(opid)) for opid in dict.fromkeys(opids) if opid in self._rows]

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        """
        Read the operations that changed most recently.
        """
        await trio.lowlevel.checkpoint()
        rows = [(row.updated_at, opid, row) for opid, row in self._rows.items() if row.updated_at > after]
        rows.sort(key=lambda item: item[:2], reverse=True)
        return [_answer(row, known.get(opid)) for _, opid, row in rows[: max(limit, 0)]]

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Change]]:
        """
        Hear of changes until the end of the block.
        """
        await trio.lowlevel.checkpoint()
        send, receive = trio.open_memory_channel[Change](_WATCH_BUFFER)
        self._watchers[send] = trio.lowlevel.current_trio_token()
        try:
            yield receive
        finally:
            del self._watchers[send]

    async def delete(self, opid: str) -> None:
        """
        Forget an operation, if it is there, as an application's retention would.
        """
        await trio.lowlevel.checkpoint()
        self._rows.pop(opid, None)

    def _merge(self, opid: str, update: Update) -> Merged:
        row = self._rows.get(opid)
        try:
            check_opid(opid)
            document, changed = merge(row.document if row else Document(opid=opid), update)
        except InvalidValue as error:
            raise StoreRejected(opid, str(error)) from error
        now = self._clock()
        if row is None and not changed:
            return Merged(revision=None, changed=False)
        if row is None:
            self._incarnations += 1
            row = _Row(document, Revision(self._incarnations, 0), now, {})
            self._rows[opid] = row
        elif not changed:
            return Merged(revision=row.revision, changed=False, document=row.document)
        before, row.document = row.document, document
        row.revision = Revision(row.revision.incarnation, row.revision.version + 1)
        row.updated_at = next_stamp(now, row.updated_at, self._overlap_ns) if row.revision.version > 1 else now
        self._note_changes(row, before, update)
        self._tell(Change(opid, row.revision))
        return Merged(revision=row.revision, changed=True, document=document)

    def _tell(self, change: Change) -> None:
        ours = trio.lowlevel.current_trio_token()
        for channel, token in tuple(self._watchers.items()):
            if token is ours:
                _send(channel, change)
            else:  # its managers are of several Trio runs, in several threads
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(_send, channel, change)

    @staticmethod
    def _note_changes(row: _Row, before: Document, update: Update) -> None:
        version = row.revision.version
        for stage in update.stages:
            if version == 1 or before.stages.get(stage.key) != stage:
                row.changed[stage.key] = version
        if update.start and (version == 1 or before.start != row.document.start):
            row.changed["start"] = version
        if update.finish and (version == 1 or before.finish != row.document.finish):
            row.changed["finish"] = version


def _send(channel: trio.MemorySendChannel[Change], change: Change) -> None:
    with suppress(trio.WouldBlock):
        channel.send_nowait(change)


def _answer(row: _Row, known: Known | None) -> Answer:
    opid, document = row.document.opid, row.document
    if known is None or known.revision.incarnation != row.revision.incarnation:
        return Found(opid=opid, revision=row.revision, document=document)
    if known.revision == row.revision:
        return Unchanged(opid=opid, revision=row.revision)
    newer = {slot for slot, version in row.changed.items() if version > known.revision.version}
    update = Update(
        start=document.start if "start" in newer else None,
        finish=document.finish if "finish" in newer else None,
        stages=tuple(stage for key, stage in document.stages.items() if key in newer),
    )
    return Changes(opid=opid, since=known.revision, revision=row.revision, update=update)
