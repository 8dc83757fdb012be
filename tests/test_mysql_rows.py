"""
Tests of what stands in the MySQL table, of what the server refuses, and of many rows in one statement.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from timeline_trio.model import Document, Stage, Update, encode_document
from timeline_trio.store import (
    CorruptEntry,
    Found,
    Known,
    MergeRequest,
    NotFound,
    StoreRejected,
    StoreUnavailable,
    Unchanged,
    Unreadable,
)
from timeline_trio.testing import ManualClock
from timeline_trio_mysql import SCHEMA, open_mysql_on
from timeline_trio_mysql._numbers import find_bent_number
from timeline_trio_mysql._statements import padded, powers_of
from timeline_trio_mysql._timestamps import EARLIEST, LATEST, microseconds_of, stamp_of

from .mysql_support import application_pool, ask, opening, sessions, setting, stored, update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from timeline_trio.testing.servers import MySQLServer
    from timeline_trio_mysql import MySQLStore

SECOND = 10**9
NEW_YEAR = 1_767_225_600 * SECOND
HOSTILE = ("x' OR 1=1 -- %s %(y)s", "'; DROP TABLE timelines; --", "a') ; DROP TABLE timelines;-- x", '"; --', "\\'")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NEW_YEAR)


@pytest.fixture
async def store(mysql_url: str, clock: ManualClock) -> AsyncIterator[MySQLStore]:
    async with opening(mysql_url, clock=clock) as opened:
        yield opened


class Table:
    """
    The table of a test, beside the store.
    """

    def __init__(self, server: MySQLServer, url: str) -> None:
        self._server = server
        self._url = url

    async def ask(self, sql: str) -> list[list[str]]:
        return await ask(self._server, sql, self._url)


@pytest.fixture
def table(mysql_server: MySQLServer, mysql_url: str) -> Table:
    return Table(mysql_server, mysql_url)


async def test_row_holds_utc_to_the_microsecond(store: MySQLStore, table: Table, clock: ManualClock) -> None:
    for opid, ns in (("whole", 0), ("early", -1_000), ("late", 1_999)):
        clock.now = NEW_YEAR + ns
        await store.merge(opid, update())
    assert await table.ask("SELECT id, version, created_at, updated_at FROM timelines ORDER BY 4") == [
        ["early", "1", "2025-12-31 23:59:59.999999", "2025-12-31 23:59:59.999999"],
        ["whole", "1", "2026-01-01 00:00:00.000000", "2026-01-01 00:00:00.000000"],
        ["late", "1", "2026-01-01 00:00:00.000001", "2026-01-01 00:00:00.000001"],
    ]
    assert [answer.opid for answer in await store.latest(NEW_YEAR - 1, 9)] == ["late", "whole"]


@given(st.integers(EARLIEST, LATEST))
def test_times_come_back_to_the_microsecond(microseconds: int) -> None:
    assert microseconds_of(stamp_of(microseconds)) == microseconds


def test_times_are_those_of_utc() -> None:
    assert stamp_of(NEW_YEAR // 1_000).replace(tzinfo=UTC) == datetime(2026, 1, 1, tzinfo=UTC)
    assert stamp_of(10**30) == datetime.max  # noqa: DTZ901
    assert stamp_of(-(10**30)).year == 1000


async def test_clock_of_another_age_is_refused(store: MySQLStore, clock: ManualClock) -> None:
    clock.now = 10**21
    with pytest.raises(StoreUnavailable, match="clock of this process"):
        await store.merge("op", update())


async def test_bounds_beyond_what_a_column_holds_are_bounds_still(store: MySQLStore) -> None:
    await store.merge("op", update())
    assert await store.latest(10**30, 9) == []
    assert len(await store.latest(-(10**30), 10**30)) == 1


async def test_recent_operations_come_once_by_time_and_then_id(store: MySQLStore, clock: ManualClock) -> None:
    # Parity 84
    for opid in ("b", "B", "\xe9", "\U0001f600", "a"):
        await store.merge(opid, update())
    clock.advance(1)
    await store.merge("c", update())
    await store.merge("b", update())  # says nothing new
    found = await store.latest(NEW_YEAR - 1, 9)
    assert [answer.opid for answer in found] == ["c", "\U0001f600", "\xe9", "b", "a", "B"]
    assert [answer.opid for answer in await store.latest(NEW_YEAR - 1, 2)] == ["c", "\U0001f600"]
    assert [answer.opid for answer in await store.latest(NEW_YEAR, 9)] == ["c"]  # later than, not at
    assert await store.latest(NEW_YEAR + SECOND, 9) == []
    assert sorted(answer.opid for answer in await store.mget(["a", "b", "a", "missing", "b"])) == ["a", "b"]


async def test_reformatted_payload_is_no_change(store: MySQLStore, table: Table) -> None:
    # Parity 86
    await store.merge("op", update(attributes_json='{"a":1,"b":{"c":[1.50]}}'))
    payload = (
        '{ "stages": [{"name": "work", "attributes": {"b": {"c": [1.50]}, "a": 1}, "status": "running", "id": "s", '
        '"started_at": "1970-01-01T01:00:00.000+01:00", "parent_id": null}], "id": "op" }'
    )
    await table.ask(f"UPDATE timelines SET payload = '{payload}'")  # noqa: S608
    assert not (await store.merge("op", update(attributes_json='{"a":1,"b":{"c":[1.50]}}'))).changed
    assert await table.ask("SELECT payload, version FROM timelines") == [[payload, "1"]]
    assert (await store.merge("op", update(attributes_json='{"a":2}'))).changed
    await store.merge("other", update("t"))
    assert await table.ask("SELECT id, version FROM timelines ORDER BY id") == [["op", "2"], ["other", "1"]]
    assert set((await stored(store)).stages) == {("s", "")}
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.merge("op", update("never"))
    assert scope.cancelled_caught
    assert set((await stored(store)).stages) == {("s", "")}
    with pytest.raises(NotFound):
        await store.read("missing")


async def test_hostile_text_is_stored_literally(store: MySQLStore, table: Table) -> None:
    # C20
    for opid in HOSTILE:
        facts = tuple(Stage(id=text, name=text, started_at=0, error=text) for text in HOSTILE)
        await store.merge(opid, Update(stages=facts))
    await store.merge_many([MergeRequest(opid, update(HOSTILE[0] + "!")) for opid in HOSTILE])
    answers = await store.mget(HOSTILE)
    assert {answer.opid for answer in answers} == set(HOSTILE)
    for answer in answers:
        assert isinstance(answer, Found)
        assert {key[0] for key in answer.document.stages} == {*HOSTILE, HOSTILE[0] + "!"}
    assert await table.ask("SELECT COUNT(*) FROM timelines") == [[str(len(HOSTILE))]]


async def test_ids_are_told_apart_by_case_accents_and_composition(store: MySQLStore) -> None:
    # C16
    opids = ("Op", "op", "\xf6p", "o\u0308p")
    for opid in opids:
        await store.merge(opid, update(opid))
    await store.merge_many([MergeRequest(opid, update("more")) for opid in opids])
    for opid in opids:
        assert set((await stored(store, opid)).stages) == {(opid, ""), ("more", "")}


async def test_row_of_another_program_that_differs_by_a_space_is_not_taken_for_ours(
    store: MySQLStore, table: Table
) -> None:
    """
    The collation pads with spaces, so that no row of ours can be made beside it.
    """
    payload = encode_document(Document(opid="op"))
    await table.ask(
        "INSERT INTO timelines (id, payload, version, created_at, updated_at) "  # noqa: S608
        f"VALUES ('op ', '{payload}', 1, '2026-01-01', '2026-01-01')"
    )
    assert await store.mget(["op"]) == []
    with trio.fail_after(2), pytest.raises(StoreRejected, match="spaces at its end"):
        await store.merge("op", update())
    answers = await store.merge_many([MergeRequest("op", update()), MergeRequest("other", update())])
    assert isinstance(answers[0], StoreRejected)
    assert set((await stored(store, "other")).stages) == {("s", "")}


async def test_many_operations_are_merged_in_one_transaction(store: MySQLStore, table: Table) -> None:
    opids = [f"op-{number}" for number in range(137)]
    await store.merge_many([MergeRequest(opid, update("a")) for opid in opids[::2]])
    answers = await store.merge_many([MergeRequest(opid, update("b")) for opid in opids])
    assert await table.ask("SELECT version, COUNT(*) FROM timelines GROUP BY version ORDER BY version") == [
        ["1", "68"],
        ["2", "69"],
    ]
    found = {answer.opid: answer for answer in await store.mget(opids)}
    for opid, merged in zip(opids, answers, strict=True):
        assert not isinstance(merged, Exception)
        answer = found[opid]
        assert isinstance(answer, Found)
        assert merged.revision == answer.revision
        assert merged.document == answer.document
    assert store.statistics().attempts == 69 + 137


async def test_of_many_only_what_moved_on_is_read_again(store: MySQLStore, clock: ManualClock) -> None:
    opids = [f"op-{number}" for number in range(64)]
    first = await store.merge_many([MergeRequest(opid, update("a")) for opid in opids])
    known = {
        opid: Known(merged.revision, merged.document)
        for opid, merged in zip(opids, first, strict=True)
        if not isinstance(merged, Exception) and merged.revision and merged.document
    }
    await store.merge("op-7", update("b"))
    clock.advance(1)
    attempts = store.attempts
    await store.merge_many([MergeRequest(opid, update("c"), known[opid]) for opid in opids])
    assert store.attempts == attempts + 65
    for opid in opids:
        expected = {("a", ""), ("c", "")} | ({("b", "")} if opid == "op-7" else set())
        assert set((await stored(store, opid)).stages) == expected
    recent = await store.latest(clock.now - 1_000, 99)
    assert len(recent) == 64


async def test_many_that_all_moved_on_are_all_read_again(store: MySQLStore) -> None:
    opids = ["a", "b", "c"]
    merged = [await store.merge(opid, update("first")) for opid in opids]
    known = [Known(each.revision, each.document) for each in merged if each.revision and each.document]
    for opid in opids:
        await store.merge(opid, update("second"))
    await store.merge_many([MergeRequest(opid, update("third"), base) for opid, base in zip(opids, known, strict=True)])
    for opid in opids:
        assert {key[0] for key in (await stored(store, opid)).stages} == {"first", "second", "third"}


async def test_row_whose_time_is_a_little_ahead_steps_past_it_alone_and_among_many(
    store: MySQLStore, clock: ManualClock, table: Table
) -> None:
    for opid in ("a", "b", "c"):
        await store.merge(opid, update())
    clock.advance(-0.5)
    await store.merge("a", update("t"))
    await store.merge_many([MergeRequest(opid, update("t")) for opid in ("b", "c")])
    clock.advance(-10)
    await store.merge_many([MergeRequest(opid, update("u")) for opid in ("a", "b")])
    assert await table.ask("SELECT id, updated_at FROM timelines ORDER BY id") == [
        ["a", "2025-12-31 23:59:49.500000"],
        ["b", "2025-12-31 23:59:49.500000"],
        ["c", "2026-01-01 00:00:00.000001"],
    ]


async def test_large_documents_among_many_are_sent_one_by_one(store: MySQLStore) -> None:
    text = "x" * 700_000
    opids = [f"op-{number}" for number in range(5)]
    await store.merge_many([MergeRequest(opid, update("a", error=text)) for opid in opids])
    await store.merge_many([MergeRequest(opid, update("b")) for opid in opids])
    for opid in opids:
        assert (await stored(store, opid)).stages["a", ""].error == text


async def test_document_that_the_server_cannot_take_is_refused_before_it_is_sent(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    # A packet over the limit would end the connection, for this document and again for each retry.
    with setting(mysql_server, "max_allowed_packet", 1024 * 1024):
        async with opening(mysql_url, pool_size=1) as store:
            large = update("a", error="\\\"'" * 349_000 + "\N{GRINNING FACE}")
            with pytest.raises(StoreRejected, match="raise its max_allowed_packet"):
                await store.merge("op", large)
            fits = update("a", error="\\\"'" * 200_000)  # would not, if it were escaped
            await store.merge("op", fits)
            answers = await store.merge_many([MergeRequest("op", large), MergeRequest("b", large)])
            assert [type(answer) for answer in answers] == [StoreRejected] * 2
            answers = await store.merge_many([MergeRequest(opid, fits) for opid in ("c", "d", "e")])
            assert not any(isinstance(answer, Exception) for answer in answers)
            assert store.statistics().connections.discarded == 0


async def test_each_connection_asks_anew_for_what_the_server_takes(mysql_server: MySQLServer, mysql_url: str) -> None:
    large = update("a", error="x" * 2_000_000)
    async with opening(mysql_url, pool_size=1, create=False) as store:
        with setting(mysql_server, "max_allowed_packet", 1024 * 1024):
            await store.create_schema()
            with pytest.raises(StoreRejected, match="raise its max_allowed_packet"):
                await store.merge("op", large)
        for id_ in await sessions(mysql_server, mysql_url):
            await ask(mysql_server, f"KILL {id_}")
        await store.merge("op", large)


async def test_check_of_the_table_refuses_one_document_and_stops_nobody_else(store: MySQLStore, table: Table) -> None:
    await table.ask("ALTER TABLE timelines ADD CONSTRAINT no_secrets CHECK (payload NOT LIKE '%forbidden%')")
    with pytest.raises(StoreRejected, match="a CHECK of the table refuses the document") as caught:
        await store.merge("op", update("forbidden"))
    assert "forbidden" not in str(caught.value)
    for old in ("b", "c", "d"):
        await store.merge(old, update("a"))
    answers = await store.merge_many(
        [MergeRequest(opid, update("forbidden" if opid in "ac" else "ok")) for opid in "abcdefg"]
    )
    assert [isinstance(answer, StoreRejected) for answer in answers] == [each in "ac" for each in "abcdefg"]
    assert sorted(answer.opid for answer in await store.mget("abcdefg")) == ["b", "c", "d", "e", "f", "g"]
    assert set((await stored(store, "b")).stages) == {("a", ""), ("ok", "")}
    assert store.statistics().connections.discarded == 0


async def test_unknown_members_of_a_document_are_written_back(store: MySQLStore, table: Table) -> None:
    await store.merge("op", update("a"))
    await table.ask('UPDATE timelines SET payload = \'{"id":"op","later":[1.10]}\'')
    await store.merge("op", update("b"))
    ((payload,),) = await table.ask("SELECT payload FROM timelines")
    assert payload.endswith(',"later":[1.10]}')


async def test_damaged_row_is_reported_with_its_id_and_the_others_go_on(store: MySQLStore, table: Table) -> None:
    for opid in ("good", "bad"):
        await store.merge(opid, update())
    await table.ask("UPDATE timelines SET payload = '{\"id\":\"good\"}' WHERE id = 'bad'")
    answers = {answer.opid: answer for answer in await store.mget(["good", "bad"])}
    assert isinstance(answers["good"], Found)
    assert isinstance(answers["bad"], Unreadable)
    assert len(await store.latest(0, 9)) == 2
    with pytest.raises(CorruptEntry):
        await store.merge("bad", update("t"))


async def test_time_that_is_none_makes_a_row_corrupt(store: MySQLStore, table: Table) -> None:
    await store.merge("op", update())
    await store.merge("good", update())
    for mode, time in (
        ("", "0000-00-00"),
        ("ALLOW_INVALID_DATES", "2024-02-31"),
        ("", "2024-01-00"),
        ("", "0500-01-01"),
    ):
        for column in ("created_at", "updated_at"):
            await table.ask(f"SET sql_mode = '{mode}'; UPDATE timelines SET {column} = '{time}' WHERE id = 'op'")  # noqa: S608
            with trio.fail_after(2), pytest.raises(CorruptEntry):
                await store.merge("op", update("t"))
            answers = {answer.opid: answer for answer in await store.mget(["op", "good"])}
            assert isinstance(answers["op"], Unreadable)
            assert isinstance(answers["good"], Found)
            await table.ask(f"UPDATE timelines SET {column} = '2024-01-01' WHERE id = 'op'")  # noqa: S608
    assert store.statistics().connections.discarded == 0


async def test_unchanged_row_costs_no_payload(store: MySQLStore) -> None:
    merged = await store.merge("op", update())
    assert merged.revision
    assert merged.document
    known = Known(merged.revision, merged.document)
    assert await store.read("op", known) == Unchanged(opid="op", revision=known.revision)


async def test_integers_and_decimals_keep_every_digit(store: MySQLStore) -> None:
    # C13
    numbers = '{"a":9007199254740993,"aa":9223372036854775807,"b":18446744073709551617,"c":{"a":1.10,"b":-0.0}}'
    first = await store.merge("op", update(attributes_json=numbers))
    assert (await stored(store)).stages["s", ""].attributes_json == numbers
    again = await store.merge("op", update(attributes_json=numbers))
    assert not again.changed
    assert again.revision == first.revision


async def test_table_of_the_type_json_is_served(mysql_server: MySQLServer, mysql_url: str) -> None:
    schema = SCHEMA.replace("LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL", "JSON NOT NULL")
    await ask(mysql_server, schema.replace("/*M! CHECK (JSON_VALID(payload)) */", ""), mysql_url)
    texts = '"b":{"k":"1E+999 \\" 99999999999999999999"}'
    exact = f'{{"aa":[18446744073709551615,-9223372036854775808,0.1,-0.0,1.5e300],{texts}}}'
    bent = '{"a":18446744073709551616}'
    async with opening(mysql_url) as store:
        await store.merge("op", update(attributes_json=exact))
        assert (await stored(store)).stages["s", ""].attributes_json == exact
        assert not (await store.merge("op", update(attributes_json=exact))).changed
        requests = [MergeRequest(opid, update("t", attributes_json=bent)) for opid in ("op", "other")]
        answers = [*await store.merge_many(requests), *await store.merge_many([*requests, MergeRequest("c", update())])]
        for answer in answers[:4]:
            if mysql_server.is_mariadb:  # whose JSON is text
                assert not isinstance(answer, Exception)
            else:
                assert isinstance(answer, StoreRejected)
                assert "an integer beyond 64 bits, which MySQL's JSON would change; run: ALTER TABLE" in str(answer)
        assert not isinstance(answers[4], Exception)


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ('{"a":18446744073709551615,"b":-9223372036854775808,"c":0.1,"d":1.10,"e":1e22,"f":-0.0}', ""),
        ('{"a":8015858609890692.0,"b":1.7976931348623157e308,"c":5e-324}', ""),
        ('{"a":"18446744073709551616","b":"\\"18446744073709551616","18446744073709551616":1}', ""),
        ('{"a":"\\\\","b":18446744073709551616}', "an integer beyond 64 bits"),
        ('{"a":-9223372036854775809}', "an integer beyond 64 bits"),
        ('{"a":' + "9" * 5_000 + "}", "an integer beyond 64 bits"),
        ('{"a":[1E+400]}', "a decimal that no double equals"),
        ('{"a":3.14159265358979323846}', "a decimal that no double equals"),
    ],
)
def test_numbers_that_a_double_would_bend_are_found(payload: str, found: str) -> None:
    assert find_bent_number(payload) == found


@given(st.integers(1, 64))
def test_lists_are_cut_and_padded_to_powers_of_two(count: int) -> None:
    assert sum(powers_of(count)) == count
    assert all(part & (part - 1) == 0 for part in powers_of(count))
    whole: list[int | None] = padded(list(range(count)))
    assert len(whole) in {1, 2, 4, 8, 16, 32, 64}
    assert whole[:count] == list(range(count))
    assert set(whole[count:]) <= {None}


async def test_a_connection_prepares_few_statements(mysql_server: MySQLServer, mysql_url: str) -> None:
    async def count() -> int:
        ((_, number),) = await ask(mysql_server, "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'")
        return int(number)

    before = await count()
    async with opening(mysql_url, pool_size=1) as store:
        for size in range(1, 65):
            requests = [MergeRequest(f"op-{number}", update(str(size))) for number in range(size)]
            await store.merge_many(requests)
            await store.mget([request.opid for request in requests])
        assert await count() - before <= 7 * 4 + 3


async def test_statements_on_the_applications_pool_are_prepared_anew_after_its_reconnection(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    """
    Ids of statements belong to a session of the server, and the driver's connection may outlive several.
    """

    async def reconnect(pool: Any) -> None:
        async with pool.acquire() as connection:
            connection.close()
            await connection.connect()
            await connection.prepare("DELETE FROM timelines WHERE id <> ?")

    async with application_pool(mysql_url, maxsize=1, autocommit=True) as pool, open_mysql_on(pool) as store:
        await store.merge("op", update("a"))
        await pool._loop.run_aio_coroutine(reconnect(pool))  # noqa: SLF001 - it is known to whoever made the pool
        await store.merge("op", update("b"))
        assert set((await stored(store)).stages) == {("a", ""), ("b", "")}
    assert await ask(mysql_server, "SELECT COUNT(*) FROM timelines", mysql_url) == [["1"]]
