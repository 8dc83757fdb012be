"""
What stands in the columns, to and from the values of the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeline_trio.store import ChangeRow, InsertRow, Row, RowHead

from ._timestamps import read_time, stamp_of

if TYPE_CHECKING:
    from timeline_trio.store import AppendChange, ChangeRange, ReplaceRow, RowWrite


def payload_of(write: RowWrite) -> str:
    """
    Return the text that a write is about.
    """
    return write.row.payload if isinstance(write, InsertRow) else write.payload


def size_of(write: RowWrite) -> int:
    """
    Return its bytes.
    """
    payload = payload_of(write)
    return len(payload) if payload.isascii() else len(payload.encode())


def insert_arguments(write: InsertRow) -> tuple[object, ...]:
    """
    Return the values of a new row.
    """
    row = write.row
    return row.id, row.version, stamp_of(row.created_at), stamp_of(row.updated_at), row.payload


def step_arguments(write: ReplaceRow | AppendChange) -> tuple[object, ...]:
    """
    Return the values of the step from one version to the next.
    """
    now, ahead, expected = stamp_of(write.now), stamp_of(write.ahead), write.expected
    return now, ahead, now, write.id, stamp_of(expected.incarnation), expected.version


def change_arguments(write: AppendChange) -> tuple[object, ...]:
    """
    Return the values of a new change.
    """
    return write.id, write.expected.incarnation, write.expected.version + 1, write.payload


def range_arguments(changes: ChangeRange) -> tuple[object, ...]:
    """
    Return the values that name changes.
    """
    return changes.id, changes.incarnation, changes.first, changes.last


def read_change(id_: object, version: object, payload: object) -> ChangeRow:
    """
    Return a change of a table, whatever it holds.
    """
    # What else a damaged or foreign table holds there is no text, and the change is found to be corrupt.
    text = payload if isinstance(payload, str) else ""
    return ChangeRow(id=str(id_), version=version if isinstance(version, int) else 0, payload=text)


def read_head(id_: object, version: object, created_at: object, updated_at: object, folded: object) -> RowHead:
    """
    Return the head of a row, likewise.
    """
    row = read_row(id_, version, created_at, updated_at, folded, "")
    return RowHead(
        id=row.id, version=row.version, created_at=row.created_at, updated_at=row.updated_at, folded=row.folded
    )


def read_row(
    id_: object, version: object, created_at: object, updated_at: object, folded: object, payload: object
) -> Row:
    """
    Return a row, likewise.
    """
    created, updated = read_time(created_at), read_time(updated_at)
    if isinstance(version, int) and created is not None and updated is not None and isinstance(payload, str):
        return Row(
            id=str(id_),
            version=version,
            created_at=created,
            updated_at=updated,
            folded=folded if isinstance(folded, int) else None,
            payload=payload,
        )
    # What a damaged or foreign table holds there, a date that is none too, could never be compared: the row is corrupt.
    return Row(id=str(id_), version=0, created_at=0, updated_at=0, payload="")


def bare_row(head: RowHead) -> Row:
    """
    Return a row of which the payload does not matter.
    """
    return Row(
        id=head.id,
        version=head.version,
        created_at=head.created_at,
        updated_at=head.updated_at,
        folded=head.folded,
        payload="",
    )
