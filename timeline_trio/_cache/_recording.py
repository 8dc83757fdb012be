"""
How facts are taken in: by any thread, at any moment, at as little cost as can be.

Ctrl-C does not tear a recording: Trio's protection holds it off, and under another signal handler the one write
that commits a fact comes before everything that is derived from it, which is then made anew.

The begin and the end of a stage do not come here at all while nothing is special: they go into the entry's journal,
which `_take` opens. What finds it closed by the time that it is in there is taken back, and comes here after all.
"""

from __future__ import annotations

import threading
import time
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

from trio.lowlevel import enable_ki_protection

from .._errors import BufferFull, ManagerClosed
from .._process import Forks
from ._entry import JOURNAL, START, Entry, Slot
from ._live import ENDED, RUNNING, Journaled, LiveStage, Phase, Recorded
from ._table import EntryTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._model._values import Fact, Stage, StageKey, Start
    from ._counters import Counters


class RecordingTable(EntryTable):
    """
    Takes facts in.

    Args:
        max_timelines: how many operations are kept; the least recently used one leaves first.
        max_pending_timelines: how many operations may have unsaved facts.
        max_pending_updates: how many unsaved facts one operation may have.
        report: called with what a put-off recording would have raised.
    """

    def __init__(
        self,
        *,
        max_timelines: int,
        max_pending_timelines: int,
        max_pending_updates: int,
        report: Callable[[str, Exception], None],
    ) -> None:
        super().__init__(max_timelines=max_timelines, report=report)
        self._max_pending_timelines = max_pending_timelines
        self._max_pending_updates = max_pending_updates
        self._half_of_updates = (max_pending_updates + 1) // 2
        self.last_refusal: str = ""
        self._born = Forks.count
        self._closed = False

    @enable_ki_protection
    def begin(self, live: LiveStage, stage: Stage) -> None:
        """
        Take in a stage that begins here, in the place of whatever is known of its key.

        Raises:
            InvalidValue: what the opid breaks.
            BufferFull: a bound is reached.
            ManagerClosed: the cache is closed.
            WrongProcess: this is a forked child.
        """
        self._guard.check()
        opid, key = live.opid, live.key
        with self._lock:
            if self._busy:
                self._left_over.append((opid, partial(self._begin_late, live, stage)))
                return
        with self._changing():
            entry = self._take(opid, key, stage, fits=False)
            entry.add_live(live)
        notify(entry)

    @enable_ki_protection
    def begin_again(self, live: LiveStage, stage: Stage, entry: Journaled) -> None:
        """
        Take in a stage whose begin went into a journal that may have been closed meanwhile. Raises as `begin` does.
        """
        if self._withdraw(entry, live):
            live.entry = None
            self.begin(live, stage)

    @enable_ki_protection
    def end_again(self, live: LiveStage, stage: Stage, entry: Journaled) -> bool | None:
        """
        Take in an end that went into a journal that may have been closed meanwhile. Returns and raises as `advance`.
        """
        if live.begun is not None and self._withdraw(entry, (live, stage)):
            return self.advance(live, live.begun, stage, ends=True)
        return True

    def _withdraw(self, entry: Journaled, item: Recorded) -> bool:
        """
        Take out of the journal what is still in it; tell whether it was.
        """
        with self._lock:
            try:
                entry.journal.remove(item)
            except ValueError:
                return False
            return True

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
        notify(entry)

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
        self._guard.check()
        with self._lock:
            if self._busy:
                return None
        with self._changing():
            entry = self._advance(live, expected, stage, ends=ends)
        if entry is None:
            return False
        notify(entry)
        return True

    def _advance(self, live: LiveStage, expected: Stage, stage: Stage, *, ends: bool) -> Entry | None:
        opid, key = live.opid, live.key
        known = self.peek(opid)
        if known is not None:
            self._absorb(known)
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
            known = self.peek(opid)
            if known is not None:
                self._absorb(known)
            if not is_expected():
                return False
            entry = self._take(opid, slot, fact, fits=False)
        notify(entry)
        return True

    def _live(self, opid: str, key: StageKey) -> LiveStage | None:
        entry = self.peek(opid)
        return entry.live.get(key) if entry else None

    @enable_ki_protection
    def current(self, live: LiveStage) -> Stage | None:
        """
        Return the state that a change through this record starts from; None if the stage is no longer its to change.

        It needs no lock: `advance` looks again, with the lock held, and refuses what was made from another state.
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

    def _begin_late(self, live: LiveStage, stage: Stage) -> None:
        try:
            self.begin(live, stage)
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
        self._absorb(entry)
        pending = entry.pending
        is_new = slot not in pending
        if is_new and len(pending) >= entry.unchecked:
            self._admit(entry, fits=fits)
        try:
            pending[slot] = fact
            if not is_new:
                self.counters.superseded += 1
            entry.show(slot, fact)
        except BaseException:
            entry.torn = True  # the fact is committed, and the view will be made anew from it
            raise
        entry.room = 0 if entry.watchers else min(JOURNAL, entry.unchecked - len(pending))
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
            sizes = self.sizes
            return copy(self.counters), sizes

    @enable_ki_protection
    def close(self) -> None:
        """
        Accept nothing from now on.
        """
        if Forks.count != self._born:
            self._lock = threading.RLock()  # the other one may be held by a thread that is not in this process
        with self._lock:
            self._closed = True
            for entry in list(self._entries.values()):
                entry.unchecked = entry.room = 0

    @property
    def is_closed(self) -> bool:
        """
        Whether nothing is accepted any more.
        """
        return self._closed


def notify(entry: Entry) -> None:
    """
    Tell those who watch an operation that it has changed. Without the lock.
    """
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
