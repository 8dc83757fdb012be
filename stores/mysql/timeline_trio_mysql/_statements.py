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

REPLACE: Final = """\
UPDATE timelines SET
    payload = ?,
    version = version + 1,
    updated_at = CASE WHEN updated_at BETWEEN ? AND ? THEN updated_at + INTERVAL 1 MICROSECOND ELSE ? END
WHERE id = ? AND created_at = ? AND version = ?
"""
SELECT_RECENT_HEADS: Final = """\
SELECT id, version, created_at, updated_at FROM timelines
WHERE updated_at > ? ORDER BY updated_at DESC, id DESC LIMIT ?
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
def select_heads(count: int, *, lock: bool = False) -> str:
    """
    Select heads by `count` ids. Rows are locked in the order of their ids, so that nobody waits in a circle.
    """
    return f"SELECT id, version, created_at, updated_at FROM timelines WHERE id IN ({_marks(count)}){_order(lock=lock)}"  # noqa: S608 - marks


@cache
def select_rows(count: int, *, lock: bool = False) -> str:
    """
    Select rows by `count` ids, locked in the order of their ids if they are to be.
    """
    columns = "id, version, created_at, updated_at, payload"
    return f"SELECT {columns} FROM timelines WHERE id IN ({_marks(count)}){_order(lock=lock)}"  # noqa: S608 - marks


@cache
def insert_rows(count: int) -> str:
    """
    Insert `count` rows, all or none.
    """
    rows = ", ".join([f"({_marks(5)})"] * count)
    return f"INSERT INTO timelines (id, version, created_at, updated_at, payload) VALUES {rows}"  # noqa: S608 - marks


@cache
def replace_rows(count: int) -> str:
    """
    Replace `count` rows that the transaction has locked: by payloads, by update times, then the ids of all.

    One statement for all of them costs a third of one for each, which costs a third of single merges. It is as portable
    as a text of several statements, which also needs each value escaped and is slower. A payload and a time are given
    as id, value pairs.
    """
    cases = f"CASE id {' '.join(['WHEN ? THEN ?'] * count)} END"
    return (
        f"UPDATE timelines SET payload = {cases}, version = version + 1, updated_at = {cases} "  # noqa: S608 - marks
        f"WHERE id IN ({_marks(count)})"
    )


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _order(*, lock: bool) -> str:
    return " ORDER BY id FOR UPDATE" if lock else ""
