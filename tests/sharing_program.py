"""
One of several programs that record into one operation as fast as they can, run by the tests in processes of their own.

It says `ready`, waits for a line, and tells in JSON how it went, a line each.
"""

from __future__ import annotations

import json
import sys

import trio

from timeline_trio import BufferFull, Config, open_manager
from timeline_trio.model import Actor
from timeline_trio_sqlite import open_sqlite


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201 - read by the test


async def record_all(path: str, name: str, count: str) -> None:
    """
    Record so many stages, saved by the background alone.
    """
    failures: list[str] = []
    config = Config(actor=Actor(name), on_error=lambda _, error: failures.append(repr(error)))
    waits = 0
    async with open_sqlite(path) as store:
        async with open_manager(store, config=config, drain_timeout=60) as manager:
            say(ready=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            for number in range(int(count)):
                while True:
                    try:
                        manager.begin("op", "work", stage_id=str(number)).end()
                    except BufferFull:
                        waits += 1
                        await trio.sleep(0.02)
                    else:
                        break
        counters = manager.statistics()
        busy = store.statistics().busy_retries
    say(
        changing_merges=counters.changing_merges,
        saved=counters.saved_updates,
        superseded=counters.superseded_updates,
        dropped=counters.dropped_updates,
        waits=waits,
        busy=busy,
        failures=failures,
    )


async def record_for_ever(path: str, name: str, _count: str) -> None:
    """
    Record, flush and tell what is saved, until somebody ends the process.
    """
    async with open_sqlite(path) as store, open_manager(store, config=Config(actor=Actor(name))) as manager:
        say(ready=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        number = 0
        while True:
            for _ in range(20):
                manager.begin("op", "work", stage_id=str(number)).end()
                number += 1
            await manager.flush("op")
            say(flushed=number)


if __name__ == "__main__":
    _, task, path, name, count = sys.argv
    trio.run({"record_all": record_all, "record_for_ever": record_for_ever}[task], path, name, count)
