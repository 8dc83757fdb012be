"""
The tables that documents are kept in, and what of tables made by others would lose or mix them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from timeline_trio.store import StoreUnavailable

Rows = Sequence[Sequence[object]]

SCHEMA: Final = """\
CREATE TABLE IF NOT EXISTS timelines (
    id VARCHAR(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    created_at DATETIME(6) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    folded BIGINT NULL,
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL /*M! CHECK (JSON_VALID(payload)) */,
    INDEX timelines_updated (updated_at, id)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS timeline_changes (
    id VARCHAR(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    incarnation BIGINT NOT NULL,
    version BIGINT NOT NULL,
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (id, incarnation, version)
) ENGINE = InnoDB;
"""
"""
The DDL, two statements, for migrations of your own. Times are UTC.

Without the second table and the column `folded`, each save writes its operation anew, however large that is.

Only MariaDB reads the CHECK, to whose JSON type the column then is equal. Oracle's JSON_VALID takes no number beyond a
double's, and would refuse documents that the column keeps.
"""

STATEMENTS: Final = tuple(statement for statement in SCHEMA.split(";\n") if statement)
ADDITIONS: Final = (STATEMENTS[1], "ALTER TABLE timelines ADD COLUMN folded BIGINT NULL")  # to an older table

# One table each: by several names at once, MariaDB looks through all tables of the database.
_SELECT_COLUMNS: Final = """\
SELECT LOWER(columns.column_name), LOWER(columns.data_type), columns.character_maximum_length,
    columns.character_set_name, columns.collation_name, columns.datetime_precision, columns.is_nullable,
    columns.column_default, LOWER(columns.extra), columns.column_type
FROM information_schema.columns AS columns
WHERE columns.table_schema = DATABASE() AND columns.table_name = '{}'
"""
_SELECT_ENGINE: Final = """\
SELECT tables.engine FROM information_schema.tables AS tables
WHERE tables.table_schema = DATABASE() AND tables.table_name = '{}'
"""
_SELECT_KEYS: Final = """\
SELECT parts.index_name, LOWER(parts.column_name), parts.sub_part FROM information_schema.statistics AS parts
WHERE parts.table_schema = DATABASE() AND parts.table_name = '{}' AND parts.non_unique = 0
ORDER BY parts.index_name, parts.seq_in_index
"""
TRY_FOLDED: Final = "SELECT folded FROM timelines WHERE id = ''"  # ten times faster than to ask information_schema
# They fail for an account that may not add or remove changes, and change nothing.
TRY_INSERT: Final = """\
INSERT INTO timeline_changes (id, incarnation, version, payload)
SELECT id, incarnation, version, payload FROM timeline_changes WHERE id = ''
"""
TRY_DELETE: Final = "DELETE FROM timeline_changes WHERE id = ''"

_ROW_COLUMNS: Final = frozenset(("id", "payload", "version", "created_at", "updated_at"))
_CHANGE_COLUMNS: Final = frozenset(("id", "incarnation", "version", "payload"))
_ID_LENGTH: Final = 191
_BINARY_COLLATIONS: Final = frozenset(("utf8mb4_bin", "utf8mb4_nopad_bin", "utf8mb4_0900_bin"))
_ENGINES: Final = frozenset(("innodb", "rocksdb"))  # what has transactions; TiDB and Vitess say InnoDB
_PRECISION: Final = 6

_MODIFY_ID: Final = (
    "ALTER TABLE timelines MODIFY id VARCHAR(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
    "DROP PRIMARY KEY, ADD PRIMARY KEY (id)"
)
_MODIFY_PAYLOAD: Final = (
    "ALTER TABLE timelines MODIFY payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL "
    "/*M! CHECK (JSON_VALID(payload)) */"
)
LOSSLESS_PAYLOAD: Final = f"{_MODIFY_PAYLOAD};"
LOSSLESS_CHANGES: Final = (
    "ALTER TABLE timeline_changes MODIFY payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL;"
)
_MODIFY_TIMES: Final = (
    "ALTER TABLE timelines MODIFY created_at DATETIME(6) NOT NULL, MODIFY updated_at DATETIME(6) NOT NULL"
)


class Column(msgspec.Struct, frozen=True):
    """
    What information_schema tells of a column.
    """

    type: str
    length: int
    charset: str
    collation: str
    precision: int
    is_nullable: bool
    default: str
    extra: str
    declaration: str

    @property
    def needs_value(self) -> bool:
        """
        Whether a row that says nothing of it is refused.
        """
        fills_itself = self.default or "auto_increment" in self.extra or "generated" in self.extra
        return not (self.is_nullable or fills_itself or self.type == "enum")  # an enum's first value is its default


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the store must know of its tables.

    Attributes:
        is_binary_json: whether payloads are kept as MySQL's binary JSON, which bends some numbers.
        has_folds: whether a row may say that it has changes beside it.
        keeps_changes: whether there is a place for these.
        has_binary_changes: whether that place keeps them as binary JSON.
    """

    is_binary_json: bool
    has_folds: bool = False
    keeps_changes: bool = False
    has_binary_changes: bool = False


class Definition(msgspec.Struct, frozen=True):
    """
    What information_schema tells of a table; nothing if there is none, or none that the account may see.
    """

    columns: Mapping[str, Column]
    engine: str
    keys: Mapping[str, Sequence[tuple[str, object]]]

    @property
    def key(self) -> Sequence[tuple[str, object]]:
        """
        The primary key.
        """
        return self.keys.get("PRIMARY", ())


def questions_about(table: str) -> tuple[str, str, str]:
    """
    Return the queries whose answers `read_definition` takes.
    """
    return _SELECT_COLUMNS.format(table), _SELECT_ENGINE.format(table), _SELECT_KEYS.format(table)


def read_definition(columns: Rows, engines: Rows, key_parts: Rows) -> Definition:
    """
    Return what the answers tell.
    """
    keys: dict[str, list[tuple[str, object]]] = {}
    for key, column, part in key_parts:
        keys.setdefault(_text(key), []).append((_text(column), part))
    return Definition(
        {
            _text(name): Column(
                _text(type_),
                _number(length),
                _text(charset),
                _text(collation),
                _number(precision),
                _text(nullable) == "YES",
                _default(default),
                _text(extra),
                _text(declaration),
            )
            for name, type_, length, charset, collation, precision, nullable, default, extra, declaration in columns
        },
        _text(engines[0][0]) if engines else "",
        keys,
    )


def check_table(timelines: Definition, changes: Definition, name: str) -> Table:
    """
    Refuse a table that would mix operations up, or lose some of what is stored. Go on without one for changes.

    Args:
        timelines: the table of rows.
        changes: the table of changes.
        name: what messages call the database.

    Raises:
        StoreUnavailable: with the statement to run.
    """
    columns = timelines.columns
    if not columns:
        raise StoreUnavailable(
            "", f"{name} has no table 'timelines'; call create_schema() once, or open it with create=True"
        )
    if missing := _ROW_COLUMNS - columns.keys():
        raise StoreUnavailable(
            "",
            f"{name} has a table 'timelines' without the column {min(missing)!r}; rename that table, or copy it into "
            "one made with timeline_trio_mysql.SCHEMA",
        )
    for problem, remedy in (
        (_problem_of_id(columns["id"]), _MODIFY_ID),
        (_problem_of_key(timelines.key), _MODIFY_ID if timelines.key else "ALTER TABLE timelines ADD PRIMARY KEY (id)"),
        (_problem_of_payload(columns["payload"]), _MODIFY_PAYLOAD),
        (_problem_of_times(columns["created_at"], columns["updated_at"]), _MODIFY_TIMES),
        (_problem_of_number("version", columns), "ALTER TABLE timelines MODIFY version BIGINT NOT NULL"),
        (_problem_of_number("folded", columns), "ALTER TABLE timelines MODIFY folded BIGINT NULL"),
        (_problem_of_engine(timelines.engine), "ALTER TABLE timelines ENGINE = InnoDB"),
        *_problems_of_others(timelines),
    ):
        if problem:
            raise StoreUnavailable("", f"{name}: {problem}; run: {remedy};")
    has_folds = "folded" in columns
    keeps_changes = has_folds and _can_keep_changes(changes)
    return Table(
        is_binary_json=columns["payload"].type == "json",
        has_folds=has_folds,
        keeps_changes=keeps_changes,
        has_binary_changes=keeps_changes and changes.columns["payload"].type == "json",
    )


def _can_keep_changes(changes: Definition) -> bool:
    columns = changes.columns
    return (
        columns.keys() >= _CHANGE_COLUMNS
        and not _problem_of_id(columns["id"])
        and columns["incarnation"].type == columns["version"].type == "bigint"
        and not any(column.needs_value for name, column in columns.items() if name not in _CHANGE_COLUMNS)
        and not _problem_of_payload(columns["payload"])
        and not _problem_of_engine(changes.engine)
        and changes.key == [("id", None), ("incarnation", None), ("version", None)]
        and not any(_is_foreign(parts, changes.key) for parts in changes.keys.values())
    )


def _problem_of_id(column: Column) -> str:
    if column.collation not in _BINARY_COLLATIONS:
        found = f"the collation {column.collation}" if column.collation else f"the type {column.type}"
        return f"the column timelines.id has {found}, by which different operations would share a row"
    if column.length < _ID_LENGTH:
        return f"the column timelines.id takes {column.length} characters, and ids may have {_ID_LENGTH}"
    return ""


def _problem_of_key(key: Sequence[tuple[str, object]]) -> str:
    if key != [("id", None)]:
        return "the primary key of timelines is not the id alone, so that an operation could have several rows"
    return ""


def _problem_of_payload(column: Column) -> str:
    if column.type == "json" or (column.type == "longtext" and column.charset == "utf8mb4"):
        return ""
    found = f"{column.type} in {column.charset}" if column.charset else column.type
    return f"the column timelines.payload is {found}, which does not take every document"


def _problem_of_times(*columns: Column) -> str:
    if all(column.type == "datetime" and column.precision == _PRECISION for column in columns):
        return ""
    return "timelines.created_at and updated_at do not both keep microseconds as they are"


def _problem_of_engine(engine: str) -> str:
    return "" if engine.lower() in _ENGINES else f"the table timelines has the engine {engine}, without transactions"


def _problem_of_number(name: str, columns: Mapping[str, Column]) -> str:
    if name not in columns:
        return ""
    column = columns[name]
    if column.type != "bigint":
        return f"the column timelines.{name} is {column.type}, and versions may have 64 bits"
    if name == "folded" and (column.default or not column.is_nullable):
        return "the column timelines.folded is not NULL by default, which tells of changes that there are none of"
    return ""


def _problems_of_others(timelines: Definition) -> Iterator[tuple[str, str]]:
    for name, parts in timelines.keys.items():
        if _is_foreign(parts, timelines.key):
            problem = f"the unique index {name} of timelines refuses operations that have the same there"
            yield problem, f"ALTER TABLE timelines DROP INDEX {_quoted(name)}"
    for name, column in timelines.columns.items():
        if column.needs_value and name not in _ROW_COLUMNS:
            problem = f"the column timelines.{name} must be given a value, and the store gives it none"
            yield problem, f"ALTER TABLE timelines MODIFY {_quoted(name)} {column.declaration} NULL"


def _is_foreign(parts: Sequence[tuple[str, object]], key: Sequence[tuple[str, object]]) -> bool:
    """
    Tell whether a unique index holds apart what the primary key does not.
    """
    return not set(key) <= set(parts)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _default(value: object) -> str:
    text = _text(value)
    return "" if text == "NULL" else text or ("''" if value is not None else "")  # MariaDB tells NULL as text


def _text(value: object) -> str:
    """
    Return a text of information_schema; some servers give a few of them as bytes.
    """
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
