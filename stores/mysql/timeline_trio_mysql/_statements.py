"""
The statements, with `?` for each value: they are prepared, and no value is ever part of a text.

They are portable: nothing of one vendor, no upsert, no RETURNING. Lists are padded with NULL, which equals nothing, to
a power of two, so that a connection prepares a few texts and not one for each length.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

ROWS_PER_STATEMENT: Final = 64  # a power of two

_STEP: Final = """\
    version = version + 1,
    updated_at = CASE WHEN updated_at BETWEEN ? AND ? THEN updated_at + INTERVAL 1 MICROSECOND ELSE ? END
WHERE id = ? AND created_at = ? AND version = ?
"""
REPLACE: Final = f"UPDATE timelines SET payload = ?,\n{_STEP}"  # noqa: S608 - of our own parts, as are the next two
REPLACE_UNFOLDED: Final = f"{REPLACE} AND folded IS NULL"
FOLD: Final = f"UPDATE timelines SET folded = ?,\n{_STEP} AND folded IS NULL"  # noqa: S608
STEP_FOLDED: Final = f"UPDATE timelines SET folded = ?,\n{_STEP} AND folded = ?"  # noqa: S608
# One round trip instead of a transaction, for an operation that has left no changes behind, as hardly one ever has.
INSERT_WHERE_NO_CHANGES: Final = """\
INSERT INTO timelines (id, version, created_at, updated_at, payload)
SELECT ?, ?, ?, ?, ? FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM timeline_changes WHERE id = ?)
"""
DELETE_RANGE: Final = """\
DELETE FROM timeline_changes WHERE id = ? AND incarnation = ? AND version BETWEEN ? AND ?
"""


def padded_length(count: int) -> int:
    """
    Return the power of two that a list of that many is padded to.
    """
    return 1 << (count - 1).bit_length()


def padded(values: Sequence[T]) -> list[T | None]:
    """
    Return the values of a padded list.
    """
    return [*values, *[None] * (padded_length(len(values)) - len(values))]


def chunks_of(values: Sequence[T], longest: int = ROWS_PER_STATEMENT) -> Iterator[Sequence[T]]:
    """
    Cut a list into ones that fit into one statement each.
    """
    for start in range(0, len(values), longest):
        yield values[start : start + longest]


def powers_of(count: int) -> Iterator[int]:
    """
    Yield powers of two that add up to `count`, the greatest first: for lists that cannot be padded.
    """
    while count:
        part = 1 << (count.bit_length() - 1)
        yield part
        count -= part


@cache
def select_recent_heads(*, folds: bool) -> str:
    """
    Select the heads that changed after a time, at most so many.
    """
    return (
        f"SELECT {_head(folds=folds)} FROM timelines "  # noqa: S608 - of our own parts, as all below
        "WHERE updated_at > ? ORDER BY updated_at DESC, id DESC LIMIT ?"
    )


@cache
def select_heads(count: int, *, folds: bool, lock: bool = False) -> str:
    """
    Select heads by `count` ids. Rows are locked in the order of their ids, so that nobody waits in a circle.

    Args:
        count: a power of two.
        folds: whether the table has the column `folded`.
        lock: whether to lock.
    """
    return f"SELECT {_head(folds=folds)} FROM timelines WHERE id IN ({_marks(count)}){_order(lock=lock)}"  # noqa: S608


@cache
def select_rows(count: int, *, folds: bool, lock: bool = False) -> str:
    """
    Select rows by `count` ids, locked in the order of their ids if they are to be.
    """
    columns = f"{_head(folds=folds)}, payload"
    return f"SELECT {columns} FROM timelines WHERE id IN ({_marks(count)}){_order(lock=lock)}"  # noqa: S608


@cache
def select_changes(count: int) -> str:
    """
    Select changes by `count` ranges, those of one operation by version.
    """
    ranges = " OR ".join(["(id = ? AND incarnation = ? AND version BETWEEN ? AND ?)"] * count)
    return f"SELECT id, version, payload FROM timeline_changes WHERE {ranges} ORDER BY id, incarnation, version"  # noqa: S608


@cache
def insert_rows(count: int) -> str:
    """
    Insert `count` rows, all or none.
    """
    rows = ", ".join([f"({_marks(5)})"] * count)
    return f"INSERT INTO timelines (id, version, created_at, updated_at, payload) VALUES {rows}"  # noqa: S608


@cache
def insert_changes(count: int) -> str:
    """
    Insert `count` changes, all or none.
    """
    changes = ", ".join([f"({_marks(4)})"] * count)
    return f"INSERT INTO timeline_changes (id, incarnation, version, payload) VALUES {changes}"  # noqa: S608


@cache
def delete_changes(count: int) -> str:
    """
    Delete all changes of `count` ids.
    """
    return f"DELETE FROM timeline_changes WHERE id IN ({_marks(count)})"  # noqa: S608


@cache
def replace_rows(count: int, *, folds: bool) -> str:
    """
    Replace `count` rows that the transaction has locked: by payloads, by update times, then the ids of all.

    One statement for all of them costs a third of one for each, which costs a third of single merges. It is as portable
    as a text of several statements, which also needs each value escaped and is slower. A payload and a time are given
    as id, value pairs.
    """
    return _step_rows("payload", count) + (" AND folded IS NULL" if folds else "")


@cache
def step_rows(count: int) -> str:
    """
    Step `count` rows that the transaction has locked, and whose changes it has inserted.

    By the versions that they are folded at, by update times, then the ids of all; the first two as in `replace_rows`.
    """
    return _step_rows("folded", count)


def _step_rows(column: str, count: int) -> str:
    cases = f"CASE id {' '.join(['WHEN ? THEN ?'] * count)} END"
    return (
        f"UPDATE timelines SET {column} = {cases}, version = version + 1, updated_at = {cases} "  # noqa: S608
        f"WHERE id IN ({_marks(count)})"
    )


def _head(*, folds: bool) -> str:
    # A time comes as text: one that is none, as 31 February, is then a row's failure and not the driver's.
    return f"id, version, CAST(created_at AS CHAR), CAST(updated_at AS CHAR), {'folded' if folds else 'NULL'}"


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _order(*, lock: bool) -> str:
    return " ORDER BY id FOR UPDATE" if lock else ""
