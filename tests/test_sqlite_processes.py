"""
Tests of one SQLite file under several real processes.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from timeline_trio.model import Update
from timeline_trio.store import Found
from timeline_trio_sqlite import open_sqlite

from .sqlite_instance import merge_for_ever, merge_own_stages, replay_shared_stage, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from timeline_trio.model import Document
    from timeline_trio.store import Revision
    from timeline_trio_sqlite import SQLiteStore

INSTANCE = Path(__file__).with_name("sqlite_instance.py")


@contextmanager
def instances(
    how_many: int, path: Path, task: Callable[..., object], *, journal: str = "wal", count: int = 0, operations: int = 1
) -> Iterator[list[subprocess.Popen[str]]]:
    """
    Start processes that wait for each other before they begin, and end those that are left over.
    """
    arguments = [journal, task.__name__]
    running = [
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, INSTANCE, path, *arguments, f"instance-{number}", str(count), str(operations)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(how_many)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def run_instances(
    how_many: int, path: Path, task: Callable[..., object], *, journal: str = "wal", count: int = 0, operations: int = 1
) -> None:
    with instances(how_many, path, task, journal=journal, count=count, operations=operations) as running:
        for process in running:
            _, complaints = process.communicate(timeout=120)
            assert (process.returncode, complaints) == (0, "")


async def read(store: SQLiteStore, opid: str) -> tuple[Revision, Document]:
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return answer.revision, answer.document


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_eight_processes_of_two_hundred_merges_lose_nothing(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "ops.db"
    run_instances(8, path, merge_own_stages, journal=journal, count=200, operations=20)
    async with open_sqlite(path, create=False) as store:
        for number in range(20):
            revision, document = await read(store, f"op-{number}")
            actors = {actor for _, actor in document.stages}
            assert len(document.stages) == 8 * 10
            assert len(actors) == 8
            assert revision.version == 8 * 10


async def test_sixteen_processes_into_one_operation_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    run_instances(16, path, merge_own_stages, count=20, operations=20)
    async with open_sqlite(path, create=False) as store:
        for number in range(20):
            revision, document = await read(store, f"op-{number}")
            assert set(document.stages) == {(str(number), f"id:instance-{n}") for n in range(16)}
            assert revision.version == 16


async def test_three_processes_replay_a_shared_stage_beside_their_own(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    run_instances(3, path, replay_shared_stage)
    async with open_sqlite(path, create=False) as store:
        revision, document = await read(store, "op")
        assert len(document.stages) == 7
        assert document.stages["shared", "id:shared"] == stage("shared", "shared")
        assert document.stages["a", "id:instance-2"] == stage("a", "instance-2")
        assert (document.name, document.started_at, document.finished_at) == ("deploy", 1, 9)
        assert revision.version == 7
    with closing(sqlite3.connect(path)) as connection:
        ((payload,),) = connection.execute("SELECT payload FROM timelines")
    assert payload.count('"name":"host ') == 4


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_killed_processes_leave_all_that_they_were_told_is_saved(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "ops.db"
    saved: dict[str, int] = {}
    with instances(2, path, merge_for_ever, journal=journal) as running:
        for number, process in enumerate(running):
            assert process.stdout is not None
            while int(process.stdout.readline()) < 20:
                pass
            process.kill()
            saved[f"id:instance-{number}"] = int((process.stdout.read().split() or ["20"])[-1])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    async with open_sqlite(path) as store:
        _, document = await read(store, "op")
        for actor, last in saved.items():
            assert {(str(number), actor) for number in range(last + 1)} <= document.stages.keys()
        assert (await store.merge("op", document_update(document))).changed is False


def document_update(document: Document) -> Update:
    return Update(stages=tuple(document.stages.values()))
