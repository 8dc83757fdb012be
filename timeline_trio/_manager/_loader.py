"""
The task that loads: what other processes saved comes into the cache by it.

It wakes for an operation that somebody looks at, and for the interval. The operations asked for are read together;
at each interval it looks for what changed most recently. It only ever warms the cache: nothing is promoted, nothing
is evicted for it, and nothing it brings is put in line for saving.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio
from trio.lowlevel import enable_ki_protection

from .._errors import StoreUnavailable
from .._store._contract import Unreadable
from ._answers import check_answers
from ._backoff import Period
from ._saver import PAUSE, take_hints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from random import Random

    from .._cache._cache import Cache
    from .._store._contract import AnswerOrError, Known, Store
    from ._config import Config
    from ._health import Health
    from ._reporter import Reporter

    Ask = Callable[[Mapping[str, Known]], Awaitable[Sequence[AnswerOrError]]]

_BATCH: Final = ""  # the opid under which a read of several operations is reported


@final
class Loader:
    """
    Loads what others changed.

    Args:
        cache: where documents go.
        store: where they come from.
        config: the manager's options.
        health: told how the Store does.
        reporter: told of failures.
        watched: returns the operations to ask for at each interval.
        random: spreads the periods of different managers.
    """

    def __init__(
        self,
        cache: Cache,
        store: Store,
        config: Config,
        *,
        health: Health,
        reporter: Reporter,
        watched: Callable[[], Collection[str]],
        random: Random,
    ) -> None:
        self._cache = cache
        self._store = store
        self._config = config
        self._health = health
        self._reporter = reporter
        self._watched = watched
        self._pause = min(PAUSE, config.load_interval)
        self._send, self._receive = trio.open_memory_channel[str](4 * config.batch_limit)
        self._hinted: dict[str, None] = {}
        self._period = Period(config.load_interval, random)
        self._after = 0  # the window of recent changes begins here, in nanoseconds since the epoch
        self._failing: set[str] = set()  # kinds of calls, and operations, whose streak of failures was reported

    def offer(self, opid: str) -> None:
        """
        Ask for an operation to be loaded soon, at most once in an interval. On the Trio thread.
        """
        entry = self._cache.peek(opid)
        now = trio.current_time()
        if entry is None or now < entry.offered_at + self._config.load_interval:
            return
        entry.offered_at = now
        self.hint(opid)

    def hint(self, opid: str) -> None:
        """
        Have an operation loaded as soon as possible. On the Trio thread.
        """
        try:
            self._send.send_nowait(opid)
        except trio.WouldBlock:
            self._health.hints_dropped += 1
        except trio.BrokenResourceError:  # the task has ended
            pass

    @enable_ki_protection
    async def run(self) -> None:
        """
        Load until cancelled.
        """
        self._period.spread(trio.current_time())
        with self._receive:
            while True:
                await self._wait()
                began = trio.current_time()
                due = began >= self._period.due_at
                if due:
                    self._hinted |= dict.fromkeys(self._watched())
                batch = list(self._hinted)[: self._config.batch_limit]
                for opid in batch:
                    del self._hinted[opid]
                if batch:
                    await self._load("mget", partial(self._store.mget, batch), batch)
                if due:
                    self._period.begin(trio.current_time())
                    await self._load_latest()
                self._period.note_stall(began, trio.current_time())
                await trio.sleep(self._pause)

    async def _wait(self) -> None:
        wake_at = trio.current_time() if self._hinted else self._period.due_at
        with trio.move_on_at(wake_at):
            self._hinted[await self._receive.receive()] = None
        self._hinted |= take_hints(self._receive)

    async def _load_latest(self) -> None:
        # The next window begins where our own clock stood before this one: a row stamped by a clock ahead of ours
        # cannot push it into the future. It reaches back by an interval, for rows that are committed late.
        now = self._config.clock()
        limit = self._config.batch_limit
        if await self._load("latest", partial(self._store.latest, self._after, limit), None):
            self._after = now - int(self._config.load_interval * 1e9)

    async def _load(self, kind: str, ask: Ask, opids: Sequence[str] | None) -> bool:
        """
        Ask for several operations and take the answers over; tell whether the Store answered.
        """
        began = self._cache.next_tick()
        known = self._cache.known_all() if opids is None else self._cache.known(opids)
        error: Exception = StoreUnavailable(
            _BATCH, f"the store did not answer within export_timeout={self._config.export_timeout} s"
        )
        with trio.move_on_after(self._config.export_timeout):
            await trio.lowlevel.checkpoint()  # a store that passes none must not starve the loop
            try:
                self._take(check_answers(await ask(known)), began)
            except Exception as failure:  # noqa: BLE001 - whatever a store raises must not end the task
                error = failure
            else:
                self._failing.discard(kind)
                self._health.loaded()
                return True
        self._health.load_failed()
        if kind not in self._failing:
            self._failing.add(kind)
            self._reporter.report(_BATCH, error)
        return False

    def _take(self, answers: Sequence[AnswerOrError], began: int) -> None:
        for answer in answers:
            row = f"row {answer.opid}"
            if not isinstance(answer, Unreadable):
                self._failing.discard(row)
                self._cache.learn(answer, began, "free")
            elif row not in self._failing:
                self._failing.add(row)
                self._reporter.report(answer.opid, answer.error)
