"""
One that watches operations, in a process of its own, and notes when it sees each stage of theirs.

It is called with the URL of the store, `listen` or `poll`, the load interval in seconds, the number of stages to see,
and the ids of operations that are there. It says `ready`, and once it has seen that many stages, the nanoseconds since
the epoch at which it saw each first, by id in JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import trio

from timeline_trio import Config, open_manager
from timeline_trio.store import NOTHING_KNOWN, Answer, AnswerOrError, Known, Merged, Store, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from timeline_trio import Manager
    from timeline_trio.model import Update

_POLL = 0.005  # seconds


class _Silent:
    """
    A store that tells of no changes.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        return await self._store.merge(opid, update, known)

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        return await self._store.read(opid, known)

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        return await self._store.mget(opids, known)

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        return await self._store.latest(after, limit, known)


async def main(url: str, how: str, interval: str, count: str, *opids: str) -> None:
    """
    Watch until all is seen.
    """
    config = Config(load_interval=float(interval))
    async with open_store(url) as store:
        watched = store if how == "listen" else _Silent(store)
        async with open_manager(watched, config=config) as manager, trio.open_nursery() as nursery:
            watch = _Watch(int(count))
            for opid in opids:
                await nursery.start(watch.see_all, manager, opid)
            while how == "listen" and not manager.statistics().listening:  # noqa: ASYNC110 - nobody is told of it
                await trio.sleep(_POLL)
            print("ready", flush=True)
            await watch.done.wait()
            nursery.cancel_scope.cancel()
    print(json.dumps(watch.seen_at), flush=True)


class _Watch:
    def __init__(self, count: int) -> None:
        self.seen_at: dict[str, int] = {}
        self.done = trio.Event()
        self._count = count

    async def see_all(
        self, manager: Manager, opid: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with manager.watch(opid) as snapshots:
            begun = False
            async for snapshot in snapshots:
                now = time.time_ns()
                for stage in snapshot.stages:
                    self.seen_at.setdefault(stage.id, now)
                if snapshot.stages and not begun:
                    begun = True
                    task_status.started()
                if len(self.seen_at) >= self._count:
                    self.done.set()


if __name__ == "__main__":
    _, url, how, interval, count, *opids = sys.argv
    trio.run(main, url, how, interval, count, *opids)
