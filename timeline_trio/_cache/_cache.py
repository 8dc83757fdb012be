"""
What is recorded, and what goes to the Store and comes from it.

Ctrl-C does not tear a recording: Trio's protection holds it off, and under another signal handler the one write
that commits a fact comes before everything that is derived from it, which is then made anew.
"""

from __future__ import annotations

import threading
import time
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Literal, final

from trio.lowlevel import enable_ki_protection

from .._errors import BufferFull, CorruptEntry, ManagerClosed
from .._process import Forks
from .._store._contract import MergeRequest
from ._counters import Counters
from ._entry import START, Batch, Entry, Slot, make_batch
from ._live import ENDED, RUNNING, LiveStage, Phase
from ._table import EntryTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .._errors import StoreRejected
    from .._model._values import Fact, Stage, StageKey, Start
    from .._store._contract import Answer, Known, Merged


@final
class Cache(EntryTable):
    """
    Takes facts in, hands them to the saver in frozen batches, and lays them over what the Store says.

    Args:
        writer: names this cache in what it saves.
        max_timelines: how many operations are kept; the least recently used one leaves first.
        max_pending_timelines: how many operations may have unsaved facts.
        max_pending_updates: how many unsaved facts one operation may have.
        report: called with what a put-off recording would have raised.
    """

    def __init__(
        self,
        writer: str,
        *,
        max_timelines: int,
        max_pending_timelines: int,
        max_pending_updates: int,
        report: Callable[[str, Exception], None],
    ) -> None:
        super().__init__(max_timelines=max_timelines, report=report)
        self._writer = writer
        self._max_pending_timelines = max_pending_timelines
        self._max_pending_updates = max_pending_updates
        self._half_of_updates = (max_pending_updates + 1) // 2
        self.last_refusal: str = ""
        self._born = Forks.count
        self.counters: Counters = Counters()
        self._tick = 0
        self._sequence = 0
        self._closed = False

    @enable_ki_protection
    def begin(self, live: LiveStage, stage: Stage, *, is_new: bool) -> None:
        """
        Take in a stage that begins here, in the place of whatever is known of its key; `is_new` says that is nothing.

        Raises:
            InvalidValue: what the opid breaks.
            BufferFull: a bound is reached.
            ManagerClosed: the cache is closed.
            WrongProcess: this is a forked child.
        """
        if Forks.count != self._born:
            self._guard.check()
        opid, key = live.opid, live.key
        try:
            with self._lock:
                if self._busy:
                    self._left_over.append((opid, partial(self._begin_late, live, stage, is_new=is_new)))
                    return
                self._busy = True
                try:
                    entry = self._entries.get(opid)
                    if is_new and entry is not None and len(entry.pending) < entry.unchecked:
                        # There is room for it, so this is `_take` without its questions.
                        self._entries.move_to_end(opid)
                        try:
                            entry.pending[key] = entry.stages[key] = stage
                            self.counters.accepted += 1
                            entry.live[key] = live
                        except BaseException:
                            entry.torn = True
                            raise
                    else:
                        entry = self._take(opid, key, stage, fits=False)
                        entry.add_live(live)
                finally:
                    self._busy = False
        finally:
            if self._left_over and not self._busy:
                self._follow_up()
        if entry.watchers:
            _notify(entry)

    @enable_ki_protection
    def accept(self, opid: str, slot: Slot, fact: Fact) -> None:
        """
        Take in a finished interval or a boundary, whatever is known of its key.

        Raises:
            InvalidValue: what the opid breaks.
            BufferFull: a bound is reached.
            ManagerClosed: the cache is closed.
            WrongProcess: this is a forked child.
        """
        self._guard.check()
        with self._lock:
            if self._busy:
                self._left_over.append((opid, lambda: self.accept(opid, slot, fact)))
                return
        with self._changing():
            entry = self._take(opid, slot, fact, fits=False)
            live = entry.live.get(slot) if isinstance(slot, tuple) else None
            if live is not None:
                entry.forget_live(live, ENDED)
        _notify(entry)

    @enable_ki_protection
    def advance(self, live: LiveStage, expected: Stage, stage: Stage, *, ends: bool) -> bool | None:
        """
        Take in the next state of a stage that was begun here, if it was made from the present one.

        Its end always fits: an outage must not leave finished work shown as running.

        Args:
            live: the stage as it was begun here.
            expected: the state that `stage` was made from.
            stage: the next state.
            ends: whether that is its end.

        Returns:
            False if the present state is another one by now; None if this thread is in the middle of a recording, so
            that the whole call is to be given to `put_off`.

        Raises:
            BufferFull: a bound is reached.
            ManagerClosed: the cache is closed.
            WrongProcess: this is a forked child.
        """
        if Forks.count != self._born:
            self._guard.check()
        try:
            with self._lock:
                if self._busy:
                    return None
                self._busy = True
                try:
                    key = live.key
                    entry = self._entries.get(live.opid)
                    if (
                        ends
                        and entry is not None
                        and entry.unchecked
                        and entry.pending.get(key) is expected
                        and live.phase is RUNNING
                    ):  # nobody else has changed it, so this is `_take` without its questions
                        self._entries.move_to_end(live.opid)
                        try:
                            entry.pending[key] = entry.stages[key] = live.begun = stage
                            counters = self.counters
                            counters.accepted += 1
                            counters.superseded += 1
                            live.phase = ENDED
                            entry.live.pop(key, None)
                        except BaseException:
                            entry.torn = True
                            raise
                    else:
                        entry = self._advance(live, expected, stage, ends=ends)
                finally:
                    self._busy = False
        finally:
            if self._left_over and not self._busy:
                self._follow_up()
        if entry is None:
            return False
        if entry.watchers:
            _notify(entry)
        return True

    def _advance(self, live: LiveStage, expected: Stage, stage: Stage, *, ends: bool) -> Entry | None:
        opid, key = live.opid, live.key
        if self._stage_now(opid, key, live) is not expected:
            return None
        entry = self._take(opid, key, stage, fits=ends)
        if live.begun is not expected:
            _adopt(entry, live, stage)
        live.begun = stage
        if ends:
            entry.forget_live(live, ENDED)
        elif key not in entry.live:
            entry.add_live(live)
        return entry

    @enable_ki_protection
    def replace_stage(self, opid: str, expected: Stage, stage: Stage) -> bool | None:
        """
        Do as `advance` does for the end of a stage that was begun elsewhere.
        """
        live = self._live(opid, stage.key)
        if live is not None:
            return self.advance(live, expected, stage, ends=True)
        return self._replace(opid, stage.key, stage, lambda: self._stage_now(opid, stage.key, None) is expected)

    @enable_ki_protection
    def replace_start(self, opid: str, expected: Start, start: Start) -> bool | None:
        """
        Do as `advance` does for the start of an operation.
        """
        return self._replace(
            opid, START, start, lambda: (entry := self.peek(opid)) is not None and entry.start is expected
        )

    def _replace(self, opid: str, slot: Slot, fact: Fact, is_expected: Callable[[], bool]) -> bool | None:
        self._guard.check()
        with self._lock:
            if self._busy:
                return None
        with self._changing():
            if not is_expected():
                return False
            entry = self._take(opid, slot, fact, fits=False)
        _notify(entry)
        return True

    def _live(self, opid: str, key: StageKey) -> LiveStage | None:
        entry = self.peek(opid)
        return entry.live.get(key) if entry else None

    @enable_ki_protection
    def current(self, live: LiveStage) -> Stage | None:
        """
        Return the state that a change through this record starts from; None if the stage is no longer its to change.

        It needs no lock: `replace` looks again, with the lock held, and refuses what was made from another state.
        """
        return self._stage_now(live.opid, live.key, live)

    def _stage_now(self, opid: str, key: StageKey, live: LiveStage | None) -> Stage | None:
        if live is not None and live.phase is not RUNNING:
            return None
        entry = self._entries.get(opid) or self._leaving.get(opid)
        return (entry.stages.get(key) if entry else None) or (live.begun if live else None)

    def put_off(self, opid: str, call: Callable[[], object]) -> None:
        """
        Have a call made once the recording that this thread is in the middle of is through.
        """
        self._left_over.append((opid, call))

    def _begin_late(self, live: LiveStage, stage: Stage, *, is_new: bool) -> None:
        try:
            self.begin(live, stage, is_new=is_new)
        except BaseException:
            live.phase = Phase.REFUSED
            raise

    def _take(self, opid: str, slot: Slot, fact: Fact, *, fits: bool) -> Entry:
        """
        Commit a fact, and return its entry, promoted. A new entry is not kept before it holds a fact.
        """
        entry = self._entries.get(opid)
        if entry is None or self._closed:
            entry = self._enter(opid)
        else:
            self._entries.move_to_end(opid)
        pending, counters = entry.pending, self.counters
        is_new = slot not in pending
        if is_new and len(pending) >= entry.unchecked:
            self._admit(entry, fits=fits)
        try:
            pending[slot] = fact
            counters.accepted += 1
            if not is_new:
                counters.superseded += 1
            entry.show(slot, fact)
        except BaseException:
            entry.torn = True  # the fact is committed, and the view will be made anew from it
            raise
        return entry

    def _enter(self, opid: str) -> Entry:
        if self._closed:
            raise self._refused(ManagerClosed())
        return self._take_back(opid) or self._new_entry(opid)

    def _admit(self, entry: Entry, *, fits: bool) -> None:
        """
        Make room for one more pending fact, or refuse it; and find out how many more need no such look.

        An entry is found by its facts before it holds one, so that an interrupted recording hides nothing.

        Raises:
            BufferFull: a bound is reached, and the fact does not fit all the same.
        """
        opid, unsaved = entry.opid, entry.unsaved
        if not fits:
            self._check_bounds(opid, unsaved)
        if opid not in self._dirty:
            self._keep(entry)
            self._dirty[opid] = entry
            entry.dirty_since = time.monotonic()
            if len(self._dirty) == (self._max_pending_timelines + 1) // 2:
                self._left_over.append((opid, None))
        count, half = len(entry.pending), self._half_of_updates
        if count == 0:
            entry.pending_since = time.monotonic()
        if count + 1 == half:
            self._left_over.append((opid, None))
        limit = self._max_pending_updates - (unsaved - count)
        entry.unchecked = min(half - 1, limit) if count < half - 1 else limit
        if entry.names is not None:
            entry.unchecked = 0

    def _check_bounds(self, opid: str, unsaved: int) -> None:
        if unsaved >= self._max_pending_updates:
            raise self._refused(BufferFull(opid, "max_pending_updates", self._max_pending_updates))
        if opid not in self._dirty and len(self._dirty) >= self._max_pending_timelines:
            raise self._refused(BufferFull(opid, "max_pending_timelines", self._max_pending_timelines))

    def _refused(self, error: BufferFull | ManagerClosed) -> BufferFull | ManagerClosed:
        self.counters.refused += 1
        self.last_refusal = str(error)  # not the error, which would keep its caller's variables alive
        return error

    def totals(self) -> tuple[Counters, tuple[int, int, int]]:
        """
        Return the counters and the sizes of one and the same moment.
        """
        with self._lock:
            return copy(self.counters), self.sizes

    def next_tick(self) -> int:
        """
        Return a number that tells what began before what.

        Raises:
            WrongProcess: this is a forked child, so whatever is to begin must not.
        """
        self._guard.check()
        with self._lock:
            self._tick += 1
            return self._tick

    def known(self, opids: Iterable[str]) -> dict[str, Known]:
        """
        Return what the Store said last of each operation, where it said something.
        """
        with self._lock:
            entries = ((opid, self.peek(opid)) for opid in opids)
            return {opid: entry.base for opid, entry in entries if entry and entry.base}

    def known_all(self) -> dict[str, Known]:
        """
        Return what the Store said last of every cached operation.
        """
        with self._lock:
            return self.known(list(self._entries))

    def learn(self, answer: Answer, began: int, room: Literal["make", "free"]) -> Entry | None:
        """
        Take over what the Store said of one operation. Nothing of it is put in line for saving.

        Args:
            answer: what it said.
            began: the tick at which it was asked.
            room: what to do for an unknown operation: "make" evicts another one for it, "free" takes it only where
                there is free room, behind all others.

        Returns:
            The entry; None if it was not taken in.
        """
        with self._changing():
            self._tick += 1
            entry = self.peek(answer.opid)
            if entry is not None:
                changed = entry.learn(answer, began, self._tick)
                if entry.base is None:
                    return None
            else:
                if room == "free" and len(self._entries) >= self._max_timelines:
                    return None
                entry = self._new_entry(answer.opid)
                changed = entry.learn(answer, began, self._tick)
                if not changed:
                    return None
                self._keep(entry)
                if room == "free":
                    self._entries.move_to_end(entry.opid, last=False)
        if changed:
            for watcher in entry.watchers:
                watcher()
        return entry

    def dirty_opids(self) -> list[str]:
        """
        Return the operations with unsaved facts, longest waiting first.

        Raises:
            WrongProcess: this is a forked child; the facts are its parent's to save.
        """
        self._guard.check()
        with self._lock:
            return sorted(self._dirty, key=lambda opid: self._dirty[opid].dirty_since)

    def is_dirty(self, opid: str) -> bool:
        """
        Whether the operation has unsaved facts.
        """
        return opid in self._dirty

    def freeze(self, opid: str) -> tuple[Entry, Batch, MergeRequest] | None:
        """
        Return the batch to save next: the one in flight as it was, else all that is pending, frozen now.

        Raises:
            WrongProcess: this is a forked child; the facts are its parent's to save.
        """
        self._guard.check()
        with self._changing():
            entry = self._dirty.get(opid)
            if entry is None:
                return None
            if entry.torn:
                entry.rebuild()
            if not entry.unsaved:  # a recording was interrupted before it was committed
                del self._dirty[opid]
                return None
            if not entry.in_flight:
                entry.batches += 1
                facts, entry.pending, entry.unchecked = entry.pending, {}, 0
                entry.in_flight.append(self._batch(entry.batches, facts))
            batch = entry.in_flight[0]
            return entry, batch, MergeRequest(opid, batch.update, entry.base)

    def _batch(self, number: int, facts: dict[Slot, Fact]) -> Batch:
        self._sequence += 1
        return make_batch(number, facts, self._writer, self._sequence)

    def saved(self, entry: Entry, batch: Batch, merged: Merged, began: int) -> bool:
        """
        Note that a batch was saved; tell whether the operation should be loaded to see what others saved.
        """
        with self._changing():
            self._tick += 1
            self.counters.saved += len(batch.facts)
            stale = entry.settle(batch, merged, began, self._tick)
            self._tidy(entry)
        _notify(entry)
        return stale

    def rejected(self, entry: Entry, batch: Batch, error: StoreRejected) -> int:
        """
        Note that a batch was refused for good; return how many facts are lost by that.

        One bad fact must not take the others with it: a batch of several is split, and its parts are next in line.
        Where the row itself is corrupt there is nothing to find. The view goes on showing a lost fact until the Store
        answers for the operation, and then what the Store has; that something was lost it tells until the same keys
        are saved.
        """
        with self._changing():
            entry.in_flight.remove(batch)
            facts = list(batch.facts.items())
            if len(facts) > 1 and not isinstance(error, CorruptEntry):
                half = len(facts) // 2
                parts = [self._batch(batch.number, dict(part)) for part in (facts[:half], facts[half:])]
                entry.in_flight[:0] = parts
                return 0
            self.counters.rejected += len(facts)
            self._note_loss(entry, batch.facts)
            return len(facts)

    def failed(self, entry: Entry) -> int:
        """
        Note that an attempt failed; return how many facts are lost by that: an evicted entry has only the one.
        """
        with self._changing():
            if not entry.leaving:
                return 0
            slots = [slot for batch in entry.in_flight for slot in batch.facts]
            entry.in_flight = []
            return self._lose(entry, slots)

    def _lose(self, entry: Entry, slots: list[Slot]) -> int:
        self.counters.dropped += len(slots)
        self._note_loss(entry, slots)
        return len(slots)

    def _note_loss(self, entry: Entry, slots: Iterable[Slot]) -> None:
        entry.lost.update(slots)
        entry.shows_lost = True
        self._tidy(entry)

    def _tidy(self, entry: Entry) -> None:
        """
        Bring the sets of dirty and of leaving entries up to date after an attempt to save.
        """
        opid = entry.opid
        del self._dirty[opid]
        if entry.pending or entry.in_flight:
            self._dirty[opid] = entry
            if not entry.in_flight:
                entry.dirty_since = entry.pending_since
        elif entry.leaving:
            del self._leaving[opid]
            entry.leaving = False
            self._remember_live(entry)

    @enable_ki_protection
    def close(self) -> None:
        """
        Accept nothing from now on.
        """
        if Forks.count != self._born:
            self._lock = threading.RLock()  # the other one may be held by a thread that is not in this process
        with self._lock:
            self._closed = True
            for entry in self._entries.values():
                entry.unchecked = 0

    @property
    def is_closed(self) -> bool:
        """
        Whether nothing is accepted any more.
        """
        return self._closed

    @enable_ki_protection
    def release(self) -> dict[str, int]:
        """
        Let go of all that is not saved, and return how many facts of each operation are lost.
        """
        with self._changing():
            lost: dict[str, int] = {}
            for opid, entry in list(self._dirty.items()):
                slots = [slot for batch in entry.in_flight for slot in batch.facts] + list(entry.pending)
                entry.in_flight, entry.pending, entry.unchecked = [], {}, 0
                lost[opid] = self._lose(entry, slots)
            return lost


def _notify(entry: Entry) -> None:
    for watcher in entry.watchers:
        watcher()


def _adopt(entry: Entry, live: LiveStage, stage: Stage) -> None:
    """
    Have a live record go on with a stage that others changed.
    """
    begun = live.begun
    if begun and (begun.started_at != stage.started_at or begun.name != stage.name):
        # Another process began the key anew: our clock and our index say nothing of that stage.
        live.began_ns = entry.names = None
