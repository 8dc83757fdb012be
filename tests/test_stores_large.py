"""
Tests of large operations in the SQL stores: several real processes, some of them killed, and tables of older versions.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
import trio

from timeline_trio import open_store
from timeline_trio._store._changes import JOIN_EVERY, ROW_LIMIT, join_script
from timeline_trio.model import Stage, Status, Update, encode_attributes, merge
from timeline_trio.store import (
    ChangeRange,
    ChangeRow,
    Changes,
    FetchChanges,
    FetchHeads,
    Found,
    Known,
    NotFound,
    RaceLost,
    RowStore,
    Unchanged,
)

from .large_program import record, save

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from timeline_trio.model import Document
    from timeline_trio.store import RowHead, Script
    from timeline_trio.testing.servers import MySQLServer

PROGRAM = Path(__file__).with_name("large_program.py")
STORES = ("sqlite", "mysql", "postgres")
LARGE = encode_attributes({"x": "x" * ROW_LIMIT})
KILLS = 8
LONGEST_JOIN = 0.012  # seconds, with the save before it

# What the first releases made.
OLD_SCHEMAS = {
    "sqlite": """\
CREATE TABLE timelines (
    id TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    payload TEXT NOT NULL
);
CREATE INDEX timelines_updated ON timelines (updated_at, id);
""",
    "mysql": """\
