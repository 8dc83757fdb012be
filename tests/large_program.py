"""
One of several programs that record into one large operation: run by the tests in processes of their own.

It says `ready`, waits for a line, and then tells how many of its stages are saved, a line each time.
"""

from __future__ import annotations

import sys

import trio

from timeline_trio import Actor, Config, open_manager, open_store
from timeline_trio.model import Stage, Update, encode_attributes
from timeline_trio.store import Known, Store

A_WHILE = encode_attributes({"log": "x" * 10_000})  # is what it takes to join many of these


async def record(store: Store, name: str, count: int) -> None:
    """
    Record so many stages, and flush after every few.
    """
    failures: list[str] = []
    config = Config(
        actor=Actor(name),
        flush_interval=3_600.0,
        load_interval=3_600.0,
        export_timeout=60.0,
        on_error=lambda _, error: failures.append(repr(error)),
    )
    async with open_manager(store, config=config) as manager:
        await start()
        for number in range(count):
            manager.begin("op", "work", stage_id=str(number)).end()
            if number % 10 == 9:
                await manager.flush("op")
                say(number + 1)
    assert not failures, failures


async def save(store: Store, name: str, _count: int) -> None:
    """
    Save one stage after the other, without a pause, until somebody ends the process.
    """
    known: Known | None = None
    await start()
    number = 0
    while True:
        stage = Stage(id=str(number), name="work", started_at=0, actor=Actor(name), attributes_json=A_WHILE)
        merged = await store.merge("op", Update(stages=(stage,)), known)
        assert merged.revision is not None
        assert merged.document is not None
        known = Known(merged.revision, merged.document)
        number += 1
        say(number)


async def start() -> None:
    say("ready")
    await trio.to_thread.run_sync(sys.stdin.readline)


def say(what: object) -> None:
    print(what, flush=True)  # noqa: T201 - read by the test


async def main(*arguments: str) -> None:
    url, task, name, count = arguments
    async with open_store(url) as store:
        await {"record": record, "save": save}[task](store, name, int(count))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
