"""
What the tables that are there must be, and what to do where they are not.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from timeline_trio.store import StoreUnavailable

from ._schema import changes_name, grants, identifier, spoken_name, table_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from psycopg import Connection

_TABLES: Final = """\
SELECT wanted.place, class.relkind::text, namespace.nspname, current_user::text,
    (
        SELECT bool_and(pg_catalog.has_table_privilege(class.oid, privilege))
        FROM pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'DELETE']) AS privilege
    ),
    EXISTS (
        SELECT FROM pg_catalog.pg_index AS index
        WHERE index.indrelid = class.oid AND index.indisunique AND index.indisvalid AND index.indimmediate
            AND index.indpred IS NULL AND index.indexprs IS NULL
            AND wanted.key = (
                SELECT pg_catalog.array_agg(part.attname::text ORDER BY part.attname)
                FROM pg_catalog.pg_attribute AS part
                WHERE part.attrelid = class.oid
                    AND part.attnum = ANY ((index.indkey::int2[])[0:index.indnkeyatts - 1])
            )
            AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_collation AS folding
                WHERE folding.oid = ANY (index.indcollation::oid[]) AND NOT folding.collisdeterministic
            )
    ),
    (
        SELECT constraint_.conname
        FROM pg_catalog.pg_constraint AS constraint_
        JOIN pg_catalog.pg_attribute AS part
            ON part.attrelid = class.oid AND part.attname = 'id' AND constraint_.conkey = ARRAY[part.attnum]
        WHERE constraint_.conrelid = class.oid AND constraint_.contype IN ('p', 'u') AND constraint_.condeferrable
        LIMIT 1
    ),
    attribute.attname, type.typname, attribute.atttypmod, coalesce(collation_.collisdeterministic, true),
    attribute.attnotnull OR type.typnotnull,
    attribute.atthasdef OR attribute.attidentity <> '' OR type.typdefault IS NOT NULL,
    attribute.attgenerated <> '' OR attribute.attidentity = 'a'
FROM (VALUES (0, %s::text, ARRAY['id']), (1, %s::text, ARRAY['id', 'incarnation', 'version']))
    AS wanted (place, name, key)
JOIN pg_catalog.pg_class AS class ON class.oid = pg_catalog.to_regclass(wanted.name)
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
JOIN pg_catalog.pg_attribute AS attribute
    ON attribute.attrelid = class.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
