"""
Several merges in one script: what the callers know is built on at once, what is not known is read first.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast, final

from .._errors import CorruptEntry, InvalidValue, StoreError, StoreRejected
from .._model._codec import decode_document, encode_document
from .._model._document import Document, merge
from .._model._text import check_opid
from ._contract import Merged, MergeRequest, Revision
from ._row_operations import FetchHeads, FetchRows, InsertRow, RaceLost, ReplaceRow, Row, RowHead, WriteRows
from ._stamp import MICROSECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ._row_operations import RowWrite, Script

    Base = tuple[Document, Revision | None]  # what to merge into, and the revision that it has if it is a row's


@final
class JointMerge:
    """
    One try of several merges.

    Args:
        requests: the merges, of one operation each.
        clock: returns nanoseconds since the epoch; called when there is something to write.
        overlap: microseconds by which a row's update time may be ahead of it.
        contended: whether an earlier try was lost. Rows are then locked when they are read, which is fairer than to
            race on, and it is the row alone that counts, not what the caller knows.

    Attributes:
        needs_transaction: whether the script must be run in one.
        attempts: how many times it tried to write a row.
    """

    def __init__(
        self, requests: Sequence[MergeRequest], *, clock: Callable[[], int], overlap: int, contended: bool
    ) -> None:
        # In the order of ids, so that transactions over the same rows wait for each other instead of deadlocking.
        self._requests = {request.opid: request for request in sorted(requests, key=lambda request: request.opid)}
        self._order = [request.opid for request in requests]
        self._clock = clock
        self._overlap = overlap
        self._contended = contended
        self._answers: dict[str, Merged | StoreError] = {}
        self.needs_transaction: bool = contended or len(requests) > 1
        self.attempts: int = 0

    def script(self) -> Script[list[Merged | StoreError]]:
        """
        Merge, and return an answer a request.

        Raises:
            RaceLost: another writer came between a read and its write.
        """
        self._answers = {}
        bases: dict[str, Base] = {}
        unread: list[str] = []
        for opid, request in self._requests.items():
            try:
                check_opid(opid)
            except InvalidValue as error:
                self._answers[opid] = _rejection(opid, error)
                continue
            if request.known is None or self._contended:
                unread.append(opid)
            else:
                bases[opid] = request.known.document, request.known.revision
        stale = yield from self._merge_into(bases)
        stale += yield from self._find_moved()
        bases = yield from self._read(unread, lock=self._contended)
        bases |= yield from self._read(stale, lock=self.needs_transaction)
        if (yield from self._merge_into(bases)):
            raise RaceLost
        return [self._answers[opid] for opid in self._order]

    def _merge_into(self, bases: Mapping[str, Base]) -> Script[list[str]]:
        """
        Merge and write; return the operations whose rows have moved on.
        """
        writes: list[RowWrite] = []
        for opid, (base, revision) in bases.items():
            try:
                document, changed = merge(base, self._requests[opid].update)
            except InvalidValue as error:
                self._answers[opid] = _rejection(opid, error)
                continue
            if changed:
                write, revision = self._write_of(document, revision)  # noqa: PLW2901 - it is the row's from now on
                writes.append(write)
            self._answers[opid] = Merged(revision=revision, changed=changed, document=document)
        if not writes:
            return []
        self.attempts += len(writes)
        lost: list[str] = []
        outcome = cast("Sequence[bool | StoreRejected]", (yield WriteRows(writes)))
        for write, done in zip(writes, outcome, strict=True):
            if isinstance(done, StoreRejected):
                self._answers[write.id] = done
            elif not done:
                del self._answers[write.id]
                lost.append(write.id)
        return lost

    def _write_of(self, document: Document, revision: Revision | None) -> tuple[RowWrite, Revision]:
        opid, payload, now = document.opid, encode_document(document), self._clock() // MICROSECOND
        if revision is None:
            row = Row(id=opid, payload=payload, version=1, created_at=now, updated_at=now)
            return InsertRow(row), row.revision
        write = ReplaceRow(id=opid, payload=payload, expected=revision, now=now, ahead=now + self._overlap)
        return write, Revision(revision.incarnation, revision.version + 1)

    def _find_moved(self) -> Script[list[str]]:
        """
        Return the operations of which the callers know all that they ask for, but no longer the row.
        """
        unchanged = {
            opid: answer.revision
            for opid, answer in self._answers.items()
            if isinstance(answer, Merged) and not answer.changed
        }
        if not unchanged:
            return []
        heads = cast("Sequence[RowHead]", (yield FetchHeads(list(unchanged))))
        current = {head.id: head.revision for head in heads}
        moved = [opid for opid, revision in unchanged.items() if current.get(opid) != revision]
        for opid in moved:
            del self._answers[opid]
        return moved

    def _read(self, opids: Sequence[str], *, lock: bool) -> Script[dict[str, Base]]:
        rows = yield from fetch_rows(opids, lock=lock)
        bases: dict[str, Base] = {}
        for opid in opids:
            row = rows.get(opid)
            try:
                bases[opid] = (document_of(row), row.revision) if row else (Document(opid=opid), None)
            except CorruptEntry as error:
                self._answers[opid] = error
        return bases


def storable(opids: Iterable[str]) -> list[str]:
    """
    Return the ids that a row may have, once each. A driver may fail on the others, for all ids of the call.
    """
    valid: list[str] = []
    for opid in dict.fromkeys(opids):
        with suppress(InvalidValue):
            check_opid(opid)
            valid.append(opid)
    return valid


def fetch_rows(opids: Sequence[str], *, lock: bool = False) -> Script[dict[str, Row]]:
    """
    Return the rows that exist, by their exact ids: a database may find some by others.
    """
    if not opids:
        return {}
    rows = cast("Sequence[Row]", (yield FetchRows(opids, lock)))
    wanted = frozenset(opids)
    return {row.id: row for row in rows if row.id in wanted}


def document_of(row: Row) -> Document:
    """
    Return the document of a row.

    Raises:
        CorruptEntry: it cannot be read, or is another operation's.
    """
    try:
        document = decode_document(row.payload)
    except InvalidValue as error:
        raise CorruptEntry(row.id, "the stored payload cannot be read") from error
    if document.opid != row.id:
        raise CorruptEntry(row.id, "the stored payload is another operation's")
    return document


def _rejection(opid: str, error: InvalidValue) -> StoreRejected:
    rejection = StoreRejected(opid, str(error))
    rejection.__cause__ = error
    return rejection
