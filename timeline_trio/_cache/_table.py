"""
The cached operations of one manager, and the one lock around them.

Recording may come from any thread, from `finally`, from a signal handler, a log handler or a `__del__` that the
garbage collector runs in the middle of another recording. So the lock can be entered again by its own thread, and
a call that finds another one of its thread half-way is put off until that one is through, some microseconds later;
what it would have raised is reported instead.

Nothing is decoded, encoded, awaited or called back while the lock is held.

The recordings of which there are most go without the lock, into an entry's journal. Whoever holds the lock takes an
entry's journal over before he looks at the entry's facts. Where an entry must get no more of them, as it leaves or is
saved completely, its `room` is taken away first and the journal is taken over then: whoever appends looks at the room
afterwards, and so either the one sees the fact or the other sees that it is to be recorded anew.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from trio.lowlevel import enable_ki_protection

from .._model._text import check_opid
from .._process import Forks, ProcessGuard
from ._counters import Counters
from ._entry import Entry
from ._live import LiveStage, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .._model._document import Document
    from .._model._values import Stage, StageKey


def _ignore_hint(opid: str) -> None:
    del opid


class EntryTable:
    """
    Keeps one entry an operation for its whole life.

    Args:
        max_timelines: how many operations are kept; the least recently used one leaves first.
        report: called with what a put-off call would have raised.
    """

    def __init__(self, *, max_timelines: int, report: Callable[[str, Exception], None]) -> None:
        self._max_timelines = max_timelines
        self._report = report
        self.hint_save: Callable[[str], None] = _ignore_hint
        self.counters: Counters = Counters()
        self._guard = ProcessGuard()
        Forks.aware.add(self)
        self._lock = threading.RLock()
        self._busy = False  # its thread is in the middle of a change; only read with the lock held
        self._following = False  # somebody does what was put off, one after another
        # What is left to do without the lock: operations to hint to the saver, and calls that were put off.
        self._left_over: deque[tuple[str, Callable[[], object] | None]] = deque()
        self._entries: OrderedDict[str, Entry] = OrderedDict()  # least recently used first
        self._leaving: dict[str, Entry] = {}  # evicted, with facts that are not saved yet
        self._dirty: dict[str, Entry] = {}  # with unsaved facts
        self._evicted_live: dict[str, WeakValueDictionary[StageKey, LiveStage]] = {}

    @property
    def entries(self) -> OrderedDict[str, Entry]:
        """
        The cached operations, least recently used first. To look at and to move to the end; it stays the same object.
        """
        return self._entries

    @contextmanager
    @enable_ki_protection
    def _changing(self) -> Generator[None]:
        """
        Hold the lock for a change, and do afterwards what was put off meanwhile. The hot path does the same by hand.
        """
        try:
            with self._lock:
                self._busy = True
                try:
                    yield
                finally:
                    self._busy = False
        finally:
            self._follow_up()

    def _follow_up(self) -> None:
        while self._left_over:
            with self._lock:
                if self._following:  # one at a time, so that no stage is ended before it is begun
                    return
                self._following = True
            try:
                while self._left_over:
                    opid, call = self._left_over.popleft()
                    if call is None:
                        self.hint_save(opid)
                    else:
                        self._call_late(opid, call)
            finally:
                self._following = False

    def _call_late(self, opid: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whoever made the call is gone, so it is reported
            self._report(opid, error)

    def _absorb(self, entry: Entry) -> None:
        self.counters.superseded += entry.absorb()

    def _shut(self, entry: Entry) -> None:
        """
        Let nothing more into the journal, and take over what is in it.
        """
        entry.room = 0
        self._absorb(entry)

    def note_fork(self) -> None:
        """
        Send all recordings of a forked child the way that finds out about it.
        """
        for entry in list(self._entries.values()):
            entry.room = 0

    def _new_entry(self, opid: str) -> Entry:
        check_opid(opid)
        entry = Entry(opid)
        evicted = self._evicted_live.get(opid)
        for live in list(evicted.values()) if evicted else ():
            if live.phase is Phase.RUNNING:
                entry.add_live(live)
        return entry

    def _take_back(self, opid: str) -> Entry | None:
        entry = self._leaving.get(opid)
        if entry is not None:
            self._keep(entry)
            entry.leaving = False
            del self._leaving[opid]
        return entry

    def _keep(self, entry: Entry) -> None:
        if entry.opid not in self._entries:
            self._entries[entry.opid] = entry
            self._evicted_live.pop(entry.opid, None)
            self._make_room()

    def _make_room(self) -> None:
        surplus = len(self._entries) - self._max_timelines
        if surplus > 0:
            # A list, since recordings without the lock move entries about.
            *others, _ = list(self._entries.values())
            unpinned = (entry.opid for entry in others if not entry.pins)
            for opid in [opid for opid, _ in zip(unpinned, range(surplus), strict=False)]:
                self._evict(self._entries[opid])

    def _evict(self, entry: Entry) -> None:
        self._shut(entry)
        if entry.pending or entry.in_flight:
            self._leaving[entry.opid] = entry
            entry.leaving = True
            self._left_over.append((entry.opid, None))
        else:
            self._remember_live(entry)
        del self._entries[entry.opid]

    def _remember_live(self, entry: Entry) -> None:
        # Handles outlive the entry. They alone keep their records alive here, so nothing grows without them.
        if entry.live:
            for live in entry.live.values():
                live.entry = None
            self._evicted_live[entry.opid] = WeakValueDictionary(entry.live)
            if len(self._evicted_live) > 2 * self._max_timelines:
                self._evicted_live = {opid: lives for opid, lives in self._evicted_live.items() if lives}

    @enable_ki_protection
    def evict(self, opid: str) -> None:
        """
        Free the local copy, after a final save of what is not saved yet. A watched operation stays.
        """
        self._guard.check()
        with self._lock:
            is_busy = self._busy
            if is_busy:
                self._left_over.append((opid, lambda: self.evict(opid)))
        if not is_busy:
            with self._changing():
                entry = self._entries.get(opid)
                if entry is not None and not entry.pins:
                    self._evict(entry)

    @enable_ki_protection
    def touch(self, opid: str) -> Entry | None:
        """
        Return the operation's entry, promoted and taken back if it was leaving; None if there is none.
        """
        self._guard.check()
        with self._changing():
            entry = self._entries.get(opid)
            if entry is None:
                return self._take_back(opid)
            self._entries.move_to_end(opid)
            return entry

    def peek(self, opid: str) -> Entry | None:
        """
        Return the operation's entry as it is, or None.
        """
        return self._entries.get(opid) or self._leaving.get(opid)

    @enable_ki_protection
    def pin(self, opid: str) -> Entry:
        """
        Return the operation's entry, an empty one if need be, and keep it until it is unpinned as often.
        """
        self._guard.check()
        with self._changing():
            entry = self._entries.get(opid) or self._take_back(opid) or self._new_entry(opid)
            entry.pins += 1
            self._keep(entry)
            return entry

    @enable_ki_protection
    def unpin(self, entry: Entry) -> None:
        """
        Undo one `pin`; an entry of which nothing is known does not stay.
        """
        with self._changing():
            entry.pins -= 1
            self._absorb(entry)
            if not entry.pins:
                if entry.is_empty and not entry.has_local_facts:
                    self._evict(entry)
                self._make_room()

    @enable_ki_protection
    def watch(self, entry: Entry, watcher: Callable[[], None]) -> None:
        """
        Have `watcher` called, from any thread, after each change of the view.
        """
        with self._changing():
            entry.watchers = (*entry.watchers, watcher)
            self._shut(entry)  # what is recorded without the lock tells nobody

    @enable_ki_protection
    def unwatch(self, entry: Entry, watcher: Callable[[], None]) -> None:
        """
        Undo `watch`.
        """
        with self._changing():
            entry.watchers = tuple(other for other in entry.watchers if other != watcher)

    @enable_ki_protection
    def view(self, entry: Entry) -> tuple[Document, bool]:
        """
        Return the merged document, detached, and whether all that was recorded here is saved.
        """
        with self._changing():
            self._absorb(entry)
            if entry.torn:
                entry.rebuild()
            return entry.document(), entry.is_flushed

    @enable_ki_protection
    def live_named(self, opid: str, name: str, actor_key: str) -> list[LiveStage]:
        """
        Return the running stages of that name and actor that were begun in this process.
        """
        self._guard.check()
        with self._changing():
            entry = self._entries.get(opid) or self._take_back(opid)
            if entry is None and opid in self._evicted_live:
                entry = self._new_entry(opid)
                self._remember_live(entry)
            if entry is None:
                return []
            self._shut(entry)
            return entry.live_named(name, actor_key)

    @enable_ki_protection
    def live_stages(self, opid: str) -> list[LiveStage]:
        """
        Return the running stages of the operation that were begun in this process.
        """
        with self._changing():
            entry = self.peek(opid)
            if entry is None:
                return []
            self._absorb(entry)
            return list(entry.live.values())

    @enable_ki_protection
    def running_named(self, opid: str, name: str, actor_key: str) -> list[Stage]:
        """
        Return the running stages of that name and actor, whoever began them.

        It looks at all stages: it is asked only after the whole document was read, and an index would cost each
        recording.
        """
        with self._changing():
            entry = self.peek(opid)
            if entry is None:
                return []
            self._absorb(entry)
            stages = [stage for key, stage in entry.stages.items() if key[1] == actor_key]
        return [stage for stage in stages if stage.name == name and stage.finished_at is None]

    @property
    def counts(self) -> tuple[int, int]:
        """
        How many operations are cached, and how many have unsaved facts; without the lock, so from anywhere.
        """
        return len(self._entries), len(self._dirty)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """
        How many operations are cached, how many have unsaved facts, and how many facts are unsaved.
        """
        with self._lock:
            dirty = list(self._dirty.values())
            if self._busy:  # the caller has interrupted a recording of its own thread; it gets a rough answer
                return len(self._entries), len(dirty), sum(entry.unsaved for entry in dirty)
        with self._changing():
            for entry in dirty:
                self._absorb(entry)
            return len(self._entries), len(self._dirty), sum(entry.unsaved for entry in self._dirty.values())

    @property
    def oldest_pending(self) -> float:
        """
        For how many seconds the longest waiting facts have been waiting; 0 if none are.
        """
        with self._lock:
            since = min((entry.dirty_since for entry in list(self._dirty.values())), default=None)
        return 0.0 if since is None else time.monotonic() - since
