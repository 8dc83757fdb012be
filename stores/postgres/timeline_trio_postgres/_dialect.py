"""
The row operations in PostgreSQL's SQL, on one connection, in as few round trips as they can be done in.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
import psycopg
from psycopg.types.numeric import Int8

from timeline_trio.store import (
    AppendChange,
    Change,
    ChangeRow,
    InsertRow,
    JoinChanges,
    RaceLost,
    ReplaceRow,
    Revision,
    Row,
    RowHead,
)

from ._failures import rejection_of
from ._schema import changes_name, table_name
from ._timestamps import Timestamp

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from psycopg import Connection, Cursor

    from timeline_trio.store import ChangeRange, RowWrite, StoreRejected

    Parameters = tuple[str | Int8 | Timestamp | None, ...]

_GREATEST_INTEGER: Final = 2**63 - 1

# Whatever the role's or the database's default is: a merge that lost a race reads what was committed since.
_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"

_HEADS: Final = "SELECT id, version, created_at, updated_at, {folded} FROM {table} WHERE id = ANY(%s::text[])"
_ROWS: Final = """\
SELECT id, version, created_at, updated_at, {folded}, payload::text FROM {table} WHERE id = ANY(%s::text[])"""
# In the order of ids, so that transactions over the same rows wait for each other instead of deadlocking.
_LOCKED: Final = ' ORDER BY id COLLATE "C" FOR UPDATE'
# By name, "C" is what the index of SCHEMA is in; with another collation the rows of one moment are sorted.
_RECENT_HEADS: Final = """\
SELECT id, version, created_at, updated_at, {folded} FROM {table}
WHERE updated_at > %s ORDER BY updated_at DESC, id COLLATE "C" DESC LIMIT %s
"""
_CHANGES: Final = """\
SELECT id, version, payload::text FROM {changes}
WHERE id = %s AND incarnation = %s AND version BETWEEN %s AND %s ORDER BY version
"""
_INSERT: Final = """\
INSERT INTO {table} (id, payload, version, created_at, updated_at) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (id) DO NOTHING
"""
_SWEEP_AND: Final = "WITH swept AS (DELETE FROM {changes} WHERE id = %s) "
_STEP: Final = """\
    version = version + 1,
    updated_at = CASE
        WHEN updated_at BETWEEN %s AND %s THEN updated_at + interval '1 microsecond' ELSE %s
    END
