"""
The tables that documents are kept in, and who may use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg import sql

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

_RIGHTS: Final = {
    "timelines": "SELECT, INSERT, UPDATE",
    "timeline_changes": "SELECT, INSERT, DELETE",
}
_ADD_FOLDED: Final = "ALTER TABLE {} ADD COLUMN IF NOT EXISTS folded bigint"
_LOCK: Final = 0x74696D656C696E65  # any number, the same for all who create this table


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


def spoken_name(schema: str, table: str) -> str:
    """
    Return what messages call a table, in statements to paste too.
    """
    return sql.Identifier(schema, table).as_string(None) if schema else table


def identifier(name: str) -> str:
    """
    Return a name as it stands in statements to paste.
    """
    return sql.Identifier(name).as_string(None)


def grants(schema: str, user: str, *tables: str) -> str:
    """
    Return the statements that give a user the rights to use the tables, or those of them that are named.
    """
    statements = [
        f"GRANT {rights} ON {spoken_name(schema, table)} TO {identifier(user)}"
        for table, rights in _RIGHTS.items()
        if not tables or table in tables
    ]
    if schema:
        statements.insert(0, f"GRANT USAGE ON SCHEMA {identifier(schema)} TO {identifier(user)}")
    return "; ".join(statements)


def user_of(connection: Connection) -> str:
    """
    Return whose rights count.
    """
    with connection.cursor() as cursor:
        ((user,),) = cursor.execute(b"SELECT current_user::text").fetchall()
    return str(user)


def creation_schema(connection: Connection) -> str:
    """
    Return where a table would be made of which the schema is not said.
    """
    with connection.cursor() as cursor:
        ((schema,),) = cursor.execute(b"SELECT pg_catalog.current_schema()::text").fetchall()
    return str(schema or "public")


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
