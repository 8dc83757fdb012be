"""
The row operations in SQLite's SQL, on one connection, inside of one transaction.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from timeline_trio.store import (
    AppendChange,
    ChangeRow,
    InsertRow,
    JoinChanges,
    RaceLost,
    ReplaceRow,
    Row,
    RowHead,
    StoreRejected,
)

from ._failures import primary_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from timeline_trio.store import ChangeRange, RowWrite

_IDS_PER_STATEMENT: Final = 500  # below the 999 variables that an old SQLite takes
_GREATEST_INTEGER: Final = 2**63 - 1

_HEAD: Final = "id, version, created_at, updated_at"
_RECENT: Final = "WHERE updated_at > ? ORDER BY updated_at DESC, id DESC LIMIT ?"
_CHANGES: Final = """\
SELECT id, version, payload FROM timeline_changes
WHERE id = ? AND incarnation = ? AND version BETWEEN ? AND ? ORDER BY version
"""
_CHANGED: Final = "WHERE updated_at > ? AND updated_at <= ? ORDER BY updated_at DESC, id DESC LIMIT ?"
_INSERT: Final = """\
INSERT INTO timelines (id, version, created_at, updated_at, payload) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
_STEP: Final = """\
version = version + 1, updated_at = CASE WHEN updated_at BETWEEN ? AND ? THEN updated_at + 1 ELSE ? END
WHERE id = ? AND created_at = ? AND version = ?
"""
_INSERT_CHANGE: Final = "INSERT INTO timeline_changes (id, incarnation, version, payload) VALUES (?, ?, ?, ?)"
_DELETE_CHANGES: Final = """\
DELETE FROM timeline_changes WHERE id = ? AND incarnation = ? AND version BETWEEN ? AND ?
"""
_SWEEP: Final = "DELETE FROM timeline_changes WHERE id = ?"


def decode_text(stored: bytes) -> str:
    """
    Read text that may have been damaged, so that one bad row is found out and does not fail the others.
    """
    return stored.decode(errors="surrogateescape")


class SQLiteDialect:
    """
    Does a script's row operations.

    Args:
        connection: with a transaction that the caller ends.
        keeps_changes: whether there is a place for changes beside the rows.
    """

    def __init__(self, connection: sqlite3.Connection, *, keeps_changes: bool = True) -> None:
        self._connection = connection
        self._keeps_changes = keeps_changes
        self._head = f"{_HEAD}, folded" if keeps_changes else f"{_HEAD}, NULL"
        self._unfolded = " AND folded IS NULL" if keeps_changes else ""

    def fetch_heads(self, ids: Sequence[str], *, lock: bool = False) -> list[RowHead]:
        """
        Answer `FetchHeads`. A transaction that writes has the whole file locked from its beginning.
        """
        del lock
        return [_head(*columns) for cursor in self._select(self._head, ids) for columns in cursor]

    def fetch_rows(self, ids: Sequence[str], *, lock: bool = False) -> list[Row]:
        """
        Answer `FetchRows`, likewise.
        """
        del lock
        return [_row(*columns) for cursor in self._select(f"{self._head}, payload", ids) for columns in cursor]

    def fetch_recent_heads(self, after: int, limit: int) -> list[RowHead]:
        """
        Answer `FetchRecentHeads`.
        """
        statement = f"SELECT {self._head} FROM timelines {_RECENT}"  # noqa: S608 - of our own parts, as all below
        rows = self._connection.execute(statement, (_clamped(after), min(limit, _GREATEST_INTEGER)))
        return [_head(*columns) for columns in rows]

    def fetch_changed_heads(self, after: int, until: int, limit: int) -> list[RowHead]:
        """
        Return the heads of rows with `after < updated_at <= until`, by `updated_at` descending, at most `limit`.
        """
        statement = f"SELECT {self._head} FROM timelines {_CHANGED}"  # noqa: S608
        rows = self._connection.execute(statement, (_clamped(after), _clamped(until), limit))
        return [_head(*columns) for columns in rows]

    def fetch_changes(self, ranges: Sequence[ChangeRange]) -> list[ChangeRow]:
        """
        Answer `FetchChanges`.
        """
        return [
            ChangeRow(id=id_, version=version, payload=payload if isinstance(payload, str) else "")
            for each in ranges
            for id_, version, payload in self._connection.execute(_CHANGES, _values_of(each))
        ]

    def write_rows(self, writes: Sequence[RowWrite]) -> list[bool | StoreRejected]:
        """
        Answer `WriteRows`.
        """
        return [self._write(write) for write in writes]

    def _select(self, columns: str, ids: Sequence[str]) -> Iterator[sqlite3.Cursor]:
        for start in range(0, len(ids), _IDS_PER_STATEMENT):
            chunk = tuple(ids[start : start + _IDS_PER_STATEMENT])
            marks = ", ".join("?" * len(chunk))
            statement = f"SELECT {columns} FROM timelines WHERE id IN ({marks})"  # noqa: S608
            yield self._connection.execute(statement, chunk)

    def _write(self, write: RowWrite) -> bool | StoreRejected:
        try:
            return self._do(write)
        except (sqlite3.DataError, OverflowError) as error:
            if isinstance(error, sqlite3.Error) and primary_code(error) != sqlite3.SQLITE_TOOBIG:
                raise
            rejection = StoreRejected(write.id, "the document is larger than SQLite can hold in one row")
            rejection.__cause__ = error
            return rejection

    def _do(self, write: RowWrite) -> bool:
        run = self._connection.execute
        match write:
            case InsertRow(row):
                values = (row.id, row.version, row.created_at, row.updated_at, row.payload)
                done = run(_INSERT, values).rowcount == 1
                if done and self._keeps_changes:
                    run(_SWEEP, (row.id,))
                return done
            case ReplaceRow():
                statement = f"UPDATE timelines SET payload = ?, {_STEP}{self._unfolded}"  # noqa: S608
                return run(statement, (write.payload, *_step_of(write))).rowcount == 1
            case AppendChange():
                statement = f"UPDATE timelines SET folded = ?, {_STEP} AND folded IS ?"  # noqa: S608
                if run(statement, (write.folded, *_step_of(write), write.was_folded)).rowcount == 0:
                    return False
                expected = write.expected
                run(_INSERT_CHANGE, (write.id, expected.incarnation, expected.version + 1, write.payload))
                return True
            case JoinChanges(range=joined):
                if run(_DELETE_CHANGES, _values_of(joined)).rowcount != write.count:
                    raise RaceLost  # which rolls back what was deleted
                run(_INSERT_CHANGE, (joined.id, joined.incarnation, joined.last, write.payload))
                return True


def _clamped(number: int) -> int:
    return max(-_GREATEST_INTEGER, min(number, _GREATEST_INTEGER))


def _step_of(write: ReplaceRow | AppendChange) -> tuple[int | str, ...]:
    expected = write.expected
    return write.now, write.ahead, write.now, write.id, expected.incarnation, expected.version


def _values_of(changes: ChangeRange) -> tuple[str, int, int, int]:
    return changes.id, changes.incarnation, changes.first, changes.last


def _head(id_: str, version: int, created_at: int, updated_at: int, folded: int | None) -> RowHead:
    return RowHead(id=id_, version=version, created_at=created_at, updated_at=updated_at, folded=folded)


def _row(id_: str, version: int, created_at: int, updated_at: int, folded: int | None, payload: object) -> Row:
    # Whatever else a damaged or foreign table holds there is no payload, and the row is found to be corrupt.
    text = payload if isinstance(payload, str) else ""
    return Row(id=id_, version=version, created_at=created_at, updated_at=updated_at, folded=folded, payload=text)
