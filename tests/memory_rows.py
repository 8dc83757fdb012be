"""
Rows in memory: what a database of rows does, without any database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeline_trio.store import (
    AppendChange,
    ChangeRow,
    FetchChanges,
    FetchHeads,
    FetchRecentHeads,
    FetchRows,
    InsertRow,
    JoinChanges,
    RaceLost,
    ReplaceRow,
    Row,
    RowHead,
    WriteRows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeline_trio.store import ChangeRange, RowOperation, RowWrite


class MemoryRows:
    """
    A table of rows, and one of changes by id, incarnation and version.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.changes: dict[tuple[str, int, int], str] = {}

    def do(self, operation: RowOperation) -> object:
        """
        Answer a row operation.
        """
        match operation:
            case FetchHeads(ids) | FetchRows(ids):
                return self.fetch_rows(ids)
            case FetchRecentHeads(after, limit):
                return self.fetch_recent_heads(after, limit)
            case FetchChanges(ranges):
                return self.fetch_changes(ranges)
            case WriteRows(writes):
                return [self.write(write) for write in writes]

    def fetch_rows(self, ids: Sequence[str]) -> list[Row]:
        return [self.rows[opid] for opid in ids if opid in self.rows]

    def fetch_recent_heads(self, after: int, limit: int) -> Sequence[RowHead]:
        recent = [row for row in self.rows.values() if row.updated_at > after]
        return sorted(recent, key=lambda row: (row.updated_at, row.id), reverse=True)[:limit]

    def fetch_changes(self, ranges: Sequence[ChangeRange]) -> list[ChangeRow]:
        return [
            ChangeRow(id=each.id, version=version, payload=self.changes[each.id, each.incarnation, version])
            for each in ranges
            for version in self.versions(each)
        ]

    def versions(self, wanted: ChangeRange) -> list[int]:
        """
        Return the versions in a range that there are changes of.
        """
        return sorted(
            version
            for opid, incarnation, version in self.changes
            if (opid, incarnation) == (wanted.id, wanted.incarnation) and wanted.first <= version <= wanted.last
        )

    def write(self, write: RowWrite) -> bool:
        match write:
            case InsertRow(row):
                if row.id in self.rows:
                    return False
                self.rows[row.id] = row
                self.changes = {key: payload for key, payload in self.changes.items() if key[0] != row.id}
                return True
            case ReplaceRow():
                return self._step(write, None)
            case AppendChange():
                if not self._step(write, write.was_folded):
                    return False
                self.changes[write.id, write.expected.incarnation, write.expected.version + 1] = write.payload
                return True
            case JoinChanges(range=joined):
                versions = self.versions(joined)
                if len(versions) != write.count:
                    raise RaceLost
                for version in versions:
                    del self.changes[joined.id, joined.incarnation, version]
                self.changes[joined.id, joined.incarnation, joined.last] = write.payload
                return True

    def _step(self, write: ReplaceRow | AppendChange, folded: int | None) -> bool:
        row = self.rows.get(write.id)
        if row is None or row.revision != write.expected or row.folded != folded:
            return False
        self.rows[write.id] = write.applied_to(row)
        return True
