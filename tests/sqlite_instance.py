"""
One instance of a program that records into an SQLite file: run by the tests, several at once.

It says `ready`, waits for a line, and then does what its arguments say.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import trio

from timeline_trio.model import Actor, Finish, Stage, Start, Status, Update
from timeline_trio_sqlite import open_sqlite

if TYPE_CHECKING:
    from timeline_trio_sqlite import SQLiteStore


def stage(stage_id: str, actor: str, *, at: int = 0) -> Stage:
    return Stage(
        id=stage_id,
        name="work",
        started_at=at,
        finished_at=at + 1,
        status=Status.FAILED,
        parent_id="parent",
        actor=Actor(id=actor, name=f"host {actor}"),
        error="no",
        code="E1",
        elapsed_ns=7,
    )


async def merge_own_stages(store: SQLiteStore, actor: str, count: int, operations: int) -> None:
    """
    Merge that many stages, spread over that many operations, and some of them twice.
    """
    for number in range(count):
        update = Update(stages=(stage(str(number), actor),))
        opid = f"op-{number % operations}"
        assert (await store.merge(opid, update)).changed
        if number % 8 == 0:
            assert not (await store.merge(opid, update)).changed


async def replay_shared_stage(store: SQLiteStore, actor: str, _count: int, _operations: int) -> None:
    """
    Record a whole shared stage, as everybody does, then two of our own, and a start and a finish.
    """
    shared = stage("shared", "shared")
    start = Start(name="deploy", at=1, live=True)
    finish = Finish(at=9, status=Status.SUCCEEDED)
    for _ in range(3):
        await store.merge("op", Update(start=start, finish=finish, stages=(shared,)))
        await store.merge("op", Update(stages=(stage("a", actor), shared)))
        await store.merge("op", Update(stages=(stage("b", actor),)))


async def merge_for_ever(store: SQLiteStore, actor: str, _count: int, _operations: int) -> None:
    """
    Merge one new stage after the other, and say which one is saved, until somebody ends the process.
    """
    number = 0
    while True:
        await store.merge("op", Update(stages=(stage(str(number), actor),)))
        print(number, flush=True)  # noqa: T201 - read by the test
        number += 1


TASKS = {task.__name__: task for task in (merge_own_stages, replay_shared_stage, merge_for_ever)}


async def main(*arguments: str) -> None:
    path, journal, task, actor, count, operations = arguments
    async with open_sqlite(path, journal=cast("Any", journal)) as store:
        print("ready", flush=True)  # noqa: T201 - read by the test
        sys.stdin.readline()
        await TASKS[task](store, actor, int(count), int(operations))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
