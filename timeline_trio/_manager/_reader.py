"""
Reads of single operations, shared by all who ask at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio
from trio.lowlevel import enable_ki_protection

from .._errors import NotFound, StoreUnavailable
from ._answers import check_answer

if TYPE_CHECKING:
    from .._cache._cache import Cache
    from .._cache._entry import Entry
    from .._store._contract import Store
    from ._health import Health


@final
class Fetch:
    """
    One read of one operation.

    Attributes:
        done: set when the Store has answered or failed.
        entry: the operation's entry with what the Store said, if it said something.
        error: `NotFound`, or how the Store failed.
        started: whether the Store has been asked; who asks for a fresh read now needs a later one.
        following: the read that starts when this one is done.
    """

    def __init__(self) -> None:
        self.done = trio.Event()
        self.entry: Entry | None = None
        self.error: Exception | None = None
        self.started = False
        self.following: Fetch | None = None


@final
class Reader:
    """
    Asks the Store for single operations: at most one read of each at a time, and one more in line.

    Args:
        cache: where documents go.
        store: where they come from.
        timeout: the longest that one read may take, in seconds.
        health: told how the Store does.
    """

    def __init__(self, cache: Cache, store: Store, timeout: float, health: Health) -> None:
        self._cache = cache
        self._store = store
        self._timeout = timeout
        self._health = health
        self._running: dict[str, Fetch] = {}

    def join(self, opid: str, nursery: trio.Nursery, *, fresh: bool) -> Fetch:
        """
        Return the read to wait for: one under way, or with `fresh` one that starts after this call.
        """
        fetch = self._running.get(opid)
        if fetch is None:
            fetch = self._running[opid] = Fetch()
            nursery.start_soon(self._run, opid, fetch)
        elif fresh and fetch.started:
            if fetch.following is None:
                fetch.following = Fetch()
            return fetch.following
        return fetch

    def abandon(self) -> None:
        """
        Let all who wait know that the Store will not be asked any more.
        """
        for opid, fetch in self._running.items():
            for each in (fetch, fetch.following):
                if each is not None and not each.done.is_set():
                    each.error = StoreUnavailable(opid, "the manager closed before the store answered")
                    each.done.set()
        self._running.clear()

    @enable_ki_protection
    async def _run(self, opid: str, fetch: Fetch) -> None:  # noqa: ASYNC910 - `ask` is called at least once
        following: Fetch | None = fetch
        while following is not None:
            self._running[opid] = fetch = following
            await self.ask(opid, fetch)
            following = fetch.following
        del self._running[opid]

    async def ask(self, opid: str, fetch: Fetch) -> None:
        """
        Do one read.
        """
        fetch.started = True
        began = self._cache.next_tick()
        known = self._cache.known([opid]).get(opid)
        fetch.error = StoreUnavailable(opid, f"the store did not answer within export_timeout={self._timeout} s")
        with trio.move_on_after(self._timeout):
            await trio.lowlevel.checkpoint()  # a store that passes none must not starve the loop
            try:
                answer = check_answer(opid, await self._store.read(opid, known))
                fetch.entry = self._cache.learn(answer, began, "make")
                if fetch.entry is None:  # what was known left the cache meanwhile, so "unchanged" says nothing
                    answer = check_answer(opid, await self._store.read(opid))
                    fetch.entry = self._cache.learn(answer, began, "make")
            except Exception as error:  # noqa: BLE001 - it is raised again where the read was asked for
                fetch.error = error
            else:
                fetch.error = None
        if fetch.error is None or isinstance(fetch.error, NotFound):
            self._health.loaded()
        else:
            self._health.load_failed()
        fetch.done.set()
