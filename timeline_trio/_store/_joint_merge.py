"""
Several merges in one script: what the callers know is built on at once, what is not known is read first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast, final

from .._errors import CorruptEntry, InvalidValue, StoreError, StoreRejected
from .._model._codec import encode_document
from .._model._document import Document, merge
from .._model._facts import encode_facts
from .._model._text import check_opid
from ._changes import JOIN_EVERY, ROW_LIMIT, changes_since, difference, fetch_changes, lay_over, reaches_back, update_of
from ._contract import Merged, MergeRequest, Revision
from ._row_operations import AppendChange, FetchHeads, InsertRow, RaceLost, ReplaceRow, Row, RowHead, WriteRows
from ._row_reads import fetch_documents
from ._stamp import MICROSECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ._changes import Folds
    from ._contract import Known
    from ._row_operations import ChangeRange, RowWrite, Script

_MANY_STAGES: Final = 500  # from which on a document is likely to be a large one


class _Base(NamedTuple):
    """
    What to merge into, the revision that it has if it is a row's, and where that row was left if it is large.
    """

    document: Document
    revision: Revision | None = None
    folded: int | None = None


@final
class JointMerge:
    """
    One try of several merges.

    Args:
        requests: the merges, of one operation each.
        clock: returns nanoseconds since the epoch; called when there is something to write.
        overlap: microseconds by which a row's update time may be ahead of it.
        contended: whether an earlier try was lost. Rows are then locked before they are built on, which is fairer than
            to race on.
        folds: which operations are large; None if changes cannot be kept beside a row.

    Attributes:
        needs_transaction: whether the script must be run in one.
        attempts: how many times it tried to write a row.
        to_join: operations whose changes are to be joined now, each with its revision and where its row was left.
    """

    def __init__(
        self,
        requests: Sequence[MergeRequest],
        *,
        clock: Callable[[], int],
        overlap: int,
        contended: bool,
        folds: Folds | None,
    ) -> None:
        # In the order of ids, so that transactions over the same rows wait for each other instead of deadlocking.
        self._requests = {request.opid: request for request in sorted(requests, key=lambda request: request.opid)}
        self._order = [request.opid for request in requests]
        self._clock = clock
        self._overlap = overlap
        self._contended = contended
        self._folds = folds
        self._answers: dict[str, Merged | StoreError] = {}
        self.needs_transaction: bool = contended or len(requests) > 1
        self.attempts: int = 0
        self.to_join: list[tuple[str, Revision, int]] = []

    def script(self) -> Script[list[Merged | StoreError]]:
        """
        Merge, and return an answer a request.

        Raises:
            RaceLost: another writer came between a read and its write.
        """
        self._answers = {}
        self.to_join = []
        trusted: dict[str, _Base] = {}
        behind: dict[str, Known] = {}
        unread: list[str] = []
        for opid, request in self._requests.items():
            try:
                check_opid(opid)
            except InvalidValue as error:
                self._answers[opid] = _rejection(opid, error)
                continue
            known = request.known
            if known is None:
                unread.append(opid)
            elif self._contended or (self._may_be_large(known) and self._fold_of(opid, known.revision) is None):
                behind[opid] = known
            else:
                trusted[opid] = _Base(known.document, known.revision, self._fold_of(opid, known.revision))
        stale = yield from self._merge_into(trusted)
        stale += yield from self._find_moved()
        behind |= {opid: known for opid in stale if (known := self._requests[opid].known)}
        bases = yield from self._read(unread, lock=self._contended)
        bases |= yield from self._catch_up(behind)
        if (yield from self._merge_into(bases)):
            raise RaceLost
        return [self._answers[opid] for opid in self._order]

    def _fold_of(self, opid: str, revision: Revision) -> int | None:
        return self._folds.get(opid, revision.incarnation) if self._folds else None

    def _may_be_large(self, known: Known) -> bool:
        return self._folds is not None and len(known.document.stages) >= _MANY_STAGES

    def _merge_into(self, bases: Mapping[str, _Base]) -> Script[list[str]]:
        """
        Merge and write; return the operations whose rows have moved on.
        """
        writes: list[RowWrite] = []
        for opid, base in bases.items():
            try:
                document, changed = merge(base.document, self._requests[opid].update)
            except InvalidValue as error:
                self._answers[opid] = _rejection(opid, error)
                continue
            revision = base.revision
            if changed:
                write, revision = self._write_of(document, base)
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
            else:
                self._note(write)
        return lost

    def _write_of(self, document: Document, base: _Base) -> tuple[RowWrite, Revision]:
        opid, revision, now = document.opid, base.revision, self._clock() // MICROSECOND
        if revision is None:
            row = Row(id=opid, payload=encode_document(document), version=1, created_at=now, updated_at=now)
            return InsertRow(row), row.revision
        ahead, following = now + self._overlap, Revision(revision.incarnation, revision.version + 1)
        folded = base.folded
        if folded is None:
            payload = encode_document(document)
            if self._folds is None or len(payload) <= ROW_LIMIT:
                return ReplaceRow(id=opid, payload=payload, expected=revision, now=now, ahead=ahead), following
            folded = revision.version
        change = encode_facts(difference(document, base.document, self._requests[opid].update))
        write = AppendChange(
            id=opid,
            payload=change,
            expected=revision,
            was_folded=base.folded,
            folded=folded,
            now=now,
            ahead=ahead,
        )
        return write, following

    def _note(self, write: RowWrite) -> None:
        if self._folds is None or not isinstance(write, AppendChange):
            return
        revision = Revision(write.expected.incarnation, write.expected.version + 1)
        self._folds.note(write.id, revision.incarnation, write.folded)
        if (revision.version - write.folded) % JOIN_EVERY == 0:
            self.to_join.append((write.id, revision, write.folded))

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

    def _read(self, opids: Sequence[str], *, lock: bool) -> Script[dict[str, _Base]]:
        found = yield from fetch_documents(opids, lock=lock)
        bases: dict[str, _Base] = {}
        for opid in opids:
            if opid not in found:
                bases[opid] = _Base(Document(opid=opid))
                continue
            head, document = found[opid]
            self._note_fold(head)
            if isinstance(document, CorruptEntry):
                self._answers[opid] = document
            else:
                bases[opid] = _Base(document, head.revision, head.folded)
        return bases

    def _catch_up(self, behind: Mapping[str, Known]) -> Script[dict[str, _Base]]:
        """
        Read what is known no longer: of a large operation, what came after that.
        """
        lock = self.needs_transaction
        large = [opid for opid, known in behind.items() if self._is_large(opid, known)]
        bases = yield from self._read([opid for opid in behind if opid not in large], lock=lock)
        if not large:
            return bases
        heads = {head.id: head for head in cast("Sequence[RowHead]", (yield FetchHeads(large, lock)))}
        ranges: list[ChangeRange] = []
        unread: list[str] = []
        for opid in large:
            head, known = heads.get(opid), behind[opid]
            if head is None:
                bases[opid] = _Base(Document(opid=opid))
                continue
            self._note_fold(head)
            if known.revision == head.revision:
                bases[opid] = _Base(known.document, head.revision, head.folded)
            elif known.revision.is_older_than(head.revision) and reaches_back(head, known.revision.version):
                ranges.append(changes_since(head, known.revision.version))
            else:
                unread.append(opid)
        changes = yield from fetch_changes(ranges)
        for opid, rows in changes.items():
            head = heads[opid]
            try:
                document = lay_over(behind[opid].document, update_of(opid, rows))
            except CorruptEntry as error:
                self._answers[opid] = error
            else:
                bases[opid] = _Base(document, head.revision, head.folded)
        bases |= yield from self._read(unread, lock=lock)
        return bases

    def _is_large(self, opid: str, known: Known) -> bool:
        return self._may_be_large(known) or self._fold_of(opid, known.revision) is not None

    def _note_fold(self, head: RowHead) -> None:
        if self._folds is not None:
            self._folds.note(head.id, head.created_at, head.folded)


def _rejection(opid: str, error: InvalidValue) -> StoreRejected:
    rejection = StoreRejected(opid, str(error))
    rejection.__cause__ = error
    return rejection
