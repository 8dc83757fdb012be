"""
Tests of large operations in the MySQL store: what stands beside rows, what the server refuses, and what accounts may.
"""

from __future__ import annotations

import logging
import subprocess
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio._store._changes import JOIN_EVERY, ROW_LIMIT
from timeline_trio.model import encode_attributes, merge
from timeline_trio.store import Changes, Found, Known, MergeRequest, StoreRejected, StoreUnavailable
from timeline_trio.testing import ManualClock
from timeline_trio_mysql import SCHEMA, open_mysql, open_mysql_on

from .mysql_support import (
    account,
    address_of,
    application_pool,
    ask,
    eventually,
    opening,
    setting,
    stored,
    update,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from timeline_trio.testing.servers import MySQLServer
    from timeline_trio_mysql import MySQLStore

LARGE = encode_attributes({"x": "x" * ROW_LIMIT})
ROWS = "SELECT id, version, folded FROM timelines ORDER BY id"
CHANGES = "SELECT id, version FROM timeline_changes ORDER BY id, version"
OLD_SCHEMA = SCHEMA.partition(";")[0].replace("    folded BIGINT NULL,\n", "")
WRITER = "writer"


async def make_large(store: MySQLStore, *opids: str) -> None:
    """
    Make operations that are left in their rows from their first versions on.
    """
    for opid in opids:
        await store.merge(opid, update("large", attributes_json=LARGE))
        await store.merge(opid, update("s"))


async def known_of(store: MySQLStore, opid: str = "op") -> Known:
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return Known(answer.revision, answer.document)


def ids_of(known: Known) -> set[str]:
    return {id_ for id_, _ in known.document.stages}


async def test_an_operation_grows_far_beyond_what_one_packet_takes(mysql_server: MySQLServer, mysql_url: str) -> None:
    text = "\N{EURO SIGN}" * 10_000
    with setting(mysql_server, "max_allowed_packet", 1024 * 1024):
        async with opening(mysql_url) as store, opening(mysql_url) as reader:
            await make_large(store, "op")
            read = first = await known_of(reader)
            known = first
            for number in range(3 * JOIN_EVERY):
                merged = await store.merge("op", update(str(number), error=text), known)
                assert merged.revision
                assert merged.document
                known = Known(merged.revision, merged.document)
                if number % JOIN_EVERY == 0:
                    answer = await reader.read("op", read)
                    assert isinstance(answer, Changes)
                    read = Known(answer.revision, merge(read.document, answer.update)[0])
                    assert read == known
            assert await known_of(reader) == known
            answer = await reader.read("op", first)
            assert isinstance(answer, Changes)
            assert merge(first.document, answer.update)[0] == known.document
            ((size,),) = await ask(mysql_server, "SELECT SUM(LENGTH(payload)) FROM timeline_changes", mysql_url)
            assert int(size) > 5_000_000
            # What one save says has to fit.
            with pytest.raises(
                StoreRejected, match=r"what changed of the document has .* raise its max_allowed_packet"
            ):
                await store.merge("op", update("one", error=text * 40))
            await store.merge("op", update("less", error=text * 30))
            assert store.statistics().connections.discarded == 0


async def test_several_large_operations_are_saved_in_one_transaction(mysql_server: MySQLServer, mysql_url: str) -> None:
    clock = ManualClock()
    async with opening(mysql_url, clock=clock) as store, opening(mysql_url, clock=clock) as other:
        await make_large(store, "a", "b", "c")
        await store.merge("small", update("s"))
        known = {opid: await known_of(store, opid) for opid in ("a", "b", "c", "small")}
        await other.merge("b", update("theirs"))
        clock.advance(-0.5)
        opids = ("new", "a", "b", "c", "small")
        answers = await store.merge_many([MergeRequest(opid, update("t"), known.get(opid)) for opid in opids])
        assert not any(isinstance(answer, Exception) for answer in answers)
        for opid in opids:
            found = await known_of(other, opid)
            assert "t" in ids_of(found)
        assert ids_of(await known_of(other, "b")) == {"large", "s", "theirs", "t"}
    assert await ask(mysql_server, ROWS, mysql_url) == [
        ["a", "3", "1"],
        ["b", "4", "1"],
        ["c", "3", "1"],
        ["new", "1", "NULL"],
        ["small", "2", "NULL"],
    ]
    rows = [["a", "2"], ["a", "3"], ["b", "2"], ["b", "3"], ["b", "4"], ["c", "2"], ["c", "3"]]
    assert await ask(mysql_server, CHANGES, mysql_url) == rows
    steps = "SELECT TIMESTAMPDIFF(MICROSECOND, created_at, updated_at) FROM timelines ORDER BY id"
    assert await ask(mysql_server, steps, mysql_url) == [["2"], ["3"], ["2"], ["0"], ["1"]]


async def test_changes_of_a_deleted_operation_are_swept_by_the_next_of_its_id(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    async with opening(mysql_url, clock=ManualClock()) as store:  # the next has the same incarnation
        opids = ("a", "b", "c", "d")
        await make_large(store, *opids, "kept")
        await ask(mysql_server, "DELETE FROM timelines WHERE id <> 'kept'", mysql_url)
        await store.merge("a", update("new", attributes_json=LARGE))
        await store.merge_many([MergeRequest(opid, update("new", attributes_json=LARGE)) for opid in opids[1:]])
        assert await ask(mysql_server, CHANGES, mysql_url) == [["kept", "2"]]
        for opid in opids:
            await store.merge(opid, update("more"))
            assert ids_of(await known_of(store, opid)) == {"new", "more"}
        # One who wants to make a row that another one has made large meanwhile finds it.
        await ask(mysql_server, "DELETE FROM timelines WHERE id = 'a'", mysql_url)
        async with opening(mysql_url) as rival, trio.open_nursery() as nursery:
            for store_ in (store, rival):
                for number in range(8):
                    nursery.start_soon(store_.merge, "a", update(f"{number} {store_ is rival}", attributes_json=LARGE))
        assert len((await stored(store, "a")).stages) == 16


async def test_change_that_a_check_refuses_is_one_operations_and_the_others_are_saved(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    async with opening(mysql_url) as store:
        await make_large(store, *"abcdefg")
        check = "ALTER TABLE timeline_changes ADD CONSTRAINT no_secrets CHECK (payload NOT LIKE '%forbidden%')"
        await ask(mysql_server, check, mysql_url)
        with pytest.raises(StoreRejected, match="a CHECK of the table refuses the document") as caught:
            await store.merge("a", update("forbidden"))
        assert "forbidden" not in str(caught.value)
        requests = [MergeRequest(opid, update("forbidden" if opid in "ac" else "ok")) for opid in "abcdefg"]
        answers = await store.merge_many(requests)
        assert [isinstance(answer, StoreRejected) for answer in answers] == [each in "ac" for each in "abcdefg"]
        for opid in "abcdefg":
            known = await known_of(store, opid)
            assert (known.revision.version, len(known.document.stages)) == ((2, 2) if opid in "ac" else (3, 3))
            await store.merge(opid, update("later"))
        assert store.statistics().connections.discarded == 0


async def test_changes_of_the_type_json_are_served_and_keep_what_they_are_given(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    schema = SCHEMA.replace("LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL", "JSON NOT NULL")
    await ask(mysql_server, schema.replace("/*M! CHECK (JSON_VALID(payload)) */", ""), mysql_url)
    bent = update("t", attributes_json='{"a":18446744073709551616}')
    async with opening(mysql_url) as store:
        await make_large(store, "op", "other")
        assert await ask(mysql_server, CHANGES, mysql_url) == [["op", "2"], ["other", "2"]]
        exact = '{"aa":[18446744073709551615,-9223372036854775808,0.1,-0.0,1.5e300],"b":{}}'
        await store.merge("op", update("exact", attributes_json=exact))
        assert (await stored(store)).stages["exact", ""].attributes_json == exact
        answers = await store.merge_many([MergeRequest(opid, bent) for opid in ("op", "other")])
        for answer in answers:
            if mysql_server.is_mariadb:  # whose JSON is text
                assert not isinstance(answer, Exception)
            else:
                assert isinstance(answer, StoreRejected)
                assert "ALTER TABLE timeline_changes MODIFY payload LONGTEXT" in str(answer)


@pytest.mark.parametrize("options", [{"autocommit": True}, {"autocommit": False}], ids=["autocommit", "none"])
async def test_writers_on_the_applications_pool_race_for_a_large_operation(
    mysql_url: str, options: dict[str, bool]
) -> None:
    stale = {**options, "init_command": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"}
    async with opening(mysql_url) as ours, application_pool(mysql_url, **stale) as pool, open_mysql_on(pool) as theirs:
        await make_large(ours, "op", "other")

        async def write(store: MySQLStore, name: str) -> None:
            for number in range(JOIN_EVERY):
                requests = [MergeRequest(opid, update(f"{name} {number}")) for opid in ("op", "other")]
                await store.merge("op", requests[0].update)
                if number % 8 == 0:
                    await store.merge_many(requests)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for store, name in ((ours, "ours"), (theirs, "theirs"), (ours, "ours, too")):
                    nursery.start_soon(write, store, name)
        known = await known_of(theirs)
        assert len(known.document.stages) == 3 * JOIN_EVERY + 2
        assert known.revision.version == 3 * JOIN_EVERY + 2
        assert await known_of(ours) == known
        assert len((await stored(ours, "other")).stages) == 3 * JOIN_EVERY // 8 + 2
        assert pool.freesize == pool.size


@pytest.mark.parametrize("may", ["", "SELECT", "SELECT, INSERT", "SELECT, DELETE"])
async def test_account_that_may_not_keep_changes_writes_rows_whole_and_never_over_what_others_keep(
    mysql_server: MySQLServer, mysql_url: str, may: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="timeline_trio_mysql")
    database = address_of(mysql_url).database
    grant = "GRANT SELECT, INSERT, DELETE ON timeline_changes"
    told = f"GRANT SELECT, INSERT, DELETE ON `{database}`.`timeline_changes` TO '{WRITER}'@'127.0.0.1'"
    async with opening(mysql_url) as owner, AsyncExitStack() as stack:
        await make_large(owner, "theirs")
        known = await known_of(owner, "theirs")
        stack.enter_context(account(mysql_server, WRITER))
        await ask(mysql_server, f"GRANT SELECT, INSERT, UPDATE ON {database}.timelines TO {WRITER}@'127.0.0.1'")
        if may:
            await ask(mysql_server, f"GRANT {may} ON {database}.timeline_changes TO {WRITER}@'127.0.0.1'")
        store = await stack.enter_async_context(open_mysql(address_of(mysql_url, user=WRITER)))
        await make_large(store, "op")
        await store.merge("op", update("third"))
        assert not store.keeps_changes
        assert len((await stored(owner)).stages) == 3
        assert await ask(mysql_server, f"{ROWS} LIMIT 1", mysql_url) == [["op", "3", "NULL"]]
        assert [grant in record.getMessage() for record in caplog.records] == [True], "once"

        calls: dict[str, Callable[[], Awaitable[object]]]
        calls = {"SELECT": partial(store.read, "theirs"), "INSERT": partial(store.merge, "theirs", update("t"))}
        for right, call in calls.items():
            if right in may:
                await call()
            else:
                with pytest.raises(StoreUnavailable, match=told):
                    await call()
        expected = {"large", "s"} | ({"t"} if "INSERT" in may else set())
        answers = [await known_of(owner, "theirs"), await known_of(store, "theirs") if may else None]
        for found in filter(None, answers):
            assert ids_of(found) == expected
            assert found.revision.version == len(expected)
        await owner.merge("theirs", update("goes on"), known)
        assert ids_of(await known_of(owner, "theirs")) == expected | {"goes on"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("PRIMARY KEY (id,", "noted INT NOT NULL,\n    PRIMARY KEY (id,"),
        ("PRIMARY KEY (id,", "UNIQUE KEY (version),\n    PRIMARY KEY (id,"),
        ("ENGINE = InnoDB;\n", "ENGINE = MyISAM;\n"),
        ("COLLATE utf8mb4_bin NOT NULL,\n    inc", "COLLATE utf8mb4_general_ci NOT NULL,\n    inc"),
        ("incarnation BIGINT", "incarnation INT"),
        ("PRIMARY KEY (id, incarnation, version)", "PRIMARY KEY (id, version)"),
    ],
)
async def test_table_that_would_not_keep_changes_is_not_given_any(
    mysql_server: MySQLServer, mysql_url: str, before: str, after: str
) -> None:
    first, _, second = SCHEMA.partition(";\n")
    assert before in second
    await ask(mysql_server, f"{first};\n{second.replace(before, after)}", mysql_url)
    async with opening(mysql_url) as store:
        await make_large(store, "op")
        assert not store.keeps_changes
    assert await ask(mysql_server, CHANGES, mysql_url) == []


async def test_older_table_that_cannot_be_altered_is_used_as_it_is(mysql_server: MySQLServer, mysql_url: str) -> None:
    await ask(mysql_server, OLD_SCHEMA, mysql_url)
    database = address_of(mysql_url).database
    with account(mysql_server, WRITER, may=f"SELECT, INSERT, UPDATE ON {database}.*"):
        async with open_mysql(address_of(mysql_url, user=WRITER)) as store:
            await make_large(store, "op")
            assert not store.keeps_changes
            async with opening(mysql_url):
                pass  # by somebody who may
            await store.merge("op", update("t"))
            assert not store.keeps_changes, "it may not delete"
            assert len((await stored(store)).stages) == 3
    assert await ask(mysql_server, "SHOW COLUMNS FROM timelines LIKE 'folded'", mysql_url)


async def test_older_table_in_long_use_holds_nobody_up(mysql_server: MySQLServer, mysql_url: str) -> None:
    await ask(mysql_server, OLD_SCHEMA, mysql_url)
    with in_transaction(mysql_server, mysql_url):
        with trio.fail_after(8):
            async with opening(mysql_url) as store, trio.open_nursery() as nursery:
                assert not store.keeps_changes
                await make_large(store, "op")
                # Who reads behind the one that waits to alter the table waits no longer than that one.
                nursery.start_soon(store.create_schema)
                await eventually(partial(_is_waiting, mysql_server))
                assert len((await stored(store)).stages) == 2
    async with opening(mysql_url) as store:
        assert store.keeps_changes


async def _is_waiting(server: MySQLServer) -> bool:
    waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'ALTER TABLE%'"
    return await ask(server, waiting) == [["1"]]


@contextmanager
def in_transaction(server: MySQLServer, url: str) -> Iterator[None]:
    """
    A session that has read the table, in a transaction that lasts.
    """
    command = server._client_command(url.rpartition("/")[2])  # noqa: SLF001 - its session has to last
    with subprocess.Popen(  # noqa: S603 - the server's own client
        [*command, "--unbuffered"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin
        assert client.stdout
        client.stdin.write("BEGIN; SELECT COUNT(*) FROM timelines;\n")
        client.stdin.flush()
        assert client.stdout.readline() == "0\n"
        yield


async def test_damaged_change_is_that_operations(mysql_server: MySQLServer, mysql_url: str) -> None:
    async with opening(mysql_url) as store:
        await make_large(store, "bad", "good")
        await ask(mysql_server, "UPDATE timeline_changes SET payload = '{' WHERE id = 'bad'", mysql_url)
        answers = await store.mget(["bad", "good"])
        assert sorted(type(answer).__name__ for answer in answers) == ["Found", "Unreadable"]


async def test_many_large_operations_are_caught_up_with_in_few_statements(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    opids = [f"op-{number:02}" for number in range(20)]
    async with opening(mysql_url) as store, opening(mysql_url, pool_size=1) as reader:
        await make_large(store, *opids)
        known = {opid: await known_of(store, opid) for opid in opids}
        await store.merge_many([MergeRequest(opid, update(opid), known[opid]) for opid in opids])
        await reader.mget(["op-00"])
        before = await _count_executed(mysql_server)
        answers = await reader.mget(opids, known)
        assert await _count_executed(mysql_server) - before == 1 + 3
        for answer in answers:
            assert isinstance(answer, Changes)
            assert [stage.id for stage in answer.update.stages] == [answer.opid]


async def _count_executed(server: MySQLServer) -> int:
    ((_, number),) = await ask(server, "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'")
    return int(number)
