"""
The row operations in SQLite's SQL, on one connection, inside of one transaction.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from timeline_trio.store import InsertRow, Row, RowHead, StoreRejected

from ._failures import primary_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from timeline_trio.store import RowWrite

_IDS_PER_STATEMENT: Final = 500  # below the 999 variables that an old SQLite takes
_GREATEST_INTEGER: Final = 2**63 - 1

_SELECT_HEADS: Final = "SELECT id, version, created_at, updated_at FROM timelines WHERE id IN "
_SELECT_ROWS: Final = "SELECT id, version, created_at, updated_at, payload FROM timelines WHERE id IN "
_SELECT_RECENT_HEADS: Final = """\
SELECT id, version, created_at, updated_at FROM timelines
WHERE updated_at > ? ORDER BY updated_at DESC, id DESC LIMIT ?
"""
_SELECT_CHANGED_HEADS: Final = """\
SELECT id, version, created_at, updated_at FROM timelines
WHERE updated_at > ? AND updated_at <= ? ORDER BY updated_at DESC, id DESC LIMIT ?
"""
_INSERT: Final = """\
INSERT INTO timelines (id, version, created_at, updated_at, payload) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
_REPLACE: Final = """\
UPDATE timelines SET
    payload = ?,
    version = version + 1,
    updated_at = CASE WHEN updated_at BETWEEN ? AND ? THEN updated_at + 1 ELSE ? END
WHERE id = ? AND created_at = ? AND version = ?
"""


def decode_text(stored: bytes) -> str:
    """
    Read text that may have been damaged, so that one bad row is found out and does not fail the others.
    """
    return stored.decode(errors="surrogateescape")


class SQLiteDialect:
    """
    Does a script's row operations.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def fetch_heads(self, ids: Sequence[str]) -> list[RowHead]:
        """
        Answer `FetchHeads`.
        """
        return [_head(*columns) for cursor in self._select(_SELECT_HEADS, ids) for columns in cursor]

    def fetch_rows(self, ids: Sequence[str], *, lock: bool = False) -> list[Row]:
        """
        Answer `FetchRows`. A transaction that writes has the whole file locked from its beginning.
        """
        del lock
        return [_row(*columns) for cursor in self._select(_SELECT_ROWS, ids) for columns in cursor]

    def fetch_recent_heads(self, after: int, limit: int) -> list[RowHead]:
        """
        Answer `FetchRecentHeads`.
        """
        rows = self._connection.execute(_SELECT_RECENT_HEADS, (_clamped(after), min(limit, _GREATEST_INTEGER)))
        return [_head(*columns) for columns in rows]

    def fetch_changed_heads(self, after: int, until: int, limit: int) -> list[RowHead]:
        """
        Return the heads of rows with `after < updated_at <= until`, by `updated_at` descending, at most `limit`.
        """
        rows = self._connection.execute(_SELECT_CHANGED_HEADS, (_clamped(after), _clamped(until), limit))
        return [_head(*columns) for columns in rows]

    def write_rows(self, writes: Sequence[RowWrite]) -> list[bool | StoreRejected]:
        """
        Answer `WriteRows`.
        """
        return [self._write(write) for write in writes]

    def _select(self, statement: str, ids: Sequence[str]) -> Iterator[sqlite3.Cursor]:
        for start in range(0, len(ids), _IDS_PER_STATEMENT):
            chunk = tuple(ids[start : start + _IDS_PER_STATEMENT])
            marks = ", ".join("?" * len(chunk))
            yield self._connection.execute(f"{statement} ({marks})", chunk)

    def _write(self, write: RowWrite) -> bool | StoreRejected:
        try:
            return self._connection.execute(*_statement_of(write)).rowcount == 1
        except (sqlite3.DataError, OverflowError) as error:
            if isinstance(error, sqlite3.Error) and primary_code(error) != sqlite3.SQLITE_TOOBIG:
                raise
            rejection = StoreRejected(write.id, "the document is larger than SQLite can hold in one row")
            rejection.__cause__ = error
            return rejection


def _clamped(number: int) -> int:
    return max(-_GREATEST_INTEGER, min(number, _GREATEST_INTEGER))


def _statement_of(write: RowWrite) -> tuple[str, tuple[str | int, ...]]:
    if isinstance(write, InsertRow):
        row = write.row
        return _INSERT, (row.id, row.version, row.created_at, row.updated_at, row.payload)
    expected = write.expected
    stamps = (write.now, write.ahead, write.now)
    return _REPLACE, (write.payload, *stamps, write.id, expected.incarnation, expected.version)


def _head(id_: str, version: int, created_at: int, updated_at: int) -> RowHead:
    return RowHead(id=id_, version=version, created_at=created_at, updated_at=updated_at)


def _row(id_: str, version: int, created_at: int, updated_at: int, payload: object) -> Row:
    # Whatever else a damaged or foreign table holds there is no payload, and the row is found to be corrupt.
    text = payload if isinstance(payload, str) else ""
    return Row(id=id_, version=version, created_at=created_at, updated_at=updated_at, payload=text)