WHERE id = %s AND created_at = %s AND version = %s
"""
_REPLACE: Final = "UPDATE {table} SET payload = %s,{step}"
_APPEND: Final = """\
WITH stepped AS (UPDATE {table} SET folded = %s,{step} AND folded IS NOT DISTINCT FROM %s RETURNING 1)
INSERT INTO {changes} (id, incarnation, version, payload) SELECT %s, %s, %s, %s FROM stepped
"""
_DELETE_CHANGES: Final = """\
DELETE FROM {changes} WHERE id = %s AND incarnation = %s AND version BETWEEN %s AND %s
"""
_INSERT_CHANGE: Final = "INSERT INTO {changes} (id, incarnation, version, payload) VALUES (%s, %s, %s, %s)"


class Statements(msgspec.Struct, frozen=True):
    """
    The statements, for one table.
    """

    sweeps: bool  # whether an insert takes the id once more, for what it sweeps away
    heads: bytes
    locked_heads: bytes
    rows: bytes
    locked_rows: bytes
    recent_heads: bytes
    changes: bytes
    insert: bytes
    replace: bytes
    append: bytes
    delete_changes: bytes
    insert_change: bytes

    @classmethod
    def of(cls, schema: str, *, has_folds: bool = True, keeps_changes: bool = True) -> Statements:
        """
        Return the statements for the tables of a schema, or "" for those that the search path finds.

        Args:
            schema: where the tables are.
            has_folds: whether a row may say that it has changes beside it.
            keeps_changes: whether we may add some, and sweep them away.
        """
        parts = {
            "{table}": table_name(schema),
            "{changes}": changes_name(schema),
        }
        insert = _SWEEP_AND + _INSERT if keeps_changes else _INSERT
        replace = _REPLACE + "AND folded IS NULL" if has_folds else _REPLACE
        texts = (
            _HEADS,
            _HEADS + _LOCKED,
            _ROWS,
            _ROWS + _LOCKED,
            _RECENT_HEADS,
            _CHANGES,
            insert,
            replace,
            _APPEND,
            _DELETE_CHANGES,
            _INSERT_CHANGE,
        )

        def fill(text: str) -> bytes:
            text = text.replace("{step}", _STEP).replace("{folded}", "folded" if has_folds else "NULL::bigint")
            for mark, name in parts.items():
                # A per cent sign in a name is none of a parameter.
                text = text.replace(mark, name.as_string(None).replace("%", "%%"))
            return text.encode()

        return cls(keeps_changes, *map(fill, texts))


class RowRefused(Exception):
    """
    A row of several can never be written, and the transaction has failed with it: start anew, carefully.
    """


class PostgresDialect:
    """
    Does a script's row operations.

    Args:
        connection: one that commits each statement by itself.
        statements: what to say.
        transaction: whether to begin one before the first operation. Whoever made the dialect ends it.
        careful: whether a row that is refused must leave the transaction intact, at the cost of round trips.

    Attributes:
        begun: whether there is a transaction to end.
        changes: which rows were written.
    """

    def __init__(
        self, connection: Connection, statements: Statements, *, transaction: bool = False, careful: bool = False
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._transaction = transaction
        self._careful = careful
        self.begun: bool = False
        self.changes: list[Change] = []

    def fetch_heads(self, ids: Sequence[str], *, lock: bool = False) -> list[RowHead]:
        """
        Answer `FetchHeads`.
        """
        statement = self._statements.locked_heads if lock else self._statements.heads
        with self._together(), self._cursor() as cursor:
            return [_head(*columns) for columns in cursor.execute(statement, (list(ids),))]

    def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> list[Row]:
        """
        Answer `FetchRows`.
        """
        statement = self._statements.locked_rows if lock else self._statements.rows
        with self._together(), self._cursor() as cursor:
            return [_row(*columns) for columns in cursor.execute(statement, (list(ids),))]

    def fetch_recent_heads(self, after: int, limit: int) -> list[RowHead]:
        """
        Answer `FetchRecentHeads`.
        """
        bounds = (Timestamp.nearest(after), Int8(min(limit, _GREATEST_INTEGER)))
        with self._together(), self._cursor() as cursor:
            return [_head(*columns) for columns in cursor.execute(self._statements.recent_heads, bounds)]

    def fetch_changes(self, ranges: Sequence[ChangeRange]) -> list[ChangeRow]:
        """
        Answer `FetchChanges`.
        """
        cursors: list[Cursor] = []
        with self._connection.pipeline():
            if self._transaction:
                self._begin()
            for each in ranges:
                cursor = self._cursor()
                cursor.execute(self._statements.changes, _range_of(each))
                cursors.append(cursor)
        return [
            ChangeRow(id=id_, version=version, payload=payload or "")
            for cursor in cursors
            for id_, version, payload in cursor
        ]

    def write_rows(self, writes: Sequence[RowWrite]) -> list[bool | StoreRejected]:
        """
        Answer `WriteRows`.

        Raises:
            RowRefused: in a transaction, unless it is careful.
        """
        if joins := [write for write in writes if isinstance(write, JoinChanges)]:
            return [self._join(write) for write in joins]
        if self._transaction and not self._careful:
            outcome: list[bool | StoreRejected] = [*self._write_together(writes)]
        else:
            outcome = [self._write_alone(write) for write in writes]
        self.changes += [
            _change(write)
            for write, done in zip(writes, outcome, strict=True)
            if done is True and not isinstance(write, JoinChanges)
        ]
        return outcome

    def _write_together(self, writes: Sequence[RowWrite]) -> list[bool]:
        cursors: list[Cursor] = []
        try:
            with self._connection.pipeline():
                self._begin()
                for write in writes:
                    cursor = self._cursor()
                    cursor.execute(*self._statement_of(write))
                    cursors.append(cursor)
        except psycopg.Error as error:
            if rejection_of(error, "") is not None:
                raise RowRefused from error
            raise
        return [cursor.rowcount == 1 for cursor in cursors]

    def _write_alone(self, write: RowWrite) -> bool | StoreRejected:
        with self._cursor() as cursor:
            try:
                if not self._transaction:
                    cursor.execute(*self._statement_of(write))
                else:
                    self._begin()
                    with self._connection.transaction():  # a savepoint, inside of the transaction
                        cursor.execute(*self._statement_of(write))
            except psycopg.Error as error:
                if rejection := rejection_of(error, write.id):
                    return rejection
                raise
            return cursor.rowcount == 1

    def _join(self, write: JoinChanges) -> bool:
        joined = write.range
        with self._cursor() as cursor:
            self._begin()
            if cursor.execute(self._statements.delete_changes, _range_of(joined)).rowcount != write.count:
                raise RaceLost  # which rolls back what was deleted
            values = (joined.id, Int8(joined.incarnation), Int8(joined.last), write.payload)
            cursor.execute(self._statements.insert_change, values)
        return True

    def _statement_of(self, write: RowWrite) -> tuple[bytes, Parameters]:
        statements = self._statements
        match write:
            case InsertRow(row):
                swept = (row.id,) if statements.sweeps else ()
                return statements.insert, (*swept, *_columns_of(row))
            case ReplaceRow():
                return statements.replace, (write.payload, *_step_of(write))
            case AppendChange():
                was_folded = None if write.was_folded is None else Int8(write.was_folded)
                change = (write.id, Int8(write.expected.incarnation), Int8(write.expected.version + 1), write.payload)
                return statements.append, (Int8(write.folded), *_step_of(write), was_folded, *change)
            case JoinChanges():
                raise AssertionError("it is two statements")

    @contextmanager
    def _together(self) -> Generator[None]:
        """
        Send what is done in the block with the BEGIN before it, if that is still to be sent.
        """
        if not self._transaction or self.begun:
            yield
            return
        with self._connection.pipeline():
            self._begin()
            yield

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            self._connection.execute(_BEGIN, prepare=False)

    def _cursor(self) -> Cursor:
        return self._connection.cursor(binary=True)


def _columns_of(row: Row) -> Parameters:
    # Of one width, whatever the number: each combination of types would be prepared anew.
    return row.id, row.payload, Int8(row.version), Timestamp(row.created_at), Timestamp(row.updated_at)


def _step_of(write: ReplaceRow | AppendChange) -> Parameters:
    stamps = (Timestamp(write.now), Timestamp(write.ahead), Timestamp(write.now))
    expected = write.expected
    return *stamps, write.id, Timestamp(expected.incarnation), Int8(expected.version)


def _range_of(changes: ChangeRange) -> Parameters:
    return changes.id, Int8(changes.incarnation), Int8(changes.first), Int8(changes.last)


def _change(write: InsertRow | ReplaceRow | AppendChange) -> Change:
    if isinstance(write, InsertRow):
        return Change(write.id, write.row.revision)
    return Change(write.id, Revision(write.expected.incarnation, write.expected.version + 1))


def _head(id_: str, version: int, created_at: int, updated_at: int, folded: int | None) -> RowHead:
    return RowHead(id=id_, version=version, created_at=created_at, updated_at=updated_at, folded=folded)


def _row(id_: str, version: int, created_at: int, updated_at: int, folded: int | None, payload: str | None) -> Row:
    # A table of somebody else's may have rows without one: the row is found to be corrupt.
    return Row(
        id=id_,
        version=version,
        created_at=created_at,
        updated_at=updated_at,
        folded=folded,
        payload=payload or "",
    )
