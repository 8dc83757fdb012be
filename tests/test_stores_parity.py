"""
Tests of the parity list's lines on SQL, by one text on all three SQL stores.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import NotFound, open_store
from timeline_trio.model import Actor, Stage, Status, Update, encode_document
from timeline_trio.store import Found, Known, MergeRequest, MergesMany

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeline_trio.store import Store
    from timeline_trio.testing.servers import SQLServer

PROGRAM = Path(__file__).with_name("parity_program.py")


@pytest.fixture(params=["sqlite", "mysql", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    """
    Which SQL store.
    """
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """
    The URL of an empty one.
    """
    return f"sqlite:///{tmp_path}/ops.db" if kind == "sqlite" else str(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture
def execute(kind: str, url: str, request: pytest.FixtureRequest) -> Callable[[str], object]:
    """
    Runs a statement behind the store's back.
    """

    def run_sqlite(statement: str) -> None:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(statement)

    if kind == "sqlite":
        return run_sqlite
    server: SQLServer = request.getfixturevalue({"mysql": "mysql_server"}.get(kind, kind))
    return lambda statement: server.execute(statement, database=url)


def stages(*ids: str, actor: str = "", name: str = "work") -> Update:
    return Update(stages=tuple(Stage(id=each, name=name, started_at=0, actor=Actor(id=actor)) for each in ids))


async def known(store: Store, opid: str = "op") -> Known:
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return Known(answer.revision, answer.document)


async def run_together(task: str, url: str, *actors: str) -> None:
    async with open_store(url):
        pass  # its tables are there before they all come
    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(trio.run_process, [sys.executable, str(PROGRAM), task, url, actor])


async def test_mget_and_latest_answer_once_each_and_in_order(url: str) -> None:
    # parity 84
    async with open_store(url) as store:
        for opid in ("a", "c", "b"):
            await store.merge(opid, stages("s"))
        newest = await known(store, "b")
        assert sorted(each.opid for each in await store.mget(["b", "a", "b", "none"])) == ["a", "b"]
        latest = [each.opid for each in await store.latest(0, 10)]
        assert latest == ["b", "c", "a"]
        assert [each.opid for each in await store.latest(0, 2)] == latest[:2]
        assert not (await store.merge("a", stages("s"))).changed
        assert [each.opid for each in await store.latest(0, 10)] == latest, "what changes nothing moves nothing"
        assert await store.latest(2**62, 10) == await store.latest(0, 0) == []
        assert (await known(store, "b")) == newest


async def test_rows_of_one_update_time_are_ordered_by_id(url: str, execute: Callable[[str], object], kind: str) -> None:
    # parity 84
    async with open_store(url) as store:
        assert isinstance(store, MergesMany)
        await store.merge_many([MergeRequest(opid, stages("s")) for opid in ("a", "B", "b", "A")])
        moment = {"sqlite": "1000000000000000"}.get(kind, "'2001-09-09 01:46:40'")
        execute(f"UPDATE timelines SET updated_at = {moment}")  # noqa: S608 - of our own parts
        assert [each.opid for each in await store.latest(0, 10)] == ["b", "a", "B", "A"]
        assert [each.opid for each in await store.latest(0, 2)] == ["b", "a"]


async def test_three_processes_add_stages_and_who_opens_anew_reads_them_all(url: str) -> None:
    # parity 85
    await run_together("add_stages", url, "1", "2", "3")
    async with open_store(url) as store:
        before = await known(store)
    async with open_store(url) as store:
        assert await known(store) == before
        assert before.revision.version == len(before.document.stages) == 15
        stage = before.document.stages["2-3", "id:2"]
        assert (stage.parent_id, stage.actor.name, stage.code, stage.error) == ("parent", "host 2", "E1", "no")
        assert (stage.elapsed_ns, stage.status) == (7, Status.FAILED)
        await store.merge("op", stages("late"))
        assert len((await known(store)).document.stages) == 16
        assert len(await store.latest(0, 10)) == 1


async def test_payload_that_was_reformatted_is_the_same(url: str, execute: Callable[[str], object]) -> None:
    # parity 86
    async with open_store(url) as store:
        for opid in ("op", "other"):
            await store.merge(opid, stages("s"))
        loose = json.dumps(json.loads(encode_document((await known(store)).document)), indent=1)
        execute(f"UPDATE timelines SET payload = '{loose}' WHERE id = 'op'")  # noqa: S608 - of our own parts
        assert not (await store.merge("op", stages("s"))).changed
        assert (await known(store)).revision.version == 1
        assert (await store.merge("op", stages("s", name="changed"))).changed
        assert (await known(store)).document.stages["s", ""].name == "changed"
        assert (await known(store, "other")).revision.version == 1
        with pytest.raises(NotFound):
            await store.read("none")
        with trio.move_on_after(0) as scope:
            await store.read("op")
        assert scope.cancelled_caught


async def test_processes_that_replay_what_all_say_add_only_their_own(url: str) -> None:
    # parity 87
    await run_together("replay", url, "1", "2", "3")
    async with open_store(url) as store:
        document = (await known(store)).document
    assert len(document.stages) == 7
    assert len(json.loads(encode_document(document))["actors"]) == 4
    assert (document.name, document.started_at, document.finished_at) == ("deploy", 1, 9)
    assert document.status is Status.SUCCEEDED


async def test_actors_are_numbered_anew_by_each_write_and_stay_the_same(url: str) -> None:
    # parity 88
    async with open_store(url) as store:
        await store.merge("op", stages("z", actor="second"))
        await store.merge("op", stages("a", actor="first"))
        assert not (await store.merge("op", stages("z", actor="second"))).changed
        assert (await known(store)).revision.version == 2
        assert (await store.merge("op", stages("z", actor="third"))).changed
        document = (await known(store)).document
        assert set(document.stages) == {("z", "id:second"), ("a", "id:first"), ("z", "id:third")}


async def test_managers_of_two_processes_save_one_stage_each_in_the_background(url: str) -> None:
    # parity 89
    await run_together("manage", url, "1", "2")
    async with open_store(url) as store:
        document = (await known(store)).document
    assert {key: stage.status for key, stage in document.stages.items()} == {
        ("s", "id:1"): Status.SUCCEEDED,
        ("s", "id:2"): Status.SUCCEEDED,
    }
