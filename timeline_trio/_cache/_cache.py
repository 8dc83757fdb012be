"""
What goes to the Store, and what comes from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from trio.lowlevel import enable_ki_protection

from .._errors import CorruptEntry
from .._store._contract import MergeRequest
from ._entry import Batch, Entry, Slot, make_batch
from ._recording import RecordingTable, notify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .._errors import StoreRejected
    from .._model._values import Fact
    from .._store._contract import Answer, Known, Merged


@final
class Cache(RecordingTable):
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
        super().__init__(
            max_timelines=max_timelines,
            max_pending_timelines=max_pending_timelines,
            max_pending_updates=max_pending_updates,
            report=report,
        )
        self._writer = writer
        self._tick = 0
        self._sequence = 0

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
                self._absorb(entry)
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
            notify(entry)
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
            self._shut(entry)
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
            self._shut(entry)
            self.counters.saved += len(batch.facts)
            stale = entry.settle(batch, merged, began, self._tick)
            self._tidy(entry)
        notify(entry)
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
            self._shut(entry)
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
            self._shut(entry)
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
    def release(self) -> dict[str, int]:
        """
        Let go of all that is not saved, and return how many facts of each operation are lost.
        """
        with self._changing():
            lost: dict[str, int] = {}
            for opid, entry in list(self._dirty.items()):
                self._shut(entry)
                slots = [slot for batch in entry.in_flight for slot in batch.facts] + list(entry.pending)
                entry.in_flight, entry.pending, entry.unchecked = [], {}, 0
                lost[opid] = self._lose(entry, slots)
            return lost
