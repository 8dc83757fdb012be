"""
Tests of what stands in the PostgreSQL table, and of what PostgreSQL refuses.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

import psycopg
import pytest
import trio

from timeline_trio.model import Document, Stage, Update, encode_document
from timeline_trio.store import (
    CorruptEntry,
    Found,
    InsertRow,
    Known,
    Merged,
    MergeRequest,
    NotFound,
    RaceLost,
    ReplaceRow,
    Revision,
    Row,
    StoreRejected,
    StoreUnavailable,
    Unreadable,
)
from timeline_trio.testing import FaultyStore, ManualClock, check_store
from timeline_trio_postgres import SCHEMA, PostgresStore, open_postgres
from timeline_trio_postgres._dialect import PostgresDialect, RowRefused, Statements
from timeline_trio_postgres._failures import translate
from timeline_trio_postgres._timestamps import register

from .postgres_support import connected, execute, locked_table, nothing_left, rows, update, wait_waiting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from timeline_trio.store import Store

SECOND = 10**9
HOSTILE = (
    "x' OR 1=1 -- %s %(y)s",
    "'; DROP TABLE timelines; --",
    "a') ; DROP TABLE timelines;-- x",
    '"; --',
    "$1 ?1 :a @b {table} {}",
    "\\' \\000 E'",
    '{"a",NULL}',
)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(postgres_url: str, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    async with open_postgres(postgres_url, clock=clock) as opened:
        yield opened


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    """
    A connection as the store has them, with the table.
    """
    with connected(postgres_url) as opened:
        register(opened)
        opened.execute(SCHEMA.encode())
        yield opened


@pytest.fixture
def dialect(connection: psycopg.Connection) -> PostgresDialect:
    return PostgresDialect(connection, Statements.of(""))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("options", [{}, {"prepare": False, "notify": False, "pool_size": 1}])
async def test_postgres_store_keeps_the_contract(postgres_url: str, options: dict[str, bool], wrapped: bool) -> None:  # noqa: FBT001
    clock = ManualClock()
    schemas = (f"fresh_{number}" for number in count())
    current = ""

    @asynccontextmanager
    async def open_one() -> AsyncGenerator[Store]:
        nonlocal current
        current = next(schemas)
        execute(postgres_url, f"CREATE SCHEMA {current}")
        async with open_postgres(postgres_url, schema=current, clock=clock, **options) as store:
            yield FaultyStore(store) if wrapped else store

    async def delete_row(_store: Store, opid: str) -> None:
        await trio.lowlevel.checkpoint()
        rows(postgres_url, f"DELETE FROM {current}.timelines WHERE id = %s", opid)  # noqa: S608

    await check_store(open_one, clock=clock, delete=delete_row)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/St_Johns"])
async def test_times_are_exact_from_the_first_year_to_the_last_in_every_time_zone(
    postgres_url: str, clock: ManualClock, zone: str
) -> None:
    stamps = {
        "first": -62_135_596_800_000_000,
        "before": -1,
        "epoch": 0,
        "second": 1_767_225_600_000_000,
        "after": 1_767_225_600_000_001,
        "last": 253_402_300_799_999_999,
    }
    async with open_postgres(f"{postgres_url}?options=-c%20TimeZone%3D{zone}", clock=clock) as store:
        for opid, stamp in stamps.items():
            clock.now = stamp * 1_000 + 999
            merged = await store.merge(opid, update())
            assert merged.revision == Revision(stamp, 1)
            again = await store.merge(
                opid, update("t"), Known(Revision(stamp, 1), merged.document or Document(opid=""))
            )
            assert again.revision == Revision(stamp, 2)
        texts = dict(rows(postgres_url, "SELECT id, (created_at AT TIME ZONE 'UTC')::text FROM timelines"))
        assert texts == {
            "first": "0001-01-01 00:00:00",
            "before": "1969-12-31 23:59:59.999999",
            "epoch": "1970-01-01 00:00:00",
            "second": "2026-01-01 00:00:00",
            "after": "2026-01-01 00:00:00.000001",
            "last": "9999-12-31 23:59:59.999999",
        }
        # The second change of one instant stepped past the first.
        answers = await store.latest(stamps["second"] * 1_000 + 1_000, 9)
        assert [answer.opid for answer in answers] == ["last", "after"]
        revisions = {
            answer.opid: answer.revision for answer in await store.mget(list(stamps)) if isinstance(answer, Found)
        }
        assert revisions == {opid: Revision(stamp, 2) for opid, stamp in stamps.items()}


async def test_update_time_steps_past_the_previous_one_unless_that_is_far_ahead(
    store: PostgresStore, clock: ManualClock, postgres_url: str
) -> None:
    stamps: list[int] = []
    for number, seconds in enumerate((0, 0, -0.5, -0.6, 3)):
        clock.advance(seconds)
        await store.merge("op", update(str(number)))
        ((stamp,),) = rows(postgres_url, "SELECT extract(epoch FROM updated_at) * 1000000 FROM timelines")
        stamps.append(int(stamp) - clock.now // 1000)
    assert stamps == [0, 1, 500_002, 0, 0]


async def test_bounds_beyond_all_times_are_bounds_still(store: PostgresStore) -> None:
    await store.merge("op", update())
    assert await store.latest(10**30, 9) == []
    assert len(await store.latest(-(10**30), 10**30)) == 1


async def test_ids_of_one_instant_are_in_the_order_of_their_bytes(store: PostgresStore) -> None:
    # parity 84
    opids = ["a", "B", "b", "A", "\xe4", "\U0001f600", "\uffee", "a-b", "a b", "ab"]
    for opid in opids:
        await store.merge(opid, update())
    expected = sorted(opids, key=str.encode, reverse=True)
    assert [answer.opid for answer in await store.latest(0, 99)] == expected
    assert [answer.opid for answer in await store.latest(0, 3)] == expected[:3]


async def test_latest_and_mget_are_as_the_parity_list_says(store: PostgresStore, clock: ManualClock) -> None:
    # parity 84
    first = clock.now
    for opid in ("a", "b", "c"):
        await store.merge(opid, update())
        clock.advance(1)
    found = await store.mget(["b", "a", "b", "nowhere", "a"])
    assert sorted(answer.opid for answer in found) == ["a", "b"]
    assert [answer.opid for answer in await store.latest(first, 9)] == ["c", "b"]
    assert not (await store.merge("a", update())).changed
    assert [answer.opid for answer in await store.latest(first, 9)] == ["c", "b"]
    assert await store.latest(0, 0) == []


async def test_reformatted_payload_is_no_change(store: PostgresStore, postgres_url: str) -> None:
    # parity 86
    attributes = '{"a":1,"b":{"c":[1.50]}}'
    await store.merge("op", update(attributes_json=attributes))
    payload = """
        { "stages": [{"name": "work", "attributes": {"b": {"c": [1.50]}, "a": 1}, "status": "running", "id": "s",
        "started_at": "1970-01-01T01:00:00.000+01:00", "parent_id": null}], "id": "op" }
    """
    rows(postgres_url, "UPDATE timelines SET payload = %s", payload)
    assert not (await store.merge("op", update(attributes_json=attributes))).changed
    assert rows(postgres_url, "SELECT payload::text, version FROM timelines") == [(payload, 1)]
    assert (await store.merge("op", update(name="other"))).changed
    await store.merge("other", update())
    assert rows(postgres_url, "SELECT id, version FROM timelines ORDER BY id") == [("op", 2), ("other", 1)]
    with pytest.raises(NotFound):
        await store.read("nowhere")


@pytest.mark.parametrize("column", ["json", "text"])
async def test_numbers_keys_and_characters_come_back_as_they_were(postgres_url: str, column: str) -> None:
    # C13
    execute(postgres_url, SCHEMA.replace("payload json", f"payload {column}"))
    attributes = (
        '{"a":18446744073709551615,"aa":9007199254740993,"b":9223372036854775807,"c":18446744073709551617,'
        '"d":123456789012345678901234567890,"e":1.0,"f":-0.0,"g":1.10,"h":1E+400,"i":"\\u0000\U0001f600",'
        '"j":{"a":3,"aa":2,"b":1}}'
    )
    async with open_postgres(postgres_url) as store:
        await store.merge("op", update(attributes_json=attributes))
        answer = await store.read("op")
        assert isinstance(answer, Found)
        assert answer.document.stages["s", ""].attributes_json == attributes
        ((payload,),) = rows(postgres_url, "SELECT payload::text FROM timelines")
        assert payload == encode_document(answer.document)
        assert not (await store.merge("op", update(attributes_json=attributes))).changed


async def test_ids_that_fold_together_elsewhere_are_told_apart(store: PostgresStore) -> None:
    # C16
    opids = ["Op", "op", "\u00f6p", "o\u0308p"]
    for opid in opids:
        await store.merge(opid, update(name=ascii(opid)))
    for answer in await store.mget(opids):
        assert isinstance(answer, Found)
        assert answer.document.stages["s", ""].name == ascii(answer.opid)
    assert len(await store.latest(0, 9)) == 4


async def test_hostile_text_is_stored_literally(store: PostgresStore, postgres_url: str) -> None:
    # C20
    for opid in HOSTILE:
        facts = tuple(Stage(id=text, name=text, started_at=0, error=text) for text in HOSTILE)
        await store.merge(opid, Update(stages=facts))
    answers = await store.mget(HOSTILE)
    assert {answer.opid for answer in answers} == set(HOSTILE)
    for answer in answers:
        assert isinstance(answer, Found)
        assert {key[0] for key in answer.document.stages} == set(HOSTILE)
    assert {opid for (opid,) in rows(postgres_url, "SELECT id FROM timelines")} == set(HOSTILE)


async def test_thousands_of_ids_are_asked_for_at_once(store: PostgresStore) -> None:
    opids = [f"op-{number}" for number in range(3_000)]
    await store.merge_many([MergeRequest(opid, update()) for opid in opids])
    assert len(await store.mget([*opids, "nowhere"])) == 3_000


async def test_longest_ids_and_large_documents_are_kept(store: PostgresStore) -> None:
    opid = "\U0001f600" * 191
    stages = tuple(Stage(id=str(n), name="work", started_at=0, error="x" * 1_000) for n in range(8_000))
    await store.merge(opid, Update(stages=stages))
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    assert len(answer.document.stages) == 8_000


@pytest.mark.parametrize(
    "damage",
    [
        'payload = \'{"id": "bad", "stages": "secret"}\'',
        "payload = '5'",
        "payload = replace(payload::text, 'bad', 'other')::json",
        "payload = NULL",
    ],
)
async def test_damaged_row_is_named_and_the_others_go_on(store: PostgresStore, postgres_url: str, damage: str) -> None:
    for opid in ("a", "bad", "c"):
        await store.merge(opid, update())
    execute(
        postgres_url,
        "ALTER TABLE timelines ALTER COLUMN payload DROP NOT NULL",
        f"UPDATE timelines SET {damage} WHERE id = 'bad'",  # noqa: S608
    )
    for answers in (await store.mget(["a", "bad", "c"]), await store.latest(0, 9)):
        kinds = {answer.opid: type(answer) for answer in answers}
        assert kinds == {"a": Found, "bad": Unreadable, "c": Found}
    with pytest.raises(CorruptEntry, match="'bad'") as caught:
        await store.read("bad")
    assert "secret" not in str(caught.value)
    one, bad, three = await store.merge_many([MergeRequest(opid, update("t")) for opid in ("a", "bad", "c")])
    assert isinstance(bad, CorruptEntry)
    assert isinstance(one, Merged)
    assert isinstance(three, Merged)


async def test_row_of_no_time_is_read_and_replaced(store: PostgresStore, postgres_url: str) -> None:
    await store.merge("op", update())
    execute(postgres_url, "UPDATE timelines SET created_at = '-infinity', updated_at = 'infinity'")
    assert (await store.merge("op", update("t"))).changed
    assert rows(postgres_url, "SELECT version, isfinite(updated_at) FROM timelines") == [(2, True)]


async def test_constraint_of_the_applications_own_rejects_one_row_and_the_others_are_written(
    store: PostgresStore, postgres_url: str
) -> None:
    execute(postgres_url, "ALTER TABLE timelines ADD CHECK (payload::text NOT LIKE '%forbidden%')")
    await store.merge("old", update())
    requests = [
        MergeRequest(opid, update("x", name="forbidden" if "bad" in opid else "fine")) for opid in ("a", "bad", "old")
    ]
    first, refused, third = await store.merge_many(requests)
    assert isinstance(refused, StoreRejected)
    assert refused.opid == "bad"
    assert "forbidden" not in str(refused)
    assert isinstance(refused.__cause__, psycopg.errors.CheckViolation)
    assert isinstance(first, Merged)
    assert isinstance(third, Merged)
    assert rows(postgres_url, "SELECT id, version FROM timelines ORDER BY id") == [("a", 1), ("old", 2)]
    with pytest.raises(
        StoreRejected, match="refuses the row, with the error 23514: constraint timelines_payload_check; "
    ):
        await store.merge("old", update("y", name="forbidden"))
    assert store.statistics().pool.discarded == 0


async def test_document_that_a_limit_of_postgresql_refuses_is_rejected(store: PostgresStore, postgres_url: str) -> None:
    execute(
        postgres_url,
        "ALTER TABLE timelines ALTER COLUMN payload TYPE text",
        "CREATE INDEX ON timelines (payload)",
        "ALTER TABLE timelines ALTER COLUMN payload SET STORAGE plain",
    )
    await store.merge("op", update())
    with pytest.raises(StoreRejected, match="with the error 54000"):
        await store.merge("op", update(name="x" * 5_000))
    await store.merge("op", update("t"))


@pytest.mark.parametrize("transaction", [False, True])
def test_rows_are_written_once_at_the_version_that_was_expected(
    connection: psycopg.Connection,
    transaction: bool,  # noqa: FBT001
) -> None:
    dialect = PostgresDialect(connection, Statements.of(""), transaction=transaction)
    row = Row(id="op", payload="{}", version=1, created_at=1, updated_at=1)
    other = Row(id="other", payload="{}", version=1, created_at=1, updated_at=1)
    assert dialect.write_rows([InsertRow(row), InsertRow(row)]) == [True, False]
    replacement = ReplaceRow(id="op", payload="[1]", expected=Revision(1, 1), now=2, ahead=2)
    reborn = ReplaceRow(id="op", payload="[2]", expected=Revision(2, 2), now=2, ahead=2)
    assert dialect.write_rows([replacement, replacement, InsertRow(other), reborn]) == [True, False, True, False]
    assert dialect.fetch_rows(["op"], lock=transaction) == [replacement.applied_to(row)]
    assert dialect.begun is transaction
    assert [change.revision for change in dialect.changes] == [Revision(1, 1), Revision(1, 2), Revision(1, 1)]


@pytest.mark.parametrize("payload", ["no json", "{\0}", '{"a":1'])
def test_payload_that_the_column_does_not_take_is_refused_alone(dialect: PostgresDialect, payload: str) -> None:
    row = Row(id="op", payload=payload, version=1, created_at=1, updated_at=1)
    (refusal,) = dialect.write_rows([InsertRow(row)])
    assert isinstance(refusal, StoreRejected)
    assert refusal.opid == "op"
    assert payload not in str(refusal)
    assert dialect.fetch_heads(["op"]) == []


@pytest.mark.parametrize("stamp", [10**20, 9_224_318_016_000_000_000, -(10**18)])
def test_time_that_the_column_does_not_take_is_refused(dialect: PostgresDialect, stamp: int) -> None:
    row = Row(id="op", payload="{}", version=1, created_at=stamp, updated_at=stamp)
    (refusal,) = dialect.write_rows([InsertRow(row)])
    assert isinstance(refusal, StoreRejected)


def test_refused_row_fails_a_transaction_unless_it_is_careful(connection: psycopg.Connection) -> None:
    good, bad, last = (
        Row(id=name, payload="no json" if name == "bad" else "{}", version=1, created_at=1, updated_at=1)
        for name in ("a", "bad", "c")
    )
    writes = [InsertRow(row) for row in (good, bad, last)]
    with pytest.raises(RowRefused):
        PostgresDialect(connection, Statements.of(""), transaction=True).write_rows(writes)
    connection.execute("ROLLBACK")
    careful = PostgresDialect(connection, Statements.of(""), transaction=True, careful=True)
    first, refusal, third = careful.write_rows(writes)
    assert (first, third) == (True, True)
    assert isinstance(refusal, StoreRejected)
    connection.execute("COMMIT")
    assert [head.id for head in careful.fetch_heads(["a", "bad", "c"])] == ["a", "c"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_lost_race_reads_what_was_committed_since_whatever_the_default_isolation_is(
    postgres_url: str, level: str
) -> None:
    # C09
    execute(
        postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET default_transaction_isolation TO '{level}'"
    )
    async with open_postgres(postgres_url) as store, open_postgres(postgres_url) as other:
        first = await store.merge("op", update("first"))
        assert first.revision is not None
        assert first.document is not None
        await other.merge("op", update("theirs"))
        before = store.attempts
        merged = await store.merge("op", update("ours"), Known(first.revision, first.document))
        assert merged.revision == Revision(first.revision.incarnation, 3)
        assert store.attempts - before == 2
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon((store, other)[number % 2].merge, "op", update(str(number)))
        answer = await store.read("op")
        assert isinstance(answer, Found)
        assert len(answer.document.stages) == 3 + 16
        assert answer.revision.version == 3 + 16


async def test_victim_of_a_deadlock_merges_anew(store: PostgresStore, postgres_url: str) -> None:
    for opid in ("a", "b"):
        await store.merge(opid, update())
    with connected(postgres_url) as watcher, psycopg.connect(postgres_url) as other:
        other.execute("UPDATE timelines SET version = version WHERE id = 'b'")
        async with trio.open_nursery() as nursery:
            requests = [MergeRequest(opid, update("t"), None) for opid in ("a", "b")]
            answers: list[object] = []

            async def merge() -> None:
                answers.extend(await store.merge_many(requests))

            nursery.start_soon(merge)
            await wait_waiting(watcher)
            # It waits for us, and now we wait for it: it came first, so its check comes first.
            await trio.to_thread.run_sync(other.execute, "UPDATE timelines SET version = version WHERE id = 'a'")
            other.commit()
    assert all(isinstance(answer, Merged) for answer in answers)
    assert store.attempts > 2 + 2


async def test_lock_timeout_of_the_session_is_a_lost_race(postgres_url: str) -> None:
    async with open_postgres(f"{postgres_url}?options=-c%20lock_timeout%3D30") as store:
        await store.merge("op", update())
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT * FROM timelines FOR UPDATE")
            before = store.attempts
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.merge, "op", update("t"))
                while store.attempts < before + 1:  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.01)
                other.rollback()
        answer = await store.read("op")
        assert answer.revision.version == 2
        assert store.statistics().pool.discarded == 0


async def test_statement_timeout_of_the_session_is_an_outage(postgres_url: str) -> None:
    async with open_postgres(f"{postgres_url}?options=-c%20statement_timeout%3D50") as store:
        await store.merge("op", update())
        with locked_table(postgres_url):
            for call in (store.merge("op", update("t")), store.read("op"), store.latest(0, 9)):
                with pytest.raises(StoreUnavailable, match="cancelled the statement, by its statement_timeout"):
                    await call
        assert (await store.merge("op", update("t"))).changed
        assert store.statistics().pool.discarded == 0


async def test_read_only_database_is_read_and_answered_with_what_to_do(postgres_url: str) -> None:
    async with open_postgres(postgres_url) as store:
        await store.merge("op", update())
        database = postgres_url.rpartition("/")[2]
        execute(postgres_url, f"ALTER DATABASE {database} SET default_transaction_read_only TO on")
    async with open_postgres(postgres_url) as store:
        await store.read("op")
        for requests in ([MergeRequest("op", update("t"))], [MergeRequest(opid, update("t")) for opid in ("op", "b")]):
            with pytest.raises(StoreUnavailable, match=r"is read-only \(25006: .*\); connect to the primary"):
                await store.merge_many(requests)
        assert store.statistics().pool.discarded == 2, "the next connection may lead to the primary"
        with connected(postgres_url) as connection:
            connection.execute("SET default_transaction_read_only TO off")
            connection.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only".encode())
        await store.merge("op", update("t"))


async def test_statement_that_a_migration_or_a_pooler_spoilt_is_prepared_anew(
    store: PostgresStore, postgres_url: str
) -> None:
    await store.merge("op", update())
    await store.read("op")
    execute(postgres_url, 'ALTER TABLE timelines ALTER COLUMN id TYPE varchar(500) COLLATE "C"')
    await store.read("op")
    assert store.statistics().pool.discarded == 1
    await store._pool.run(lambda session: session.call(_deallocate, trio.CapacityLimiter(1)))  # noqa: SLF001
    assert (await store.merge("op", update("t"))).changed
    await store.read("op")


def _deallocate(connection: psycopg.Connection) -> None:
    connection.execute("DEALLOCATE ALL", prepare=False)
    connection.pgconn.exec_(b"DEALLOCATE ALL")


async def test_dropped_column_is_told(store: PostgresStore, postgres_url: str) -> None:
    execute(postgres_url, "ALTER TABLE timelines RENAME COLUMN payload TO content")
    await store.merge_many([])
    with pytest.raises(
        StoreUnavailable, match=r"lacks a column of the table 'timelines' \(42703: .*payload.*\); compare it with"
    ) as caught:
        await store.merge("op", update())
    assert isinstance(caught.value.__cause__, psycopg.errors.UndefinedColumn)


async def test_unknown_members_of_a_document_are_written_back(store: PostgresStore, postgres_url: str) -> None:
    document = Document(opid="op", extra_json='{"later":[1.10]}')
    await store.merge("op", update("a"))
    rows(postgres_url, "UPDATE timelines SET payload = %s", encode_document(document))
    await store.merge("op", update("b"))
    ((payload,),) = rows(postgres_url, "SELECT payload::text FROM timelines")
    assert payload.endswith(',"later":[1.10]}')


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (psycopg.errors.DiskFull(), "cannot grow (53100); free some space on its disk"),
        (psycopg.errors.OutOfMemory(), "is out of memory"),
        (psycopg.errors.CrashShutdown(), "starting anew after a crash"),
        (psycopg.errors.DuplicatePreparedStatement(), "use prepare=false"),
        (
            psycopg.OperationalError("the connection is lost"),
            "closed the connection, or it broke: the connection is lost",
        ),
        (psycopg.DataError("secret"), "could not be used (DataError); the cause tells more"),
        (psycopg.errors.SyntaxError("secret"), "could not be used (42601); the cause tells more"),
    ],
)
def test_failure_is_answered_with_what_to_do(error: psycopg.Error, advice: str) -> None:
    failure = translate(error, "u@h:5432/db")
    assert isinstance(failure, StoreUnavailable)
    assert advice in str(failure)
    assert str(failure).startswith("u@h:5432/db ")
    assert "secret" not in str(failure)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("USING ERRCODE = '0A000', MESSAGE = 'what is\n not there'", "(0A000: what is not there)"),
        ("USING ERRCODE = 'P0001', MESSAGE = 'secret'", "(P0001)"),
    ],
)
async def test_failure_of_no_other_kind_is_told_in_the_servers_words_unless_these_may_quote_a_row(
    store: PostgresStore, postgres_url: str, raised: str, words: str
) -> None:
    execute(
        postgres_url,
        f"CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION {raised}; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER refuse BEFORE INSERT ON timelines FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    with pytest.raises(StoreUnavailable) as caught:
        await store.merge("op", update(name="secret"))
    assert f"could not be used {words}; " in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["SerializationFailure", "DeadlockDetected", "LockNotAvailable"])
def test_failure_in_favour_of_another_is_a_lost_race(name: str) -> None:
    assert isinstance(translate(getattr(psycopg.errors, name)(), "db"), RaceLost)
