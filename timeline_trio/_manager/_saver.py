"""
The task that saves: it brings frozen batches of facts to the Store, and tells those who wait for it.

It wakes for a hinted operation or for the interval, and works in rounds of at most `batch_limit` operations. Hinted
and periodic ones share a round, so that neither starves the other; a short pause between rounds keeps any stream of
hints from spinning, or from hammering the database.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

import trio

from .._errors import ManagerClosed, StoreRejected, StoreUnavailable
from .._store._contract import Merged, MergesMany
from ._answers import check_joint_answers, check_merged
from ._backoff import Backoff, Period, Troubles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from .._cache._cache import Cache
    from .._cache._entry import Batch, Entry
    from .._store._contract import MergeRequest, Store
    from ._config import Config
    from ._health import Health
    from ._reporter import Reporter

    Frozen = tuple[Entry, Batch, MergeRequest]

PAUSE: Final = 0.01  # seconds between rounds
DRAIN_RETRY: Final = 0.1  # seconds between the tries of an unavailable Store while draining
_TIMEOUTS_IN_A_ROW: Final = 2


def take_hints(channel: trio.MemoryReceiveChannel[str]) -> dict[str, None]:
    """
    Take all that is in a channel, without repeats.
    """
    hints: dict[str, None] = {}
    with suppress(trio.WouldBlock):
        while True:
            hints[channel.receive_nowait()] = None
    return hints


@final
class FlushWaiter:
    """
    One caller of `flush`, who waits for batches up to a number.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.done: trio.Event = trio.Event()
        self.error: Exception | None = None

    def release(self, error: Exception | None) -> None:
        """
        Let the caller go on.
        """
        self.error = error
        self.done.set()


