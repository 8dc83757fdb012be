"""
The table that documents are kept in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeline_trio.store import StoreUnavailable

if TYPE_CHECKING:
    import sqlite3

SCHEMA: Final = """\
CREATE TABLE IF NOT EXISTS timelines (
    id TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    payload TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS timelines_updated ON timelines (updated_at, id);
"""
"""
The DDL, for migrations of your own. Times are microseconds since the epoch, UTC: integers sort by time.

The payload comes last: SQLite reads through all of a large value to get at the columns behind it.
"""

_ID_COLLATION: Final = """\
SELECT columns.coll FROM pragma_index_list('timelines') AS indexes, pragma_index_xinfo(indexes.name) AS
columns WHERE indexes.origin = 'pk' AND columns.key AND columns.name = 'id'
"""


def create_table(connection: sqlite3.Connection) -> None:
    """
    Create what is missing of the schema, inside the transaction that is open.
    """
    # Not by executescript, which would commit first.
    for statement in SCHEMA.split(";\n"):
        connection.execute(statement)


def check_collation(connection: sqlite3.Connection) -> None:
    """
    Refuse a table made by somebody else in which ids that differ by case would share a row.

    Raises:
        StoreUnavailable: its ids do not compare byte by byte.
    """
    for (collation,) in connection.execute(_ID_COLLATION):
        if collation != "BINARY":
            raise StoreUnavailable(
                "",
                f"the column timelines.id has the collation {collation}, by which different operations would "
                "share a row; copy the table into one made with timeline_trio_sqlite.SCHEMA",
            )
