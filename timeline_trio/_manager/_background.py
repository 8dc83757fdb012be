"""
Everything behind a manager: the cache, and the tasks that exchange it with the Store, from their start to the drain.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, cast, final

import trio
from trio.lowlevel import enable_ki_protection

from .._cache._cache import Cache
from .._errors import DrainError
from .._record._recorder import make_id_source
from .._store._contract import Found, WatchesChanges
from ._health import Health
from ._listener import Listener
from ._loader import Loader
from ._reader import Fetch, Reader
from ._reporter import Reporter
from ._saver import Saver

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._store._contract import Store
    from ._config import Config
    from ._watch import Snapshots


@final
class Background:
    """
    Owns the tasks of one manager. `open_manager` runs it; the manager talks to its parts.

    Attributes:
        cache: the operations.
        saver: the task that saves.
        loader: the task that loads.
        health: how the Store does.
        reporter: where failures go.
        watched: how many watch each operation.
        ended: set once the tasks have ended; nothing is pending then.
        lost: how many updates of each operation were not saved by then.
        told: how many callers of `shutdown` wait, and will be told of these losses.
        crash: the bug that ended the tasks before their time.
    """

    def __init__(self, store: Store, config: Config) -> None:
        random = Random()  # noqa: S311 - spreads periods, hides nothing
        self._token = trio.lowlevel.current_trio_token()
        self.reporter: Reporter = Reporter(config.on_error)
        self.health: Health = Health(config.clock)
        self.cache: Cache = Cache(
            make_id_source()(),
            max_timelines=config.max_timelines,
            max_pending_timelines=config.max_pending_timelines,
            max_pending_updates=config.max_pending_updates,
            report=self.reporter.report,
        )
        self.cache.hint_save = self.hint_save
        self.watched: Counter[str] = Counter()
        self._streams: set[Snapshots] = set()
        self._reader = Reader(self.cache, store, config.export_timeout, self.health)
        self.loader: Loader = Loader(
            self.cache,
            store,
            config,
            health=self.health,
            reporter=self.reporter,
            watched=lambda: list(self.watched),
            random=random,
        )
        self.saver: Saver = Saver(
            self.cache,
            store,
            config,
            health=self.health,
            reporter=self.reporter,
            offer_load=self.loader.offer,
            random=random,
        )
        self._listener: Listener | None = None
        if isinstance(store, WatchesChanges):
            self._listener = Listener(
                self.cache,
                store,
                config,
                hint_load=self.loader.hint,
                health=self.health,
                reporter=self.reporter,
                random=random,
            )
        self._started = trio.Event()
        self._nursery: trio.Nursery | None = None
        self.ended: trio.Event = trio.Event()
        self.lost: dict[str, int] = {}
        self.told: int = 0
        self.crash: BaseException | None = None

    @enable_ki_protection
    async def run(self, crashed: Callable[[], None]) -> None:  # noqa: ASYNC910 - a nursery is a checkpoint
        """
        Save and load until drained; call `crashed` if a bug ends it before.

        It is shielded, since it must outlive the body that uses it: a flush in the body's `finally` must work while
        everything around is cancelled. It is bounded all the same, by the body and then by the drain's deadline.
        """
        try:
            with trio.CancelScope(shield=True) as scope:  # noqa: ASYNC912 - as above
                async with trio.open_nursery(strict_exception_groups=True) as nursery:
                    self._nursery = nursery
                    self._started.set()
                    nursery.start_soon(self.loader.run)
                    if self._listener is not None:
                        nursery.start_soon(self._listener.run)
                    try:
                        await self.saver.run()
                    finally:
                        self._nursery = None  # it takes no more reads; who asks now asks the Store directly
                    scope.cancel()
        except BaseExceptionGroup as group:  # outside of the scope, which has taken the loader's Cancelled
            self.crash = without_cancelled(group)
            crashed()
        finally:
            self._end()

    def _end(self) -> None:
        self.cache.close()
        self.lost = self.cache.release()
        self._reader.abandon()
        for stream in self._streams:
            stream.close()
        self.reporter.close(self.cache.counters.refused, self.cache.last_refusal)
        self.ended.set()

    @enable_ki_protection
    def begin_drain(self, deadline: float) -> None:
        """
        Accept nothing more, save what is left and end, by `deadline` of the Trio clock; the earliest one counts.
        """
        self.cache.close()
        self.saver.drain(deadline)

    def cut_drain(self) -> None:
        """
        Give up what is not saved by now.
        """
        self.saver.drain(trio.current_time())

    def report_losses(self) -> None:
        """
        Tell `on_error` what was lost, where there is no caller to raise it to.
        """
        if self.lost and not self.told:
            self.reporter.report("", DrainError(self.lost))

    @enable_ki_protection
    def hint_save(self, opid: str) -> None:
        """
        Have an operation saved soon. From any thread, and from signal handlers, half-way through a channel's work.
        """
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.saver.hint, opid, idempotent=True)

    async def fetch(self, opid: str, *, fresh: bool) -> Exception | None:
        """
        Ask the Store for one operation, together with others who do, and return how that failed.
        """
        await self._started.wait()
        if self._nursery is None:
            fetch = Fetch()
            await self._reader.ask(opid, fetch)
        else:
            fetch = self._reader.join(opid, self._nursery, fresh=fresh)
            await fetch.done.wait()
        entry, known = self.cache.peek(opid), fetch.entry.base if fetch.entry else None
        if known is not None and (entry is None or entry.base is None):  # evicted before this task went on
            answer = Found(opid=opid, revision=known.revision, document=known.document)
            self.cache.learn(answer, self.cache.next_tick(), "make")
        if entry is not None and fetch.error is not None:
            entry.missed_at = trio.current_time()
        return fetch.error

    def add_stream(self, opid: str, stream: Snapshots) -> None:
        """
        Load an operation every interval from now on, and close the stream at the end.
        """
        self._streams.add(stream)
        self.watched[opid] += 1
        self.loader.offer(opid)
        if self.ended.is_set():
            stream.close()

    def remove_stream(self, opid: str, stream: Snapshots) -> None:
        """
        Undo `add_stream`.
        """
        self._streams.discard(stream)
        self.watched[opid] -= 1
        if not self.watched[opid]:
            del self.watched[opid]


def without_cancelled(error: BaseException) -> BaseException | None:
    """
    Return what is left of an error without the cancellations in it; a group of one becomes that one.
    """
    if isinstance(error, trio.Cancelled):
        return None
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    leaves = [leaf for each in group.exceptions if (leaf := without_cancelled(each)) is not None]
    return leaves[0] if len(leaves) == 1 else group.derive(leaves) if leaves else None
