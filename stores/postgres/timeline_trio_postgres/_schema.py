"""
The table that documents are kept in.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec
from psycopg import sql

from timeline_trio.store import StoreUnavailable

if TYPE_CHECKING:
    from psycopg import Connection

SCHEMA: Final = """\
CREATE TABLE IF NOT EXISTS timelines (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    payload json NOT NULL,
    version bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    folded bigint
);
CREATE INDEX IF NOT EXISTS timelines_updated ON timelines (updated_at, id);
CREATE TABLE IF NOT EXISTS timeline_changes (
    id text COLLATE "C" NOT NULL,
    incarnation bigint NOT NULL,
    version bigint NOT NULL,
    payload json NOT NULL,
    PRIMARY KEY (id, incarnation, version)
);
"""
"""
The DDL, for migrations of your own. Without the second table and the column `folded`, each save writes its operation
anew, however large that is.

`json` is checked text, returned as it was written; `jsonb` would not do, since it rewrites numbers and refuses the
character U+0000. The collation "C" lets the index serve the order of ids.
"""

_COLUMNS: Final = """\
SELECT namespace.nspname, attribute.attname, type.typname, attribute.atttypmod,
    coalesce(collation_.collisdeterministic, true)
FROM pg_catalog.pg_class AS class
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
JOIN pg_catalog.pg_attribute AS attribute
    ON attribute.attrelid = class.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
JOIN pg_catalog.pg_type AS type ON type.oid = attribute.atttypid
LEFT JOIN pg_catalog.pg_collation AS collation_ ON collation_.oid = attribute.attcollation
WHERE class.oid = pg_catalog.to_regclass(%s::text)
"""

_TYPES: Final = {
    "id": (("text", "varchar"), 'text COLLATE "C"'),
    "payload": (("json", "text", "varchar"), "json USING payload::text::json"),
    "version": (("int8",), "bigint"),
    "created_at": (("timestamptz",), "timestamptz"),
    "updated_at": (("timestamptz",), "timestamptz"),
}
"""
By column: the types that serve, and the one to change others to.
"""
_ADD_FOLDED: Final = "ALTER TABLE {} ADD COLUMN IF NOT EXISTS folded bigint"
_MAY_KEEP_CHANGES: Final = """\
SELECT coalesce(bool_and(pg_catalog.has_table_privilege(pg_catalog.to_regclass(%s::text)::oid, privilege)), false)
FROM pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'DELETE']) AS privilege
"""
_TIMESTAMP_PRECISIONS: Final = (-1, 6)  # not said, or microseconds
_LONGEST_NAME: Final = 63  # bytes
_LOCK: Final = 0x74696D656C696E65  # any number, the same for all who create this table


class Layout(msgspec.Struct, frozen=True):
    """
    Where the table was found.

    Attributes:
        channel: what its changes are told on: channels are the database's, not the schema's.
        has_folds: whether a row may say that it has changes beside it.
        keeps_changes: whether there is a place for these, and we may use it.
    """

    channel: str
    has_folds: bool
    keeps_changes: bool


def table_name(schema: str) -> sql.Identifier:
    """
    Return the table's name, for statements.
    """
    return sql.Identifier(schema, "timelines") if schema else sql.Identifier("timelines")


def changes_name(schema: str) -> sql.Identifier:
    """
    Return the name of the table of changes, for statements.
    """
    return sql.Identifier(schema, "timeline_changes") if schema else sql.Identifier("timeline_changes")


def inspect(connection: Connection, schema: str, name: str) -> Layout | None:
    """
    Look at the table that is there; return nothing if there is none.

    Raises:
        StoreUnavailable: it would not keep what it is given.
    """
    with connection.cursor() as cursor:
        columns = cursor.execute(_COLUMNS, (table_name(schema).as_string(None),)).fetchall()
        ((may,),) = cursor.execute(_MAY_KEEP_CHANGES, (changes_name(schema).as_string(None),)).fetchall()
    found = ""
    for namespace, column, type_name, modifier, deterministic in columns:
        found = str(namespace)
        types, wanted = _TYPES.get(column, ((), ""))
        if not wanted:
            continue
        if type_name not in types:
            _refuse(name, f"{column} has the type {type_name}", column, wanted)
        if type_name == "timestamptz" and modifier not in _TIMESTAMP_PRECISIONS:
            _refuse(name, f"{column} rounds to {modifier} decimals of a second", column, wanted)
        if column == "id" and not deterministic:
            _refuse(name, "id has a collation by which different operations would share a row", column, wanted)
    has_folds = any(column == "folded" for _, column, *_ in columns)
    return Layout(_channel(found), has_folds, has_folds and bool(may)) if found else None


def create(connection: Connection, schema: str) -> None:
    """
    Create what is missing of the tables.
    """
    with connection.transaction(), connection.cursor() as cursor:
        # Two who create a table at once would fail on the system's own tables.
        cursor.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (_LOCK,))
        if schema:
            cursor.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))
        for statement in SCHEMA.split(";\n"):
            if statement:
                cursor.execute(statement.encode())
        cursor.execute(sql.SQL(_ADD_FOLDED).format(table_name(schema)))


def _refuse(name: str, problem: str, column: str, wanted: str) -> None:
    raise StoreUnavailable(
        "", f"{name}: timelines.{problem}; run: ALTER TABLE timelines ALTER COLUMN {column} TYPE {wanted}"
    )


def _channel(schema: str) -> str:
    channel = f"timelines:{schema}"
    return (
        channel if len(channel.encode()) <= _LONGEST_NAME else f"timelines:{sha256(schema.encode()).hexdigest()[:40]}"
    )
