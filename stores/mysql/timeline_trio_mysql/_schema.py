"""
The table that documents are kept in, and what of a table made by others would lose or mix them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from timeline_trio.store import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA: Final = """\
CREATE TABLE IF NOT EXISTS timelines (
    id VARCHAR(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL /*M! CHECK (JSON_VALID(payload)) */,
    version BIGINT NOT NULL,
    created_at DATETIME(6) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    INDEX timelines_updated (updated_at, id)
) ENGINE = InnoDB
"""
"""
The DDL, one statement, for migrations of your own. Times are UTC.

Only MariaDB reads the CHECK, to whose JSON type the column then is equal. Oracle's JSON_VALID takes no number beyond a
double's, and would refuse documents that the column keeps.
"""

SELECT_COLUMNS: Final = """\
SELECT LOWER(columns.column_name), LOWER(columns.data_type), columns.character_maximum_length,
    columns.character_set_name, columns.collation_name, columns.datetime_precision
FROM information_schema.columns AS columns
WHERE columns.table_schema = DATABASE() AND columns.table_name = 'timelines'
"""
SELECT_ENGINE: Final = """\
SELECT tables.engine FROM information_schema.tables AS tables
WHERE tables.table_schema = DATABASE() AND tables.table_name = 'timelines'
"""
SELECT_KEY: Final = """\
SELECT LOWER(parts.column_name), parts.sub_part FROM information_schema.statistics AS parts
WHERE parts.table_schema = DATABASE() AND parts.table_name = 'timelines' AND parts.index_name = 'PRIMARY'
"""

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


class Table(msgspec.Struct, frozen=True):
    """
    What the store must know of its table.

    Attributes:
        is_binary_json: whether payloads are kept as MySQL's binary JSON, which bends some numbers.
    """

    is_binary_json: bool


def read_columns(rows: Sequence[Sequence[object]]) -> dict[str, Column]:
    """
    Return the columns of the table by name, from the answer to `SELECT_COLUMNS`; none if there is no table.
    """
    return {
        _text(name): Column(_text(type_), _number(length), _text(charset), _text(collation), _number(precision))
        for name, type_, length, charset, collation, precision in rows
    }


def check_table(
    columns: Mapping[str, Column], engines: Sequence[Sequence[object]], key: Sequence[Sequence[object]], name: str
) -> Table:
    """
    Refuse a table that would mix operations up, or lose some of what is stored.

    Args:
        columns: its columns.
        engines: the answer to `SELECT_ENGINE`.
        key: the answer to `SELECT_KEY`.
        name: what messages call the database.

    Raises:
        StoreUnavailable: with the statement to run.
    """
    if not columns:
        raise StoreUnavailable(
            "", f"{name} has no table 'timelines'; call create_schema() once, or open it with create=True"
        )
    if missing := {"id", "payload", "version", "created_at", "updated_at"} - columns.keys():
        raise StoreUnavailable(
            "",
            f"{name} has a table 'timelines' without the column {min(missing)!r}; rename that table, or copy it into "
            "one made with timeline_trio_mysql.SCHEMA",
        )
    for problem, remedy in (
        (_problem_of_id(columns["id"]), _MODIFY_ID),
        (_problem_of_key(key), _MODIFY_ID if key else "ALTER TABLE timelines ADD PRIMARY KEY (id)"),
        (_problem_of_payload(columns["payload"]), _MODIFY_PAYLOAD),
        (_problem_of_times(columns["created_at"], columns["updated_at"]), _MODIFY_TIMES),
        (_problem_of_engine(engines), "ALTER TABLE timelines ENGINE = InnoDB"),
    ):
        if problem:
            raise StoreUnavailable("", f"{name}: {problem}; run: {remedy};")
    return Table(is_binary_json=columns["payload"].type == "json")


def _problem_of_id(column: Column) -> str:
    if column.collation not in _BINARY_COLLATIONS:
        found = f"the collation {column.collation}" if column.collation else f"the type {column.type}"
        return f"the column timelines.id has {found}, by which different operations would share a row"
    if column.length < _ID_LENGTH:
        return f"the column timelines.id takes {column.length} characters, and ids may have {_ID_LENGTH}"
    return ""


def _problem_of_key(key: Sequence[Sequence[object]]) -> str:
    if [tuple(part) for part in key] != [("id", None)]:
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


def _problem_of_engine(engines: Sequence[Sequence[object]]) -> str:
    engine = _text(engines[0][0]) if engines else ""
    return "" if engine.lower() in _ENGINES else f"the table timelines has the engine {engine}, without transactions"


def _text(value: object) -> str:
    """
    Return a text of information_schema; some servers give a few of them as bytes.
    """
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
