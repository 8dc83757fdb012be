"""
A crowd of processes that record into one operation at the same moment, round after round: run by the tests.

It forks itself, so that the interpreter starts only once, and prints in JSON what each process counted, a line each.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import TYPE_CHECKING, Protocol, cast

import trio

from timeline_trio import Actor, Config, open_manager, open_store

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier


class Counted(Protocol):
    def statistics(self) -> Statistics: ...


class Statistics(Protocol):
    merges: int
    attempts: int


async def record(url: str, name: str, rounds: int, moment: Barrier) -> dict[str, object]:
    failures: list[str] = []
    config = Config(
        actor=Actor(name),
        flush_interval=3_600.0,
        load_interval=3_600.0,
        export_timeout=60.0,
        on_error=lambda _, error: failures.append(repr(error)),
    )
    async with open_store(url) as store:
        async with open_manager(store, config=config) as manager:
            for number in range(rounds):
                await trio.to_thread.run_sync(moment.wait)
                manager.begin(f"op-{number}", "work", stage_id="s").end()
                await manager.flush(f"op-{number}")
        statistics = cast("Counted", store).statistics()
    return {"merges": statistics.merges, "attempts": statistics.attempts, "failures": failures}


def main(url: str, instances: int, rounds: int) -> None:
    fork = multiprocessing.get_context("fork")
    moment, told = fork.Barrier(instances), fork.SimpleQueue()

    def run(name: str) -> None:
        try:
            told.put(trio.run(record, url, name, rounds, moment))
        except BaseException as error:
            moment.abort()
            told.put({"merges": 0, "attempts": 0, "failures": [repr(error)]})
            raise

    crowd = [fork.Process(target=run, args=(str(number),)) for number in range(instances)]
    for process in crowd:
        process.start()
    for _ in crowd:
        print(json.dumps(told.get()), flush=True)  # noqa: T201 - read by the test
    for process in crowd:
        process.join()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