CREATE TABLE timelines (
    id VARCHAR(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL /*M! CHECK (JSON_VALID(payload)) */,
    version BIGINT NOT NULL,
    created_at DATETIME(6) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    INDEX timelines_updated (updated_at, id)
) ENGINE = InnoDB
""",
    "postgres": """\
CREATE TABLE timelines (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    payload json NOT NULL,
    version bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX timelines_updated ON timelines (updated_at, id);
""",
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """
    The URL of an empty store.
    """
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ops.db"
    given: str = request.getfixturevalue(f"{request.param}_url")
    return given


@pytest.fixture
def old_url(url: str, request: pytest.FixtureRequest) -> str:
    """
    The URL of a store with the table of the first releases, and nobody to add anything to it.
    """
    scheme, _, place = url.partition("://")
    schema = OLD_SCHEMAS[scheme]
    if scheme == "sqlite":
        with closing(sqlite3.connect(place[1:])) as connection:
            connection.executescript(schema)
    elif scheme == "mysql":
        server: MySQLServer = request.getfixturevalue("mysql_server")
        server.execute(schema, database=url)
    else:
        with psycopg.connect(url, autocommit=True) as postgres:
            postgres.execute(schema.encode())
    return f"{url}?create=false"


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[RowStore, None]:
    async with open_store(url) as store:
        assert isinstance(store, RowStore)
        yield store


def stages(*ids: object, attributes_json: str = "") -> Update:
    return Update(
        stages=tuple(Stage(id=str(each), name="work", started_at=0, attributes_json=attributes_json) for each in ids)
    )


def ids_of(document: Document) -> set[str]:
    return {id_ for id_, _ in document.stages}


async def known_of(store: RowStore) -> Known:
    answer = await store.read("op")
    assert isinstance(answer, Found)
    return Known(answer.revision, answer.document)


async def read_after(store: RowStore, known: Known) -> Known:
    """
    Read what came after, and return what is known then.
    """
    answer = await store.read("op", known)
    if isinstance(answer, Found):
        return Known(answer.revision, answer.document)
    if isinstance(answer, Unchanged):
        return known
    assert answer.since == known.revision
    return Known(answer.revision, merge(known.document, answer.update)[0])


async def make_large(store: RowStore) -> None:
    """
    Make an operation that is left in its row from its first version on.
    """
    await store.merge("op", stages("first", attributes_json=LARGE))
    await store.merge("op", stages("second"))


def look(opid: str) -> Script[tuple[int | None, Sequence[ChangeRow]]]:
    """
    Return where a row was left, and the changes beside it.
    """
    (head,) = cast("Sequence[RowHead]", (yield FetchHeads([opid])))
    wanted = ChangeRange(id=opid, incarnation=head.created_at, first=0, last=2**62)
    return head.folded, cast("Sequence[ChangeRow]", (yield FetchChanges([wanted])))


async def changes_beside(store: RowStore) -> tuple[int | None, list[int]]:
    """
    Return where the row was left, and the versions that there are changes of.
    """
    folded, changes = await store.run(partial(look, "op"), writes=False, transaction=True)
    return folded, [change.version for change in changes]


class Instance:
    """
    A process that records, from its `ready` on.
    """

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._rest = b""
        self.saved = 0

    async def go(self) -> None:
        assert self._process.stdin
        await self._process.stdin.send_all(b"go\n")

    async def say(self) -> bytes:
        """
        Return the next line; b"" at the end.
        """
        assert self._process.stdout
        while b"\n" not in self._rest:
            more = await self._process.stdout.receive_some()
            if not more:
                return b""
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    async def save(self) -> bool:
        """
        Wait until more is saved; false if the process has ended.
        """
        line = await self.say()
        self.saved = int(line or self.saved)
        return bool(line)

    async def kill(self) -> None:
        """
        Kill it, and take in what it said before.
        """
        self._process.kill()
        while await self.save():
            pass
        await self._process.wait()

    async def end(self) -> None:
        """
        Wait for its end.
        """
        while await self.save():
            pass
        assert await self._process.wait() == 0


async def start(
    nursery: trio.Nursery, url: str, task: Callable[..., object], names: Sequence[str], count: int = 0
) -> list[Instance]:
    """
    Start processes, and wait until all of them can go.
    """
    run = partial(trio.run_process, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
    command = [sys.executable, "-W", "error", str(PROGRAM), url, task.__name__]
    instances = [Instance(await nursery.start(run, [*command, name, str(count)])) for name in names]
    for instance in instances:
        assert await instance.say() == b"ready"
    return instances


class Reader:
    """
    Reads what others write, mostly by changes, and finds out whether what it sees is ever not whole.
    """

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._known: Known | None = None
        self._seen: set[tuple[str, str]] = set()
        self.reads = 0
        self.by_changes = 0

    async def read_until(self, done: Callable[[], bool]) -> None:
        while not done():
            try:
                await self._read()
            except NotFound:
                assert self._known is None

    async def _read(self) -> None:
        self.reads += 1
        before = self._known
        answer = await self._store.read("op", before if self.reads % 8 else None)
        if isinstance(answer, Unchanged):
            return
        if isinstance(answer, Changes):
            assert before is not None
            assert before.revision.is_older_than(answer.revision)
            document = merge(before.document, answer.update)[0]
            self.by_changes += 1
        else:
            document = answer.document
            if before is not None and before.revision == answer.revision:
                assert document == before.document
        self._known = Known(answer.revision, document)
        if before is not None:
            assert not answer.revision.is_older_than(before.revision)
        keys = set(document.stages)
        assert keys >= self._seen, "what was seen once is there"
        self._seen = keys
        for actor in {actor for _, actor in keys}:
            numbers = sorted(int(id_) for id_, each in keys if each == actor)
            assert numbers == list(range(len(numbers))), "each saved its stages in order"


async def test_two_processes_fill_one_operation_and_a_reader_sees_whole_versions_only(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 2_000
    async with opened(url) as store, trio.open_nursery() as nursery:
        writers = await start(nursery, url, record, ["a", "b"], count)
        reader, left = Reader(store), list(writers)

        async def end(writer: Instance) -> None:
            await writer.end()
            left.remove(writer)

        nursery.start_soon(reader.read_until, lambda: not left)
        for writer in writers:
            await writer.go()
            nursery.start_soon(end, writer)
    async with opened(url) as store:
        document = (await known_of(store)).document
        folded, versions = await changes_beside(store)
    assert set(document.stages) == {(str(number), f"id:{actor}") for number in range(count) for actor in "ab"}
    assert all(stage.status is Status.SUCCEEDED for stage in document.stages.values())
    assert folded is not None
    assert len(versions) < 3 * JOIN_EVERY
    assert reader.by_changes
    with capsys.disabled():
        print(f"\n{url.partition(':')[0]}: {reader.reads} reads, {reader.by_changes} by changes")  # noqa: T201


async def test_killed_processes_lose_nothing_that_they_said_was_saved_and_hold_nobody_up(url: str) -> None:
    """
    Each is killed about when it joins the changes of 64 saves.
    """
    names = [f"victim-{number}" for number in range(KILLS)]
    chance = random.Random(5)  # noqa: S311 - the same each time
    async with opened(url) as store, trio.open_nursery() as nursery:
        await make_large(store)
        known = await known_of(store)
        victims = await start(nursery, url, save, names)
        said: dict[str, int] = {}
        for name, victim in zip(names, victims, strict=True):
            grown = known.revision.version - 1
            await victim.go()
            while (grown + victim.saved) % JOIN_EVERY != JOIN_EVERY - 1:
                assert await victim.save()
            await trio.sleep(chance.uniform(0, LONGEST_JOIN))
            await victim.kill()
            said[name] = victim.saved
            with trio.fail_after(5):
                known = await read_after(store, known)
                assert known == await known_of(store)
                await store.merge("op", stages(f"after {name}"), known)
            known = await read_after(store, known)
            for actor, saved in said.items():
                numbers = {int(id_) for id_, each in known.document.stages if each == f"id:{actor}"}
                assert numbers >= set(range(saved))
                assert len(numbers) <= saved + 1, "one that it had no time to tell of"
        folded, versions = await changes_beside(store)
    assert (folded, versions[-1]) == (1, known.revision.version)


async def test_two_stores_that_join_the_same_changes_at_once_do_no_harm(url: str) -> None:
    outcomes: list[str] = []

    async def join(store: RowStore, known: Known) -> None:
        script = partial(join_script, "op", known.revision, 1)
        try:
            await store.run(script, writes=True, transaction=True)
        except RaceLost:
            outcomes.append("lost")
        else:
            outcomes.append("done")

    async def write(store: RowStore, round_: int, how_many: int) -> None:
        for number in range(how_many):
            await store.merge("op", stages(f"{round_} {number} of {how_many}"))

    async with opened(url) as first, opened(url) as second, opened(url) as third:
        await make_large(first)
        known = await known_of(first)
        for round_ in range(8):
            # One less than makes a store join by itself.
            await write(first, round_, JOIN_EVERY - 1 - (known.revision.version - 1) % JOIN_EVERY)
            known = await known_of(first)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(join, first, known)
                nursery.start_soon(join, second, known)
                nursery.start_soon(write, third, round_, 1)
            now = await known_of(second)
            assert now.document == merge(known.document, stages(f"{round_} 0 of 1"))[0]
            assert await read_after(third, known) == now
            known = now
        assert known.revision.version == 8 * JOIN_EVERY + 1
        assert len((await changes_beside(third))[1]) <= 8 * 2
    assert len(outcomes) == 16
    assert "done" in outcomes  # in other rounds the third store, which joins by itself, may be faster than both


async def test_table_of_an_older_version_is_served_and_keeps_changes_once_it_may(
    old_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger=f"timeline_trio_{old_url.partition(':')[0]}")
    async with opened(old_url) as store, opened(old_url) as other:
        await make_large(store)
        for number in range(3):
            await store.merge("op", stages(number))
            await other.merge("op", stages(f"other {number}"))
        assert ids_of((await known_of(other)).document) == {"first", "second", *"012", "other 0", "other 1", "other 2"}
        assert not store.keeps_changes
        assert [record.getMessage().count("create_schema()") for record in caplog.records] == [1, 1], "once a store"
        known = await known_of(other)

        await cast("Any", store).create_schema()
        await store.merge("op", stages("more"))  # the first that finds it out may still be written whole
        known = await known_of(other)
        folded, versions = await changes_beside(store)
        await store.merge("op", stages("still more"))
        assert store.keeps_changes
        left = folded or known.revision.version
        assert await changes_beside(store) == (left, [*versions, known.revision.version + 1])
        assert isinstance(await store.read("op", known), Changes)
        # Who has used the table as it was finds out, before it reads or writes anything.
        assert await read_after(other, known) == await known_of(store)
        assert await known_of(other) == await known_of(store)
        for number in range(3):
            await other.merge("op", stages(f"most {number}"))
        assert other.keeps_changes
        assert await changes_beside(other) == (left, list(range(left + 1, known.revision.version + 5)))
        assert await known_of(store) == await known_of(other)
    assert len(caplog.records) == 2


async def test_opening_a_store_adds_what_an_older_table_lacks(old_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(old_url) as old:
        await make_large(old)
    caplog.clear()
    async with opened(old_url.replace("create=false", "create=true")) as store:
        for number in range(3):
            await store.merge("op", stages(number))
        assert store.keeps_changes
        folded, versions = await changes_beside(store)
        assert folded in {2, 3}, "the first save may still be written whole"
        assert versions == list(range(folded + 1, 6))
        assert ids_of((await known_of(store)).document) == {"first", "second", *"012"}
    assert caplog.records == []
