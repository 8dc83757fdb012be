"""
A program that keeps a manager in one of several ways, run by the tests in a process of its own.

It tells how it went in JSON, a line each, and leaves what it saved in an SQLite file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING

import trio

from timeline_trio import Config, Manager, WrongProcess, new, open_manager
from timeline_trio.store import NOTHING_KNOWN, MemoryStore
from timeline_trio_sqlite import open_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from timeline_trio.model import Update
    from timeline_trio.store import Answer, AnswerOrError, Known, Merged, Store


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201 - read by the test


class Slow:
    """
    A store that says when a save begins, and takes a while for it.
    """

    def __init__(self, inner: Store, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        say(saving=opid)
        await trio.sleep(self._seconds)
        return await self._inner.merge(opid, update, known)

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        return await self._inner.read(opid, known)

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        return await self._inner.mget(opids, known)

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        return await self._inner.latest(after, limit, known)


async def wait_to_be_interrupted(path: str, saving: str, drain_timeout: str, body: str) -> None:
    """
    Record two operations and sleep, or return at once; with saves that take so many seconds.
    """
    manager: Manager | None = None
    try:
        async with open_sqlite(path) as store:
            slow = Slow(store, float(saving))
            config = Config(flush_interval=10**6, load_interval=10**6, on_error=lambda _, error: say(failed=str(error)))
            async with open_manager(slow, config=config, drain_timeout=float(drain_timeout)) as manager:
                manager.begin("a", "work")
                manager.begin("b", "work")
                say(ready=True)
                if body == "sleeps":
                    await trio.sleep_forever()
                elif body == "sleeps in a nursery":
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(trio.sleep_forever)
                        await trio.sleep_forever()
    except (KeyboardInterrupt, BaseExceptionGroup):  # a nursery in the body makes a group of it
        assert manager is not None
        counters = manager.statistics()
        say(interrupted=True, saved=counters.saved_updates, dropped=counters.dropped_updates)
        raise SystemExit(3) from None


async def fork(path: str) -> None:
    """
    Fork with three operations pending. The child tries the inherited manager, and a new one of its own.
    """
    async with open_sqlite(path) as store:
        async with open_manager(store, config=Config(flush_interval=10**6)) as manager:
            handle = manager.begin("a", "work")
            manager.begin("b", "work")
            manager.begin("c", "work")
            child = os.fork()
            if not child:
                _be_the_child(manager, [handle.end, lambda: handle.set_attributes({"a": 1})], path)
            _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - the child does not take long
            say(child=os.waitstatus_to_exitcode(status))
        counters = manager.statistics()
        say(saved=counters.saved_updates, changing=counters.changing_merges)


def _be_the_child(manager: Manager, calls: list[Callable[[], object]], path: str) -> None:
    calls += [
        lambda: manager.begin("a", "stray"),
        lambda: manager.start("a", "stray"),
        lambda: manager.finish("a"),
        lambda: manager.evict("a"),
    ]
    refused = 0
    for call in calls:
        try:
            call()
        except WrongProcess:
            refused += 1
    say(refused=refused, of=len(calls))

    async def main() -> None:
        async with open_sqlite(path) as store, open_manager(store) as own:
            own.begin("child", "work")

    # Trio's run was copied with everything else, so the new one needs a thread of its own.
    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    thread.join()
    os._exit(0)


async def fork_and_go_on(path: str) -> None:
    """
    Fork with an operation pending, and let the child leave the manager's block as if it were its own.
    """
    child = -1
    try:
        async with open_sqlite(path) as store, open_manager(store, config=Config(flush_interval=10**6)) as manager:
            manager.begin("a", "work")
            child = os.fork()
            if child:
                os.waitpid(child, 0)  # noqa: ASYNC222 - the child does not take long
    except BaseException as error:  # noqa: ASYNC103, BLE001 - told to the test
        say(child=not child, error=type(error).__name__)
    if not child:
        os._exit(0)
    say(parent=True)


def forget_to_flush(_path: str) -> None:
    """
    End without saving what a handle has recorded.
    """
    handle = new("op", store=MemoryStore())
    for number in range(3):
        handle.begin("work", stage_id=str(number))


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    if task == "forget_to_flush":
        forget_to_flush(*arguments)
    else:
        trio.run(globals()[task], *arguments)