@final
class Saver:
    """
    Saves what the cache holds.

    Args:
        cache: where the facts are.
        store: where they go.
        config: the manager's options.
        health: told how the Store does.
        reporter: told of failures and losses.
        offer_load: called with operations of which a save showed that others changed them.
        random: spreads periods and retries of different managers.
    """

    def __init__(
        self,
        cache: Cache,
        store: Store,
        config: Config,
        *,
        health: Health,
        reporter: Reporter,
        offer_load: Callable[[str], None],
        random: Random,
    ) -> None:
        self._cache = cache
        self._store = store
        self._config = config
        self._health = health
        self._reporter = reporter
        self._offer_load = offer_load
        self._many = store if isinstance(store, MergesMany) else None
        self._pause = min(PAUSE, config.flush_interval)
        self._send, self._receive = trio.open_memory_channel[str](4 * config.batch_limit)
        self._hinted: dict[str, None] = {}
        self._due: dict[str, None] = {}
        self._waiters: dict[str, list[FlushWaiter]] = {}
        self._outage = Backoff(config.flush_interval, random)
        self._troubles = Troubles(config.flush_interval, random)
        self._period = Period(config.flush_interval, random)
        self._draining = False
        self._ended = False
        self._scope = trio.CancelScope()  # bounds the drain; around the whole task
        self._sleep = trio.CancelScope()  # around each wait for work

    def hint(self, opid: str) -> None:
        """
        Ask for an operation to be saved soon. On the Trio thread.
        """
        try:
            self._send.send_nowait(opid)
        except trio.WouldBlock:
            self._health.hints_dropped += 1
        except trio.BrokenResourceError:  # the task has ended, and has counted what was left
            pass

    def add_waiter(self, opid: str) -> FlushWaiter | None:
        """
        Return a waiter for all facts of the operation that are accepted by now; None if all are saved.

        Raises:
            ManagerClosed: nothing will be saved any more.
        """
        entry = self._cache.peek(opid)
        if entry is None or not (entry.has_pending or entry.in_flight):
            return None
        if self._ended:
            raise ManagerClosed
        waiter = FlushWaiter(entry.batches + entry.has_pending)
        self._waiters.setdefault(opid, []).append(waiter)
        self._sleep.cancel()
        return waiter

    def remove_waiter(self, opid: str, waiter: FlushWaiter) -> None:
        """
        Forget one who does not wait any more. The save goes on.
        """
        waiters = self._waiters.get(opid, [])
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            self._waiters.pop(opid, None)

    def drain(self, deadline: float) -> None:
        """
        Make the task save all there is and end, at `deadline` of the Trio clock at the latest; the earliest one counts.
        """
        self._draining = True
        self._scope.deadline = min(self._scope.deadline, deadline)
        self._sleep.cancel()

    async def run(self) -> None:  # noqa: ASYNC910 - a checkpoint is the first thing in the scope
        """
        Save until drained.
        """
        self._period.spread(trio.current_time())
        try:
            with self._scope:  # noqa: ASYNC912 - as above
                await trio.lowlevel.checkpoint()
                while not self._draining:
                    await self._wait()
                    began = trio.current_time()
                    await self._save_round(self._choose())
                    self._period.note_stall(began, trio.current_time())
                    await trio.sleep(self._pause)
                await self._save_rest()
        finally:
            self._ended = True
            self._receive.close()
            for opid in list(self._waiters):
                self._release_waiters(opid, ManagerClosed())

    async def _wait(self) -> None:  # noqa: ASYNC910 - a drain does not wait
        """
        Wait for a hint, the period, or a flush that may go ahead.
        """
        wake_at = max(self._period.due_at, self._outage.until)
        wake_at = min([wake_at, *(self._override_at(opid) for opid in self._waiters if self._cache.is_dirty(opid))])
        if self._hinted or self._due:  # left over from the last round
            wake_at = trio.current_time()
        with trio.CancelScope(deadline=wake_at) as self._sleep:  # noqa: ASYNC912 - as above
            if not self._draining:
                self._hinted[await self._receive.receive()] = None
        self._hinted |= take_hints(self._receive)
        if trio.current_time() >= self._period.due_at:
            self._begin_period()

    def _begin_period(self) -> None:
        self._due = dict.fromkeys(self._cache.dirty_opids())  # which includes what is left of the last period
        self._period.begin(trio.current_time())
        self._reporter.note_refusals(self._cache.counters.refused, self._cache.last_refusal)

    def _choose(self) -> list[str]:
        """
        Pick the operations of the next round: one place at least for the period, if it is due.
        """
        hinted = self._ready({**dict.fromkeys(self._waiters), **self._hinted})
        due = self._ready(self._due)
        # The one that has waited longest has its place, however often it failed and whoever has not.
        places = dict.fromkeys([*due[:1], *self._untroubled_first(hinted), *self._untroubled_first(due)])
        chosen = list(places)[: self._config.batch_limit]
        # What did not fit is left to the next round; what may not be tried yet, to the next period.
        self._hinted = {opid: None for opid in hinted if opid not in chosen}
        self._due = {opid: None for opid in due if opid not in chosen}
        return self._untroubled_first(chosen)

    def _untroubled_first(self, opids: Iterable[str]) -> list[str]:
        """
        Sort operations by their last failure, so that none that hangs is tried again before the healthy ones were.
        """
        return sorted(opids, key=self._troubles.tried_at)

    def _ready(self, opids: Iterable[str]) -> list[str]:
        """
        Return those with unsaved facts that may be tried, in the order given.
        """
        now = trio.current_time()
        return [
            opid
            for opid in opids
            if self._cache.is_dirty(opid)
            and now >= (self._override_at(opid) if opid in self._waiters else self._ready_at(opid))
        ]

    def _ready_at(self, opid: str) -> float:
        return max(self._outage.until, self._troubles.ready_at(opid))

    def _override_at(self, opid: str) -> float:
        """
        Return when a waiting flush may override the backoff: an interval after the last try.
        """
        tried_at = max(self._outage.tried_at, self._troubles.tried_at(opid))
        return min(self._ready_at(opid), tried_at + self._config.flush_interval)

    async def _save_rest(self) -> None:
        """
        Save all there is in one pass. What failed is lost, but for an unavailable Store: that is tried again.
        """
        await trio.lowlevel.checkpoint()
        given_up: set[str] = set()
        while opids := [opid for opid in self._cache.dirty_opids() if opid not in given_up]:
            tally = await self._save_round(self._untroubled_first(opids)[: self._config.batch_limit])
            given_up.update(tally.failed)
            if tally.unavailable:
                await trio.sleep(DRAIN_RETRY)

    async def _save_round(self, opids: Sequence[str]) -> Tally:
        """
        Save each operation's next batch: together where the Store can, and one by one where that failed.
        """
        await trio.lowlevel.checkpoint()
        tally = Tally()
        frozen = [item for opid in opids if (item := self._cache.freeze(opid))]
        together = [item for item in frozen if item[0].opid not in self._troubles] if self._many else []
        if len(together) > 1 and await self._save_together(together, tally):
            # What failed has had its try; only the parts of what was refused go on at once.
            failed = {*tally.unavailable, *tally.failed}
            done = {entry.opid for entry, _, _ in together if not entry.in_flight or entry.opid in failed}
            frozen = [item for opid in opids if opid not in done and (item := self._cache.freeze(opid))]
        draining, timeouts = self._draining, 0
        for place, item in enumerate(frozen):
            # The rest waits for the next round; a drain that begins during a round takes it over.
            if timeouts == _TIMEOUTS_IN_A_ROW or self._draining is not draining:
                self._hinted |= {entry.opid: None for entry, _, _ in frozen[place:]}
                break
            timeouts = timeouts + 1 if await self._save_alone(item, tally) else 0
        self._judge(tally)
        return tally

    async def _save_together(self, together: Sequence[Frozen], tally: Tally) -> bool:
        """
        Save several operations in one transaction; tell whether it went through.
        """
        assert self._many is not None
        began = self._cache.next_tick()
        with trio.move_on_after(self._config.export_timeout):
            await trio.lowlevel.checkpoint()  # a store that passes none must not starve the loop
            try:
                requests = [request for _, _, request in together]
                answers = check_joint_answers(requests, await self._many.merge_many(requests))
            except Exception:  # noqa: BLE001 - each operation is tried by itself, and its own failure counts
                return False
            for (entry, batch, _), answer in zip(together, answers, strict=True):
                if isinstance(answer, Merged):
                    self._on_saved(entry, batch, answer, began, tally)
                elif isinstance(answer, StoreRejected):
                    self._on_rejected(entry, batch, answer)
                else:
                    self._on_failed(entry, answer, tally)
            return True
        return False

    async def _save_alone(self, frozen: Frozen, tally: Tally) -> bool:
        """
        Save one operation's batch, and the parts of it if it is split; tell whether the Store timed out.
        """
        while True:
            entry, batch, request = frozen
            began = self._cache.next_tick()
            error: Exception = StoreUnavailable(
                entry.opid, f"the store did not answer within export_timeout={self._config.export_timeout} s"
            )
            with trio.move_on_after(self._config.export_timeout) as scope:
                await trio.lowlevel.checkpoint()  # as above
                try:
                    merged = check_merged(await self._store.merge(entry.opid, request.update, request.known))
                except StoreRejected as rejection:
                    self._on_rejected(entry, batch, rejection)
                except Exception as failure:  # noqa: BLE001 - whatever a store raises must not end the task
                    error = failure
                    self._on_failed(entry, failure, tally)
                    return False
                else:
                    self._on_saved(entry, batch, merged, began, tally)
            if scope.cancelled_caught:
                self._on_failed(entry, error, tally)
                return True
            if not entry.in_flight:
                return False
            again = self._cache.freeze(entry.opid)
            assert again is not None
            frozen = again

    def _on_saved(self, entry: Entry, batch: Batch, merged: Merged, began: int, tally: Tally) -> None:
        tally.saved += 1
        self._troubles.succeeded(entry.opid)
        self._health.saved(changed=merged.changed)
        if self._cache.saved(entry, batch, merged, began):
            self._offer_load(entry.opid)
        unfinished = min((part.number for part in entry.in_flight), default=batch.number + 1)
        for waiter in list(self._waiters.get(entry.opid, ())):
            if waiter.number < unfinished:
                waiter.release(None)
                self.remove_waiter(entry.opid, waiter)

    def _on_rejected(self, entry: Entry, batch: Batch, error: StoreRejected) -> None:
        self._troubles.succeeded(entry.opid)
        if self._cache.rejected(entry, batch, error):
            self._reporter.report(entry.opid, error)
            self._release_waiters(entry.opid, error)

    def _on_failed(self, entry: Entry, error: Exception, tally: Tally) -> None:
        (tally.unavailable if isinstance(error, StoreUnavailable) else tally.failed).append(entry.opid)
        self._health.save_failed()
        first = self._troubles.failed(entry.opid, trio.current_time())
        # A drain has its own end: until then an evicted operation is tried as often as any other.
        lost = 0 if self._draining else self._cache.failed(entry)
        if lost:
            self._troubles.succeeded(entry.opid)
        if first or lost:
            self._reporter.report(entry.opid, error, is_loss=lost > 0)
        self._release_waiters(entry.opid, error)

    def _release_waiters(self, opid: str, error: Exception) -> None:
        for waiter in self._waiters.pop(opid, ()):
            waiter.release(error)

    def _judge(self, tally: Tally) -> None:
        """
        Slow the whole task down if the Store is unavailable, and let go of everything at its first success.
        """
        if tally.saved:
            if self._outage.succeeded():
                self._troubles.release()
                self._period.due_at = trio.current_time()
        elif not all(self._troubles.is_alone(opid) for opid in tally.unavailable):
            self._outage.failed(trio.current_time())


@final
class Tally:
    """
    What became of the operations of one round.
    """

    def __init__(self) -> None:
        self.saved = 0
        self.unavailable: list[str] = []
        self.failed: list[str] = []
