"""
One that merges as fast as it can, in a process of its own, so that nobody shares an interpreter with another.

It is called with its kind, the URL of the store, `read` or `known`, whether it reads before each write, and the ids of
operations that are there, one a worker at the most. It says `ready`; for each line with a number of workers and a
number of merges it does these, and answers with the sample in JSON. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import trio
from loads import Stopwatch, run_in_threads, run_on_trio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from loads import Step

    Opened = AbstractAsyncContextManager[Sequence[Step]]
    OpenedBlocking = AbstractContextManager[Sequence[Callable[[], None]]]


async def _serve_on_trio(opened: Opened) -> None:
    async with opened as steps:
        _say("ready")
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            workers, count = map(int, line.split())
            _say(json.dumps(await run_on_trio(steps[:workers], count)))


def _run_on_trio(opened: Opened) -> None:
    trio.run(_serve_on_trio, opened)


async def _serve_on_asyncio(opened: Opened) -> None:
    async with opened as steps:
        _say("ready")
        while line := sys.stdin.readline():  # nothing else is to be done meanwhile
            workers, count = map(int, line.split())
            tickets, watch = iter(range(count)), Stopwatch()
            async with asyncio.TaskGroup() as group:
                for step in steps[:workers]:
                    group.create_task(watch.repeat(step, tickets))
            _say(json.dumps(watch.sample()))


def _run_on_asyncio(opened: Opened) -> None:
    asyncio.run(_serve_on_asyncio(opened))


def _run_in_threads(opened: OpenedBlocking) -> None:
    with opened as steps:
        _say("ready")
        while line := sys.stdin.readline():
            workers, count = map(int, line.split())
            _say(json.dumps(run_in_threads(steps[:workers], count)))


def _say(line: str) -> None:
    print(line, flush=True)


# By module and name: each imports its driver alone, since one of them changes asyncio for the whole process.
_KINDS = {
    "store": (_run_on_trio, "merge_store", "open_writers"),
    "asyncmy": (_run_on_asyncio, "merge_mysql", "open_asyncmy"),
    "asyncpg": (_run_on_asyncio, "merge_postgres", "open_asyncpg"),
    "psycopg": (_run_in_threads, "merge_postgres", "open_psycopg"),
    "sqlite3": (_run_in_threads, "merge_sqlite", "open_sqlite3"),
    "coredis": (_run_on_asyncio, "merge_redis", "open_coredis"),
}


if __name__ == "__main__":
    _, kind, url, base, *opids = sys.argv
    run, module, name = _KINDS[kind]
    run(getattr(import_module(module), name)(url, opids, reads=base == "read"))
