"""
Large operations: the row keeps what it had when it became large, and each later save adds a change beside it.

So a save costs what it says, and who knows a version reads what came after it. The row says at which version it was
left (`folded`); its changes have the versions after that one. After every 64 versions their changes are joined into
one, after 64 such into larger ones, up to a size that any database takes in one packet. A joined change holds the last
state of each fact, so laying it over a document that has a part of it already does no harm.

A read of a row and then of its changes may fall between two commits; the last change's version tells.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, cast, final

import msgspec

from .._errors import CorruptEntry, InvalidValue
from .._model._document import Document, Update
from .._model._facts import decode_facts, join_facts
from ._row_operations import ChangeRange, ChangeRow, FetchChanges, JoinChanges, RaceLost, WriteRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .._model._values import Stage, StageKey
    from ._contract import Revision
    from ._row_operations import RowHead, Script

ROW_LIMIT: Final = 64 * 1024  # characters of a payload beyond which a row is not written anew
JOIN_EVERY: Final = 64  # versions
JOINED_LIMIT: Final = 1_000_000  # bytes of a joined change, below the smallest packet limit in use
_MOST_FOLDS: Final = 4_096


def changes_since(head: RowHead, version: int) -> ChangeRange:
    """
    Name what came after a version, up to the row's own.
    """
    return ChangeRange(id=head.id, incarnation=head.created_at, first=version + 1, last=head.version)


def reaches_back(head: RowHead, version: int) -> bool:
    """
    Whether all that came after a version is kept as changes.
    """
    return head.folded is not None and version >= head.folded


def fetch_changes(ranges: Sequence[ChangeRange]) -> Script[dict[str, list[ChangeRow]]]:
    """
    Return the changes of each operation.

    Raises:
        RaceLost: somebody wrote or joined between the read of a row and this one.
    """
    changes: dict[str, list[ChangeRow]] = {each.id: [] for each in ranges}
    if ranges:
        for change in cast("Sequence[ChangeRow]", (yield FetchChanges(ranges))):
            changes[change.id].append(change)
    for each in ranges:
        if not changes[each.id] or changes[each.id][-1].version != each.last:
            raise RaceLost
    return changes


def update_of(opid: str, changes: Iterable[ChangeRow]) -> Update:
    """
    Return changes as one update, with the last state of each fact.

    Raises:
        CorruptEntry: one cannot be read.
    """
    start = finish = None
    stages: dict[StageKey, Stage] = {}
    for change in changes:
        try:
            update = decode_facts(change.payload, opid)
        except InvalidValue as error:
            raise CorruptEntry(opid, f"the stored changes of version {change.version} cannot be read") from error
        start, finish = update.start or start, update.finish or finish
        for stage in update.stages:
            stages[stage.key] = stage
    return Update(start=start, finish=finish, stages=tuple(stages.values()))


def lay_over(document: Document, update: Update) -> Document:
    """
    Lay facts over a document that was accepted with them before.
    """
    return msgspec.structs.replace(
        document,
        start=update.start or document.start,
        finish=update.finish or document.finish,
        stages=document.stages | {stage.key: stage for stage in update.stages},
    )


def difference(document: Document, base: Document, update: Update) -> Update:
    """
    Return what of an update made `document` of `base`, without what changed nothing.
    """
    return Update(
        start=document.start if document.start != base.start else None,
        finish=document.finish if document.finish != base.finish else None,
        stages=tuple(stage for stage in update.stages if base.stages.get(stage.key) != stage),
    )


def join_script(opid: str, revision: Revision, folded: int) -> Script[None]:
    """
    Join the changes of the last versions. Whoever does the same at once has no effect, or this one has none.

    Raises:
        RaceLost: somebody else has joined some of them.
    """
    grown = revision.version - folded
    span = JOIN_EVERY
    while grown % (span * JOIN_EVERY) == 0:
        span *= JOIN_EVERY
    wanted = ChangeRange(
        id=opid, incarnation=revision.incarnation, first=revision.version - span + 1, last=revision.version
    )
    changes = (yield from fetch_changes([wanted]))[opid]
    writes = [
        JoinChanges(
            range=msgspec.structs.replace(wanted, first=run[0].version, last=run[-1].version),
            count=len(run),
            payload=join_facts(change.payload for change in run),
        )
        for run in _runs(changes)
    ]
    if writes and not all(cast("Sequence[bool]", (yield WriteRows(writes)))):
        raise RaceLost


def _runs(changes: Sequence[ChangeRow]) -> list[list[ChangeRow]]:
    """
    Return neighbours that are not too large together, where there are several.
    """
    runs: list[list[ChangeRow]] = []
    total = JOINED_LIMIT
    for change in changes:
        size = len(change.payload.encode())
        if total + size > JOINED_LIMIT:
            runs.append([])
            total = 0
        runs[-1].append(change)
        total += size
    return [run for run in runs if len(run) > 1]


@final
class Folds:
    """
    Remembers of operations that were met lately whether they are large: where their rows were left as they are.
    """

    def __init__(self) -> None:
        self._folds: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def get(self, opid: str, incarnation: int) -> int | None:
        """
        Return at which version the row was left; None if that is not known, or it was not.
        """
        met, folded = self._folds.get(opid, (None, None))
        return folded if met == incarnation else None

    def note(self, opid: str, incarnation: int, folded: int | None) -> None:
        """
        Remember what was read or written.
        """
        if folded is None:
            self._folds.pop(opid, None)
            return
        self._folds[opid] = incarnation, folded
        self._folds.move_to_end(opid)
        if len(self._folds) > _MOST_FOLDS:
            self._folds.popitem(last=False)
