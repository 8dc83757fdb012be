"""
One instance of a program that records into a PostgreSQL database: run by the tests, several at once.

It says `ready`, waits for a line before each round, and says what it did.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import trio

from timeline_trio import Actor, Config, open_manager
from timeline_trio.model import Stage, Update
from timeline_trio_postgres import open_postgres

if TYPE_CHECKING:
    from timeline_trio_postgres import PostgresStore


async def merge_rounds(store: PostgresStore, name: str, rounds: int) -> None:
    """
    Merge a stage of our own into one new operation a round, all instances at the same moment.
    """
    for number in range(rounds):
        sys.stdin.readline()
        stage = Stage(id="s", name="work", started_at=0, actor=Actor(id=name))
        assert (await store.merge(f"op-{number}", Update(stages=(stage,)))).changed
        print(store.merges, store.attempts, flush=True)  # noqa: T201 - read by the test


async def manage(store: PostgresStore, name: str, _rounds: int) -> None:
    """
    Do the same stage as the other instance, as another actor, and let the background save it.
    """
    failures: list[Exception] = []
    config = Config(
        actor=Actor(id=name),
        flush_interval=0.05,
        load_interval=0.05,
        on_error=lambda _opid, error: failures.append(error),
    )
    async with open_manager(store, config=config) as manager:
        sys.stdin.readline()
        with manager.stage("op", "install", stage_id="install"):
            await trio.sleep(0.1)
        while manager.statistics().pending_updates:  # noqa: ASYNC110 - a flush would not be the background's save
            await trio.sleep(0.01)
    print(len(failures), flush=True)  # noqa: T201 - read by the test


async def main(*arguments: str) -> None:
    url, task, name, rounds = arguments
    async with open_postgres(url) as store:
        print("ready", flush=True)  # noqa: T201 - read by the test
        await TASKS[task](store, name, int(rounds))


TASKS = {task.__name__: task for task in (merge_rounds, manage)}

if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
