"""
The scripts that read, and what they answer.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from .._errors import CorruptEntry, InvalidValue
from .._model._codec import decode_document
from .._model._text import check_opid
from ._changes import changes_since, fetch_changes, lay_over, reaches_back, update_of
from ._contract import Changes, Found, Unchanged, Unreadable
from ._row_operations import FetchHeads, FetchRecentHeads, FetchRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .._model._document import Document
    from ._contract import AnswerOrError, Known
    from ._row_operations import ChangeRow, Row, RowHead, Script


def mget_script(opids: Sequence[str], known: Mapping[str, Known]) -> Script[list[AnswerOrError]]:
    """
    Read several operations.
    """
    valid = storable(opids)
    found = yield from fetch_documents([opid for opid in valid if opid not in known])
    answers = [_answer(head, document) for head, document in found.values()]
    if wanted := [opid for opid in valid if opid in known]:
        heads = cast("Sequence[RowHead]", (yield FetchHeads(wanted)))
        answers += yield from _answers([head for head in heads if head.id in known], known)
    return answers


def latest_script(after: int, limit: int, known: Mapping[str, Known]) -> Script[list[AnswerOrError]]:
    """
    Read what changed most recently.
    """
    heads = cast("Sequence[RowHead]", (yield FetchRecentHeads(after, limit)))
    return (yield from _answers(heads, known))


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


def fetch_documents(
    opids: Sequence[str], *, lock: bool = False
) -> Script[dict[str, tuple[RowHead, Document | CorruptEntry]]]:
    """
    Return the operations that exist, by their exact ids: a database may find some by others.

    Raises:
        RaceLost: somebody wrote between the read of a row and that of its changes.
    """
    if not opids:
        return {}
    wanted = frozenset(opids)
    rows = [row for row in cast("Sequence[Row]", (yield FetchRows(opids, lock))) if row.id in wanted]
    changes = yield from fetch_changes([changes_since(row, row.folded) for row in rows if row.folded is not None])
    documents: dict[str, tuple[RowHead, Document | CorruptEntry]] = {}
    for row in rows:
        try:
            document = _document_of(row)
            if row.id in changes:
                document = lay_over(document, update_of(row.id, changes[row.id]))
        except CorruptEntry as error:
            documents[row.id] = row, error
        else:
            documents[row.id] = row, document
    return documents


def _document_of(row: Row) -> Document:
    try:
        document = decode_document(row.payload)
    except InvalidValue as error:
        raise CorruptEntry(row.id, "the stored payload cannot be read") from error
    if document.opid != row.id:
        raise CorruptEntry(row.id, "the stored payload is another operation's")
    return document


def _answers(heads: Sequence[RowHead], known: Mapping[str, Known]) -> Script[list[AnswerOrError]]:
    unchanged = {head.id for head in heads if head.id in known and known[head.id].revision == head.revision}
    behind = {
        head.id: head
        for head in heads
        if head.id in known
        and known[head.id].revision.is_older_than(head.revision)
        and reaches_back(head, known[head.id].revision.version)
    }
    changes = yield from fetch_changes(
        [changes_since(head, known[opid].revision.version) for opid, head in behind.items()]
    )
    wanted = storable(head.id for head in heads if head.id not in unchanged and head.id not in behind)
    found = yield from fetch_documents(wanted)
    answers: list[AnswerOrError] = []
    for head in heads:
        opid = head.id
        if opid in unchanged:
            answers.append(Unchanged(opid=opid, revision=head.revision))
        elif opid in behind:
            answers.append(_changed(head, known[opid], changes[opid]))
        elif opid in found:  # else it may have been deleted between the two reads
            answers.append(_answer(*found[opid]))
        elif opid not in wanted:  # damaged, or another program's
            answers.append(Unreadable(opid=opid, error=CorruptEntry(opid, "no operation has such an id")))
    return answers


def _changed(head: RowHead, known: Known, changes: Sequence[ChangeRow]) -> AnswerOrError:
    try:
        update = update_of(head.id, changes)
    except CorruptEntry as error:
        return Unreadable(opid=head.id, error=error)
    return Changes(opid=head.id, since=known.revision, revision=head.revision, update=update)


def _answer(head: RowHead, document: Document | CorruptEntry) -> AnswerOrError:
    if isinstance(document, CorruptEntry):
        return Unreadable(opid=head.id, error=document)
    return Found(opid=head.id, revision=head.revision, document=document)
