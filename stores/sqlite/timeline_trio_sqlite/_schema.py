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
    folded INTEGER,
    payload TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS timelines_updated ON timelines (updated_at, id);
CREATE TABLE IF NOT EXISTS timeline_changes (
    id TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    version INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (id, incarnation, version)
);
"""
"""
The DDL, for migrations of your own. Times are microseconds since the epoch, UTC: integers sort by time.

Without the second table and the column `folded`, each save writes its operation anew, however large that is.
The payload comes last: SQLite reads through all of a large value to get at the columns behind it.
"""

_ADD_FOLDED: Final = "ALTER TABLE timelines ADD COLUMN folded INTEGER"
_COLUMNS: Final = "SELECT name FROM pragma_table_info(?)"

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
    if not _has_column(connection, "timelines", "folded"):
        connection.execute(_ADD_FOLDED)


def keeps_changes(connection: sqlite3.Connection) -> bool:
    """
    Tell whether there is a place for changes beside the rows.
    """
    return _has_column(connection, "timelines", "folded") and _has_column(connection, "timeline_changes", "payload")


def _has_column(connection: sqlite3.Connection, table: str, column: str) -> bool:
    return any(name == column for (name,) in connection.execute(_COLUMNS, (table,)))


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
