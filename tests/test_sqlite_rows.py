"""
Tests of what stands in the SQLite file, and of what SQLite refuses.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from timeline_trio.model import Document, Stage, Update, encode_document
from timeline_trio.store import (
    CorruptEntry,
    Found,
    InsertRow,
    MergeRequest,
    ReplaceRow,
    Revision,
    Row,
    StoreRejected,
    StoreUnavailable,
    Unreadable,
)
from timeline_trio.testing import ManualClock
from timeline_trio_sqlite import SCHEMA, SQLiteStore, open_sqlite
from timeline_trio_sqlite._dialect import SQLiteDialect
from timeline_trio_sqlite._failures import Busy, translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

SECOND = 10**9
HOSTILE = (
    "x' OR 1=1 -- %s %(y)s",
    "'; DROP TABLE timelines; --",
    "a') ; DROP TABLE timelines;-- x",
    '"; --',
    "?1 :a @b $c",
)


def update(stage_id: str = "s", attributes_json: str = "") -> Update:
    return Update(stages=(Stage(id=stage_id, name="work", started_at=0, attributes_json=attributes_json),))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SQLiteStore]:
    async with open_sqlite(tmp_path / "ops.db", clock=clock) as opened:
        yield opened


@pytest.fixture
def sql(store: SQLiteStore) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        opened.executescript(SCHEMA)
        yield opened


async def test_row_holds_integers_of_microseconds_that_sort_by_time(
    store: SQLiteStore, sql: sqlite3.Connection, clock: ManualClock
) -> None:
    """
    As text, a time without microseconds would sort behind all others of its second.
    """
    for opid, ns in (("whole", 0), ("early", -1_000), ("late", 1_999)):
        clock.now = 1_767_225_600 * SECOND + ns
        await store.merge(opid, update())
    rows = sql.execute("SELECT id, version, created_at, updated_at, typeof(updated_at) FROM timelines ORDER BY 4")
    second = 1_767_225_600_000_000
    assert rows.fetchall() == [
        ("early", 1, second - 1, second - 1, "integer"),
        ("whole", 1, second, second, "integer"),
        ("late", 1, second + 1, second + 1, "integer"),
    ]
    assert [answer.opid for answer in await store.latest(1_767_225_600 * SECOND - 1, 9)] == ["late", "whole"]


async def test_reformatted_payload_is_no_change(store: SQLiteStore, sql: sqlite3.Connection) -> None:
    await store.merge("op", update(attributes_json='{"a":1,"b":{"c":[1.50]}}'))
    payload = """
        { "stages": [{"name": "work", "attributes": {"b": {"c": [1.50]}, "a": 1}, "status": "running", "id": "s",
        "started_at": "1970-01-01T01:00:00.000+01:00", "parent_id": null}], "id": "op" }
    """
    sql.execute("UPDATE timelines SET payload = ?", (payload,))
    merged = await store.merge("op", update(attributes_json='{"a":1,"b":{"c":[1.50]}}'))
    assert not merged.changed
    assert sql.execute("SELECT payload, version FROM timelines").fetchall() == [(payload, 1)]


async def test_hostile_text_is_stored_literally(store: SQLiteStore, sql: sqlite3.Connection) -> None:
    for opid in HOSTILE:
        facts = tuple(Stage(id=text, name=text, started_at=0, error=text) for text in HOSTILE)
        await store.merge(opid, Update(stages=facts))
    answers = await store.mget(HOSTILE)
    assert {answer.opid for answer in answers} == set(HOSTILE)
    for answer in answers:
        assert isinstance(answer, Found)
        assert {key[0] for key in answer.document.stages} == set(HOSTILE)
    assert {opid for (opid,) in sql.execute("SELECT id FROM timelines")} == set(HOSTILE)


async def test_more_ids_than_variables_are_asked_for_in_parts(store: SQLiteStore) -> None:
    opids = [f"op-{number}" for number in range(1_200)]
    await store.merge_many([MergeRequest(opid, update()) for opid in opids])
    assert len(await store.mget(opids)) == 1_200


async def test_bounds_beyond_64_bits_are_bounds_still(store: SQLiteStore) -> None:
    await store.merge("op", update())
    assert await store.latest(10**30, 9) == []
    assert len(await store.latest(-(10**30), 10**30)) == 1


async def test_unknown_members_of_a_document_are_written_back(store: SQLiteStore, sql: sqlite3.Connection) -> None:
    document = Document(opid="op", extra_json='{"later":[1.10]}')
    await store.merge("op", update("a"))
    sql.execute("UPDATE timelines SET payload = ?", (encode_document(document),))
    await store.merge("op", update("b"))
    ((payload,),) = sql.execute("SELECT payload FROM timelines")
    assert payload.endswith(',"later":[1.10]}')


@pytest.mark.parametrize(
    "damage",
    [
        'payload = \'{"id": "bad", secret\'',
        "payload = ''",
        "payload = 5",
        "payload = CAST(x'7b2269ff' AS TEXT)",
        "payload = x'00ff'",
        "payload = replace(payload, 'bad', 'other')",
        "payload = '{}'",
    ],
)
async def test_damaged_row_is_named_and_the_others_go_on(
    store: SQLiteStore, sql: sqlite3.Connection, damage: str
) -> None:
    for opid in ("a", "bad", "c"):
        await store.merge(opid, update())
    sql.execute(f"UPDATE timelines SET {damage} WHERE id = 'bad'")  # noqa: S608
    for answers in (await store.mget(["a", "bad", "c"]), await store.latest(0, 9)):
        kinds = {answer.opid: type(answer) for answer in answers}
        assert kinds == {"a": Found, "bad": Unreadable, "c": Found}
    with pytest.raises(CorruptEntry, match="'bad'") as caught:
        await store.read("bad")
    assert "secret" not in str(caught.value)
    one, bad, three = await store.merge_many([MergeRequest(opid, update("t")) for opid in ("a", "bad", "c")])
    assert isinstance(bad, CorruptEntry)
    assert not isinstance(one, StoreRejected)
    assert not isinstance(three, StoreRejected)


async def test_foreign_table_without_payload_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("CREATE TABLE timelines (id TEXT PRIMARY KEY, payload, version, created_at, updated_at)")
        foreign.execute("INSERT INTO timelines VALUES ('op', NULL, 1, 1, 1), ('blob', x'7b7d', 1, 1, 1)")
    async with open_sqlite(path, create=False) as store:
        for opid in ("op", "blob"):
            with pytest.raises(CorruptEntry):
                await store.read(opid)


async def test_other_failures_tell_where_to_look(store: SQLiteStore, sql: sqlite3.Connection) -> None:
    sql.execute("ALTER TABLE timelines RENAME COLUMN payload TO content")
    await store.merge_many([])
    with pytest.raises(StoreUnavailable, match="the cause tells more") as caught:
        await store.merge("op", update())
    assert "no such column: payload" in str(caught.value.__cause__)


def test_too_large_document_is_refused_alone(connection: sqlite3.Connection) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000)
    dialect = SQLiteDialect(connection)
    row = Row(id="op", payload="small", version=1, created_at=1, updated_at=1)
    assert dialect.write_rows([InsertRow(row), InsertRow(row)]) == [True, False]
    secret = "secret" * 1_000
    new = Row(id="new", payload=secret, version=1, created_at=1, updated_at=1)
    replacement = ReplaceRow(id="op", payload=secret, expected=Revision(1, 1), now=2, ahead=2)
    stale = ReplaceRow(id="op", payload="stale", expected=Revision(1, 2), now=2, ahead=2)
    *refused, done = dialect.write_rows([replacement, InsertRow(new), stale])
    for opid, refusal in zip(("op", "new"), refused, strict=True):
        assert isinstance(refusal, StoreRejected)
        assert str(refusal).startswith(f"{opid!r}: the document is larger")
    assert done is False
    assert dialect.fetch_rows(["op", "new"]) == [row]


def test_number_beyond_64_bits_is_refused_by_the_dialect(connection: sqlite3.Connection) -> None:
    row = Row(id="op", payload="", version=2**64, created_at=1, updated_at=1)
    (refusal,) = SQLiteDialect(connection).write_rows([InsertRow(row)])
    assert isinstance(refusal, StoreRejected)


def _grow(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA max_page_count = 1")
    row = Row(id="a", payload="x" * 1_000_000, version=1, created_at=1, updated_at=1)
    SQLiteDialect(connection).write_rows([InsertRow(row)])


def _ask_for_a_missing_table(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT * FROM timeline")


def _ask_for_a_missing_column(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT nonsense")


def _write_to_readonly(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON")
    connection.execute("DELETE FROM timelines")


@pytest.mark.parametrize(
    ("act", "advice"),
    [
        (_grow, "cannot grow; free some space on its disk"),
        (_write_to_readonly, "may not be written to; check the permissions"),
        (_ask_for_a_missing_table, "call create_schema"),
        (_ask_for_a_missing_column, "could not be used"),
    ],
)
def test_failure_is_answered_with_what_to_do(
    connection: sqlite3.Connection, tmp_path: Path, act: Callable[[sqlite3.Connection], object], advice: str
) -> None:
    with pytest.raises(sqlite3.Error) as caught:
        act(connection)
    failure = translate(caught.value, tmp_path)
    assert isinstance(failure, StoreUnavailable)
    assert advice in str(failure)
    assert str(tmp_path) in str(failure)


def test_error_of_the_module_itself_is_translated_too(connection: sqlite3.Connection, tmp_path: Path) -> None:
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError) as caught:
        connection.execute("SELECT 1")
    assert isinstance(translate(caught.value, tmp_path), StoreUnavailable)


def test_lock_of_another_connection_is_worth_another_try(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as one,
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as two,
    ):
        one.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            two.execute("BEGIN IMMEDIATE")
    assert isinstance(translate(caught.value, path), Busy)


async def test_id_that_is_no_text_is_an_answer_and_the_others_go_on(
    store: SQLiteStore, sql: sqlite3.Connection
) -> None:
    await store.merge("good", update())
    sql.execute("INSERT INTO timelines SELECT CAST(X'ff' AS TEXT), 1, 1, updated_at, NULL, payload FROM timelines")
    sql.commit()
    answers = {answer.opid: type(answer) for answer in await store.latest(0, 10)}
    assert answers == {"good": Found, "\udcff": Unreadable}
