"""
The task that listens: a Store that can tells of changes as they are committed, and what is cached is loaded at once.

It only shortens the wait. Whatever it does not hear of, the loader finds at its next interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import trio
from trio.lowlevel import enable_ki_protection

from .._errors import StoreUnavailable
from ._backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from .._cache._cache import Cache
    from .._store._contract import Change, WatchesChanges
    from ._config import Config
    from ._health import Health
    from ._reporter import Reporter

_TRIES: Final = 3  # in a row that may fail before anybody is told
THROTTLE: Final = 0.1  # seconds; an operation that changes all the time is loaded so often, not at each change


@final
class Listener:
    """
    Has operations loaded that others changed.

    Args:
        cache: only what is in it is loaded.
        store: tells of changes.
        config: the manager's options.
        hint_load: has an operation loaded soon.
        health: told how much was heard.
        reporter: told of failures.
        random: spreads the tries of different managers.
    """

    def __init__(
        self,
        cache: Cache,
        store: WatchesChanges,
        config: Config,
        *,
        hint_load: Callable[[str], None],
        health: Health,
        reporter: Reporter,
        random: Random,
    ) -> None:
        self._cache = cache
        self._store = store
        self._timeout = config.export_timeout
        self._hint_load = hint_load
        self._health = health
        self._reporter = reporter
        self._outage = Backoff(config.load_interval, random)
        self._told = False  # of this streak of failures
        self._hinted: set[str] = set()  # since the throttle last let everything through
        self._deferred: set[str] = set()
        self._busy = trio.Event()

    @enable_ki_protection
    async def run(self) -> None:
        """
        Listen until cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._release)
            while True:
                failure = await self._listen()
                self._health.listening = False
                self._outage.failed(trio.current_time())
                # In an outage the loader tells of it, and nothing is amiss once that is over.
                if not self._told and self._outage.failures >= _TRIES and self._health.failing_since is None:
                    self._told = True
                    self._reporter.report("", failure)
                await trio.sleep_until(self._outage.until)

    async def _listen(self) -> Exception:
        """
        Listen until that fails, and return how.
        """
        # One scope around the whole, since a Store may open a nursery of its own within: only entering has a deadline.
        with trio.move_on_after(self._timeout) as entering:
            await trio.lowlevel.checkpoint()  # a store that passes none must not starve the loop
            try:
                async with self._store.watch() as changes:
                    entering.deadline = float("inf")
                    self._outage.succeeded()
                    self._told = False
                    self._health.listening = True
                    async for change in changes:
                        self._hear(change)
            except Exception as failure:  # noqa: BLE001 - whatever a store raises must not end the task
                return failure
            return StoreUnavailable("", "the store has ceased to tell of changes")
        return StoreUnavailable("", f"the store did not begin to tell of changes within {self._timeout} s")

    def _hear(self, change: Change) -> None:
        self._health.changes_heard += 1
        entry = self._cache.peek(change.opid)
        if entry is None:
            return
        known = entry.base.revision if entry.base else None
        if known == change.revision or (known and change.revision.is_older_than(known)):  # our own save, most often
            return
        if change.opid in self._hinted:
            self._deferred.add(change.opid)
            return
        self._hinted.add(change.opid)
        self._hint_load(change.opid)
        self._busy.set()

    @enable_ki_protection
    async def _release(self) -> None:
        while True:
            await self._busy.wait()
            await trio.sleep(THROTTLE)
            self._hinted, self._deferred = self._deferred, set()
            for opid in self._hinted:
                self._hint_load(opid)
            if not self._hinted:
                self._busy = trio.Event()
