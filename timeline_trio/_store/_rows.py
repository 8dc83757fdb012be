"""
The engine of every Store that keeps one row an operation, guarded by compare-and-set on the row's version.

The engine decides and never does any I/O: each call is a *script*, a generator that yields the row operations it
wants done and is sent their results. So the same script runs in a thread that holds a connection, or on another
event loop, in one hop and one transaction, and no text of SQL stands here. A dialect is five operations.

A script that lost a race raises `RaceLost`; the store then ends the transaction, since a repeated read inside the
old snapshot might show the old row for ever, and starts the script anew.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec
import trio

from .._errors import CorruptEntry, InvalidValue, NotFound, StoreError, StoreRejected
from .._model._codec import decode_document, encode_document
from .._model._document import Document, merge
from .._model._text import check_opid
from ._contract import (
    NOTHING_KNOWN,
    Answer,
    AnswerOrError,
    Found,
    Known,
    Merged,
    MergeRequest,
    Revision,
    Unchanged,
    Unreadable,
)
from ._stamp import MICROSECOND, next_stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .._model._document import Update

T = TypeVar("T")


class RowHead(msgspec.Struct, frozen=True, kw_only=True):
    """
    A row without its payload. Times are microseconds since the epoch.
    """

    id: str
    version: int
    created_at: int
    updated_at: int

    @property
    def revision(self) -> Revision:
        """
        The revision that the row is at; when it was created tells its incarnation.
        """
        return Revision(self.created_at, self.version)


class Row(RowHead, frozen=True, kw_only=True):
    """
    One stored operation.
    """

    payload: str


class FetchHeads(msgspec.Struct, frozen=True):
    """
    Asks for the heads of the rows that exist. Answer: a sequence of `RowHead`, in any order.
    """

    ids: Sequence[str]


class FetchRows(msgspec.Struct, frozen=True):
    """
    Asks for the rows that exist. Answer: a sequence of `Row`, in any order.
    """

    ids: Sequence[str]


class FetchRecentHeads(msgspec.Struct, frozen=True):
    """
    Asks for the heads of rows with `updated_at > after`, by `updated_at` and `id` descending, at most `limit`.
    """

    after: int
    limit: int


class InsertRow(msgspec.Struct, frozen=True):
    """
    Asks for a new row. Answer: False if one of that id exists.
    """

    row: Row


class ReplaceRow(msgspec.Struct, frozen=True):
    """
    Asks for a row's new state. Answer: False if the row is no longer at the `expected` revision.
    """

    row: Row
    expected: Revision


RowOperation = FetchHeads | FetchRows | FetchRecentHeads | InsertRow | ReplaceRow

Script = Generator[RowOperation, object, T]
"""A generator that yields row operations, is sent their answers, and returns the result of the whole call."""


class RaceLost(Exception):
    """
    Another writer changed a row between our read and our write. Start the script anew in a new transaction.
    """


class RowDialect(Protocol):
    """
    The row operations, done on one connection inside of one transaction, blocking.

    Each raises `StoreRejected` where the row can never be written, `StoreUnavailable` where the database fails.
    """

    def fetch_heads(self, ids: Sequence[str]) -> Sequence[RowHead]:
        """
        Answer `FetchHeads`.
        """
        ...

    def fetch_rows(self, ids: Sequence[str]) -> Sequence[Row]:
        """
        Answer `FetchRows`.
        """
        ...

    def fetch_recent_heads(self, after: int, limit: int) -> Sequence[RowHead]:
        """
        Answer `FetchRecentHeads`.
        """
        ...

    def insert_row(self, row: Row) -> bool:
        """
        Answer `InsertRow`.
        """
        ...

    def replace_row(self, row: Row, expected: Revision) -> bool:
        """
        Answer `ReplaceRow`.
        """
        ...


def run_script(script: Script[T], dialect: RowDialect) -> T:
    """
    Run a script to its end on a blocking dialect.

    Raises:
        RaceLost: start anew in a new transaction.
        StoreError: what the dialect raised and the script could not answer for.
    """
    try:
        operation = next(script)
        while True:
            try:
                answer = _do(operation, dialect)
            except StoreError as error:
                operation = script.throw(error)
            else:
                operation = script.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _do(operation: RowOperation, dialect: RowDialect) -> object:
    match operation:
        case FetchHeads(ids):
            return dialect.fetch_heads(ids)
        case FetchRows(ids):
            return dialect.fetch_rows(ids)
        case FetchRecentHeads(after, limit):
            return dialect.fetch_recent_heads(after, limit)
        case InsertRow(row):
            return dialect.insert_row(row)
        case ReplaceRow(row, expected):
            return dialect.replace_row(row, expected)


class RowStore(ABC):
    """
    A Store of rows; a subclass says how a script is run.

    Args:
        clock: returns nanoseconds since the epoch.
        overlap: seconds by which a row's update time may be ahead of `clock` and still be stepped past.
    """

    def __init__(self, *, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0) -> None:
        self._clock = clock
        self._overlap_ns = int(overlap * 1e9)

    @abstractmethod
    async def run(self, begin: Callable[[], Script[T]], *, writes: bool) -> T:
        """
        Run a script in one transaction, and commit it.

        Args:
            begin: makes the script; called anew for each try of the transaction.
            writes: whether the script may change rows.

        Raises:
            RaceLost: as the script raised it; the transaction was rolled back.
            StoreUnavailable: it may or may not have been committed.
            StoreRejected: it was rolled back.
        """

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        """
        Merge facts into the operation's document. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: nothing is known of the outcome.
            StoreRejected: the update is invalid or too large, or the row is corrupt.
        """
        (answer,) = await self.merge_many([MergeRequest(opid, update, known)])
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged | StoreError]:
        """
        Merge into several operations in one transaction. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: nothing is known of the outcome.
        """
        if not requests:
            await trio.lowlevel.checkpoint()
            return []
        losses = 0
        while True:
            try:
                return await self.run(lambda: self._merge_script(requests), writes=True)
            except RaceLost:
                losses += 1
            # Under contention only a growing, jittered pause keeps every writer moving; there is no cap on tries:
            # the caller's own scope ends them.
            await trio.sleep(random.uniform(0.0005, 0.001 * 2 ** min(losses, 6)))  # noqa: S311 - no secret

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        """
        Read one operation.

        Raises:
            NotFound: there is none.
            StoreUnavailable: try again.
            CorruptEntry: the row cannot be read.
        """
        for answer in await self.mget([opid], {opid: known} if known else NOTHING_KNOWN):
            if isinstance(answer, Unreadable):
                raise answer.error
            return answer
        raise NotFound(opid)

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        """
        Read several operations.

        Raises:
            StoreUnavailable: try again.
        """
        if not opids:
            await trio.lowlevel.checkpoint()
            return []
        return await self.run(lambda: _mget_script(opids, known), writes=False)

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        """
        Read the operations that changed most recently.

        Raises:
            StoreUnavailable: try again.
        """
        if limit <= 0:
            await trio.lowlevel.checkpoint()
            return []
        # Rows carry microseconds: rounding down may return a row again, rounding up would hide one.
        return await self.run(lambda: _latest_script(after // MICROSECOND, limit, known), writes=False)

    def _merge_script(self, requests: Sequence[MergeRequest]) -> Script[list[Merged | StoreError]]:
        # In the order of ids, so that transactions over the same rows wait for each other instead of deadlocking.
        requests_by_id = {request.opid: request for request in sorted(requests, key=lambda r: r.opid)}
        found = cast("Sequence[RowHead]", (yield FetchHeads(_storable(requests_by_id))))
        heads = {head.id: head for head in found}
        unknown = [
            opid
            for opid, head in heads.items()
            if (known := requests_by_id[opid].known) is None or known.revision != head.revision
        ]
        rows = yield from _fetch(unknown)
        answers: dict[str, Merged | StoreError] = {}
        for opid, request in requests_by_id.items():
            try:
                head = rows.get(opid) or heads.get(opid)
                answers[opid] = yield from self._merge_row(request, head)
            except StoreRejected as error:
                answers[opid] = error
        return [answers[request.opid] for request in requests]

    def _merge_row(self, request: MergeRequest, head: RowHead | None) -> Script[Merged]:
        opid = request.opid
        try:
            check_opid(opid)
            document, changed = merge(_base_of(request, head), request.update)
        except InvalidValue as error:
            raise StoreRejected(opid, str(error)) from error
        if not changed:
            return Merged(revision=head.revision if head else None, changed=False, document=document)
        now = self._clock()
        if head is None:
            stamp = now // MICROSECOND
            row = Row(id=opid, payload=encode_document(document), version=1, created_at=stamp, updated_at=stamp)
            written = yield InsertRow(row)
        else:
            stamp = next_stamp(now, head.updated_at * MICROSECOND, self._overlap_ns) // MICROSECOND
            row = Row(
                id=opid,
                payload=encode_document(document),
                version=head.version + 1,
                created_at=head.created_at,
                updated_at=stamp,
            )
            written = yield ReplaceRow(row, head.revision)
        if not written:
            raise RaceLost
        return Merged(revision=row.revision, changed=True, document=document)


def _storable(opids: Iterable[str]) -> list[str]:
    """
    Return the ids that a row may have, once each. A driver may fail on the others, for all ids of the call.
    """
    storable: list[str] = []
    for opid in dict.fromkeys(opids):
        with suppress(InvalidValue):
            check_opid(opid)
            storable.append(opid)
    return storable


def _base_of(request: MergeRequest, head: RowHead | None) -> Document:
    if isinstance(head, Row):
        return _document_of(head)
    if head is not None and request.known is not None:
        return request.known.document
    return Document(opid=request.opid)


def _document_of(row: Row) -> Document:
    try:
        document = decode_document(row.payload)
    except InvalidValue as error:
        raise CorruptEntry(row.id, "the stored payload cannot be read") from error
    if document.opid != row.id:
        raise CorruptEntry(row.id, "the stored payload is another operation's")
    return document


def _mget_script(opids: Sequence[str], known: Mapping[str, Known]) -> Script[list[AnswerOrError]]:
    heads = cast("Sequence[RowHead]", (yield FetchHeads(_storable(opids))))
    return (yield from _answers(heads, known))


def _latest_script(after: int, limit: int, known: Mapping[str, Known]) -> Script[list[AnswerOrError]]:
    heads = cast("Sequence[RowHead]", (yield FetchRecentHeads(after, limit)))
    return (yield from _answers(heads, known))


def _fetch(opids: Sequence[str]) -> Script[dict[str, Row]]:
    if not opids:
        return {}
    rows = cast("Sequence[Row]", (yield FetchRows(opids)))
    return {row.id: row for row in rows}


def _answers(heads: Sequence[RowHead], known: Mapping[str, Known]) -> Script[list[AnswerOrError]]:
    unchanged = {head.id for head in heads if head.id in known and known[head.id].revision == head.revision}
    wanted = _storable(head.id for head in heads if head.id not in unchanged)
    rows = yield from _fetch(wanted)
    answers: list[AnswerOrError] = []
    for head in heads:
        if head.id in unchanged:
            answers.append(Unchanged(opid=head.id, revision=head.revision))
        elif head.id in rows:  # else it may have been deleted between the two reads of a database without snapshots
            answers.append(_answer(rows[head.id]))
        elif head.id not in wanted:  # damaged, or another program's
            answers.append(Unreadable(opid=head.id, error=CorruptEntry(head.id, "no operation has such an id")))
    return answers


def _answer(row: Row) -> Found | Unreadable:
    try:
        return Found(opid=row.id, revision=row.revision, document=_document_of(row))
    except CorruptEntry as error:
        return Unreadable(opid=row.id, error=error)