JOIN pg_catalog.pg_type AS type ON type.oid = attribute.atttypid
LEFT JOIN pg_catalog.pg_collation AS collation_ ON collation_.oid = attribute.attcollation
ORDER BY wanted.place, attribute.attnum
"""

_TABLE_KINDS: Final = ("r", "p")  # ordinary, partitioned
_ID: Final = (("text", "varchar"), 'text COLLATE "C"')
_PAYLOAD: Final = (("json", "text", "varchar"), "json USING payload::text::json")
_NUMBER: Final = (("int8",), "bigint")
_TIME: Final = (("timestamptz",), "timestamptz")
# By column that the store fills: the types that serve, and the one to change others to.
_ROW_COLUMNS: Final = {
    "id": _ID,
    "payload": _PAYLOAD,
    "version": _NUMBER,
    "created_at": _TIME,
    "updated_at": _TIME,
}
_CHANGE_COLUMNS: Final = {
    "id": _ID,
    "incarnation": _NUMBER,
    "version": _NUMBER,
    "payload": _PAYLOAD,
}
_FOLDED: Final = "folded"
_TIMESTAMP_PRECISIONS: Final = (-1, 6)  # not said, or microseconds
_UNLIMITED: Final = -1
_LENGTH_WORD: Final = 4  # what the modifier of a varchar is more than its length
_LONGEST_ID: Final = 191  # characters
_LONGEST_NAME: Final = 63  # bytes


class Layout(msgspec.Struct, frozen=True):
    """
    Where the table was found.

    Attributes:
        schema: where it is.
        channel: what its changes are told on: channels are the database's, not the schema's.
        has_folds: whether a row may say that it has changes beside it.
        keeps_changes: whether there is a place for these, and we may use it.
        remedy: what to do where there is none.
    """

    schema: str
    channel: str
    has_folds: bool
    keeps_changes: bool
    remedy: str


class _Column(msgspec.Struct, frozen=True):
    """
    A column that is there.
    """

    name: str
    type: str
    modifier: int
    deterministic: bool
    required: bool
    has_default: bool
    computed: bool


class _Table(msgspec.Struct, frozen=True):
    """
    A table that is there, or what has its name.
    """

    kind: str
    schema: str
    user: str
    may: bool
    has_key: bool
    deferred: str | None  # a constraint on the ids that is checked at the end of a transaction only
    columns: tuple[_Column, ...]


class _Problem(msgspec.Struct, frozen=True):
    """
    Why a table does not serve.
    """

    fact: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.fact}; {self.remedy}"


def inspect(connection: Connection, schema: str, name: str) -> Layout | None:
    """
    Look at the tables that are there; return nothing if there is none for rows.

    Raises:
        StoreUnavailable: it would not keep what it is given.
    """
    rows, changes = _look(connection, schema)
    if rows is None:
        return None
    spoken = spoken_name(schema, "timelines")
    for problem in _problems_of_rows(rows, spoken):
        raise StoreUnavailable("", f"{name}: {problem}")
    has_folds = any(column.name == _FOLDED for column in rows.columns)
    remedy = _remedy(schema, changes, has_folds=has_folds)
    return Layout(rows.schema, _channel(rows.schema), has_folds, not remedy, remedy)


def _look(connection: Connection, schema: str) -> tuple[_Table | None, _Table | None]:
    names = tuple(name.as_string(None) for name in (table_name(schema), changes_name(schema)))
    found: dict[int, _Table] = {}
    with connection.cursor() as cursor:
        for place, kind, namespace, user, may, has_key, deferred, *column in cursor.execute(_TABLES, names):
            table = found.get(place) or _Table(kind, namespace, user, bool(may), has_key, deferred, ())
            found[place] = msgspec.structs.replace(table, columns=(*table.columns, _Column(*column)))
    return found.get(0), found.get(1)


def _remedy(schema: str, changes: _Table | None, *, has_folds: bool) -> str:
    """
    Return what to do about changes that cannot be kept; "" if they can.
    """
    spoken = spoken_name(schema, "timeline_changes")
    if not has_folds or changes is None:
        return "call create_schema() as the owner of the table"
    for problem in _problems(changes, spoken, _CHANGE_COLUMNS, "id, incarnation, version"):
        return str(problem)
    if not changes.may:
        return f"run: {grants(schema, changes.user, 'timeline_changes')}"
    return ""


def _problems_of_rows(table: _Table, spoken: str) -> Iterator[_Problem]:
    if table.deferred is not None:  # ON CONFLICT would fail, even with another index beside it
        yield _Problem(
            f"{spoken} has a constraint on (id) that is DEFERRABLE",
            f"run: ALTER TABLE {spoken} DROP CONSTRAINT {identifier(table.deferred)}, ADD UNIQUE (id)",
        )
    yield from _problems(table, spoken, _ROW_COLUMNS, "id")
    for column in table.columns:
        if column.name != _FOLDED:
            continue
        if column.type != "int8":
            yield _wrong_type(spoken, column, f"has the type {column.type}", "bigint")
        if column.has_default:
            yield _Problem(
                f"{spoken}.{_FOLDED} has a default, which would say of a row what is not so",
                f"run: ALTER TABLE {spoken} ALTER COLUMN {_FOLDED} DROP DEFAULT",
            )


def _problems(
    table: _Table, spoken: str, wanted: Mapping[str, tuple[Sequence[str], str]], key: str
) -> Iterator[_Problem]:
    if table.kind not in _TABLE_KINDS:
        yield _Problem(
            f"{spoken} is no table",
            "rename what has its name and call create_schema(), or choose another schema by the option schema",
        )
        return
    missing = wanted.keys() - {column.name for column in table.columns}
    if missing:
        names = [name for name in wanted if name in missing]
        additions = (f"ADD COLUMN {name} {wanted[name][1].partition(' USING')[0]} NOT NULL" for name in names)
        yield _Problem(
            f"{spoken} lacks {', '.join(names)}",
            "if it is another program's, choose another schema by the option schema; if not, run: "
            f"ALTER TABLE {spoken} {', '.join(additions)}",
        )
    for column in table.columns:
        if column.name in wanted:
            yield from _problems_of_column(column, spoken, *wanted[column.name])
        elif column.required and not column.has_default:
            column_name = identifier(column.name)
            yield _Problem(
                f"{spoken} has the column {column_name}, which is NOT NULL, has no default and is not filled here",
                f"give it a default, or run: ALTER TABLE {spoken} ALTER COLUMN {column_name} DROP NOT NULL",
            )
    if not table.has_key:
        yield _Problem(f"{spoken} has no unique index on ({key})", f"run: CREATE UNIQUE INDEX ON {spoken} ({key})")


def _problems_of_column(column: _Column, spoken: str, types: Sequence[str], wanted: str) -> Iterator[_Problem]:
    limit = "" if column.modifier == _UNLIMITED else str(column.modifier - _LENGTH_WORD)
    if column.type not in types:
        yield _wrong_type(spoken, column, f"has the type {column.type}", wanted)
    elif column.type == "timestamptz" and column.modifier not in _TIMESTAMP_PRECISIONS:
        yield _wrong_type(spoken, column, f"rounds to {column.modifier} decimals of a second", wanted)
    elif column.type == "varchar" and limit and (column.name != "id" or int(limit) < _LONGEST_ID):
        least = f"{_LONGEST_ID} are needed" if column.name == "id" else "there must be no limit"
        yield _wrong_type(spoken, column, f"takes {limit} characters, where {least}", wanted)
    elif column.name == "id" and not column.deterministic:
        yield _wrong_type(spoken, column, "has a collation by which different operations would share a row", wanted)
    if column.computed:
        yield _Problem(
            f"{spoken}.{column.name} is generated by the server, and cannot be written",
            "make the table anew as in timeline_trio_postgres.SCHEMA",
        )


def _wrong_type(spoken: str, column: _Column, fact: str, wanted: str) -> _Problem:
    return _Problem(
        f"{spoken}.{column.name} {fact}", f"run: ALTER TABLE {spoken} ALTER COLUMN {column.name} TYPE {wanted}"
    )


def _channel(schema: str) -> str:
    channel = f"timelines:{schema}"
    return (
        channel if len(channel.encode()) <= _LONGEST_NAME else f"timelines:{sha256(schema.encode()).hexdigest()[:40]}"
    )
