"""
One cached operation: what the Store said, under what this process recorded.

The layers, each over the one before: the *base* is the document as last known from the Store; *saved* facts were
saved as a revision whose document is not known here; *in flight* are the batches being saved, frozen, so that a
retry repeats exactly what may have arrived already; *pending* facts wait. The *view* is all of them merged. It is
kept up to date by each recording in constant time, and made anew only when the base moves.

What is recorded most, the begin and the end of a new stage, goes into the *journal* first, without the lock and by one
step that nothing can tear; whoever holds the lock next takes it over into the pending facts and the view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, final

import msgspec

from .._model._document import Document, Update, merge_finish, merge_start
from .._model._values import Fact, Finish, Stage, StageKey, Start
from .._store._contract import Changes, Found, Known, Revision
from ._live import ENDED, RUNNING, LiveStage, Phase, Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .._store._contract import Answer, Merged

Slot = StageKey | str
"""Where a fact stands: a stage under its key, a boundary under its name."""

JOURNAL: Final = 128  # the longest that a journal becomes; what is in it costs the garbage collector

START: Final = "start"
FINISH: Final = "finish"


class Batch(msgspec.Struct, frozen=True):
    """
    Facts that are saved together, never changed once they are frozen.

    Attributes:
        number: 1 for the entry's first batch, and so on; parts of a batch that was split share it.
        facts: the facts by slot.
        update: the same facts, as they are sent.
    """

    number: int
    facts: dict[Slot, Fact]
    update: Update


def make_batch(number: int, facts: dict[Slot, Fact], writer: str, sequence: int) -> Batch:
    """
    Freeze facts into a batch.
    """
    update = Update(
        start=cast("Start | None", facts.get(START)),
        finish=cast("Finish | None", facts.get(FINISH)),
        stages=tuple(fact for fact in facts.values() if isinstance(fact, Stage)),
        writer=writer,
        sequence=sequence,
    )
    return Batch(number, facts, update)


@final
class Entry:
    """
    One cached operation. Only the cache touches it, under its lock.
    """

    __slots__ = (
        "asked",
        "base",
        "batches",
        "dirty_since",
        "extra_json",
        "finish",
        "in_flight",
        "journal",
        "learned",
        "leaving",
        "live",
        "lost",
        "missed_at",
        "names",
        "offered_at",
        "opid",
        "pending",
        "pending_since",
        "pins",
        "room",
        "saved",
        "shows_lost",
        "stages",
        "start",
        "torn",
        "unchecked",
        "watchers",
    )

    def __init__(self, opid: str) -> None:
        self.opid: str = opid
        self.base: Known | None = None
        self.learned: int = 0  # the cache's tick at which the base was learned
        self.asked: bool = False  # whether the Store has answered for this entry
        self.saved: dict[Slot, tuple[Revision | None, Fact]] = {}
        self.in_flight: list[Batch] = []
        self.pending: dict[Slot, Fact] = {}
        self.offered_at: float = float("-inf")  # to the loader, by the Trio clock
        self.missed_at: float = float("-inf")  # when the Store failed or had nothing, by the Trio clock
        self.batches: int = 0  # number of the batch frozen last
        self.lost: set[Slot] = set()
        self.shows_lost: bool = False  # the view may show what was lost
        self.start: Start | None = None
        self.finish: Finish | None = None
        self.stages: dict[StageKey, Stage] = {}
        self.extra_json: str = ""
        self.live: dict[StageKey, LiveStage] = {}
        self.names: dict[tuple[str, str], set[StageKey]] | None = None  # index over `live`, once asked for
        self.torn: bool = False  # a recording was interrupted between its committing write and the view
        # As long as there are fewer facts pending, one more needs no look at the bounds, at the index over names, and
        # at whether the cache is closed.
        self.unchecked: int = 0
        self.journal: list[Recorded] = []
        self.room: int = 0  # the journal may be appended to as long as it is shorter
        self.leaving: bool = False
        self.pins: int = 0
        self.dirty_since: float = 0.0  # when the oldest unsaved fact was recorded, by the monotonic clock
        self.pending_since: float = 0.0  # likewise of those that are not in flight
        self.watchers: tuple[Callable[[], None], ...] = ()

    @property
    def has_pending(self) -> bool:
        """
        Whether anything was recorded that is in no batch yet.
        """
        return bool(self.pending or self.journal)

    @property
    def unsaved(self) -> int:
        """
        How many facts are pending or in flight, without those in the journal.
        """
        unsaved = len(self.pending)
        for batch in self.in_flight:
            unsaved += len(batch.facts)
        return unsaved

    @property
    def is_empty(self) -> bool:
        """
        Whether nothing at all is known of the operation.
        """
        return not (self.base or self.stages or self.start or self.finish or self.has_pending)

    @property
    def has_local_facts(self) -> bool:
        """
        Whether something was recorded here that the base does not hold.
        """
        return bool(self.has_pending or self.in_flight or self.saved)

    @property
    def is_flushed(self) -> bool:
        """
        Whether all that was recorded here is saved, as far as this entry remembers.
        """
        return not (self.has_pending or self.in_flight or self.lost)

    def absorb(self) -> int:
        """
        Take over what the journal holds, and return how many facts were superseded by that.

        A signal that tears it is no harm: the next one does it anew.
        """
        journal = self.journal
        if not journal:
            return 0
        pending, stages, lives = self.pending, self.stages, self.live
        taken, before, duplicates = journal[:], len(pending), 0
        for item in taken:
            if isinstance(item, tuple):
                live, stage = item
                if live.entry is not self:  # another thread ended it first
                    duplicates += 1
                    continue
                pending[live.key] = stages[live.key] = live.begun = stage
                if lives:
                    lives.pop(live.key, None)
                live.phase = ENDED
                live.entry = None
            elif item.phase is RUNNING:  # otherwise its end follows
                assert item.begun is not None
                pending[item.key] = stages[item.key] = item.begun
                lives[item.key] = item
        # In one step, and of these alone: others may have been appended meanwhile.
        del journal[: len(taken)]
        return len(taken) - duplicates - (len(pending) - before)

    def show(self, slot: Slot, fact: Fact) -> None:
        """
        Lay one fact over the view, in constant time.
        """
        if isinstance(fact, Stage):
            assert isinstance(slot, tuple)
            self.stages[slot] = fact
        elif isinstance(fact, Start):
            self.start = merge_start(self.start, fact)
        else:
            self.finish = merge_finish(self.finish, fact)

    def document(self) -> Document:
        """
        Return the view, detached: later recordings do not reach it.
        """
        return Document(
            opid=self.opid,
            start=self.start,
            finish=self.finish,
            stages=dict(self.stages),
            extra_json=self.extra_json,
        )

    def rebuild(self) -> None:
        """
        Make the view anew from the layers.
        """
        base = self.base.document if self.base else Document(opid=self.opid)
        self.start, self.finish, self.extra_json = base.start, base.finish, base.extra_json
        self.stages = dict(base.stages)
        for slot, (_, fact) in self.saved.items():
            self.show(slot, fact)
        for batch in self.in_flight:
            for slot, fact in batch.facts.items():
                self.show(slot, fact)
        for slot, fact in self.pending.items():
            self.show(slot, fact)
        self.torn = self.shows_lost = False
        self.names = None  # others may have given a stage another name
        self._end_live_stages()

    def _end_live_stages(self) -> None:
        for key, live in list(self.live.items()):
            stage = self.stages.get(key)
            if stage is not None and stage.finished_at is not None:
                self.forget_live(live, ENDED)
            elif stage is not None and stage != live.begun:
                live.entry = None

    def add_live(self, live: LiveStage) -> None:
        """
        Take charge of a stage that was begun here, in the place of an older one of its key.
        """
        older = self.live.get(live.key)
        if older is not None:
            self.forget_live(older, Phase.REPLACED)
        self.live[live.key] = live
        live.entry = self
        if self.names is not None:
            self._index(live)

    def forget_live(self, live: LiveStage, phase: Phase) -> None:
        """
        Let go of a stage that was begun here.
        """
        live.phase = phase
        live.entry = None
        self.live.pop(live.key, None)
        if self.names is not None and live.begun is not None:
            self.names.get((live.begun.name, live.key[1]), set()).discard(live.key)

    def live_named(self, name: str, actor_key: str) -> list[LiveStage]:
        """
        Return the running stages of that name and actor that were begun here, by the name that they have now.
        """
        if self.names is None:
            self.names = {}
            self.unchecked = 0
            for live in self.live.values():
                self._index(live)
        lives = [self.live[key] for key in self.names.get((name, actor_key), ()) if key in self.live]
        return [live for live in lives if self._name_of(live) == name]

    def _index(self, live: LiveStage) -> None:
        assert self.names is not None
        self.names.setdefault((self._name_of(live), live.key[1]), set()).add(live.key)

    def _name_of(self, live: LiveStage) -> str:
        stage = self.stages.get(live.key) or live.begun
        assert stage is not None
        return stage.name

    def learn(self, answer: Answer, began: int, tick: int) -> bool:
        """
        Take over what the Store said, unless something newer is known; tell whether the view was made anew.

        Args:
            answer: what the Store said.
            began: the cache's tick when the Store was asked.
            tick: the cache's tick now.
        """
        document = answer.document if isinstance(answer, Found) else None
        if self.base is None and document is None:  # what was known then has left the cache since
            return False
        self.asked = True
        if self.base is not None and isinstance(answer, Changes):
            revision = self.base.revision
            if answer.since == revision or answer.since.is_older_than(revision):
                document = lay_over(self.base.document, _facts_of(answer.update))
        if document is not None and self._move_base(Known(answer.revision, document), began, tick):
            return True
        if self.shows_lost and self.base is not None and answer.revision == self.base.revision:
            self.rebuild()
            return True
        return False

    def _move_base(self, known: Known, began: int, tick: int) -> bool:
        base = self.base
        if base is not None:
            if known.revision.incarnation != base.revision.incarnation:
                # The row was deleted and written anew, or this answer is from before that happened: only an
                # answer that was asked for after the base was learned can tell.
                if began < self.learned:
                    return False
            elif known.revision.is_older_than(base.revision) or known.revision == base.revision:
                return False
        self.base, self.learned = known, tick
        self.saved = {
            slot: (revision, fact)
            for slot, (revision, fact) in self.saved.items()
            if revision is None or known.revision.is_older_than(revision)
        }
        self.rebuild()
        return True

    def settle(self, batch: Batch, merged: Merged, began: int, tick: int) -> bool:
        """
        Note that a batch was saved; tell whether the Store should be asked for the document.
        """
        self.in_flight.remove(batch)
        self.lost.difference_update(batch.facts)
        revision = merged.revision
        if revision is not None:
            document = merged.document
            if document is None and self._follows(merged):
                document = lay_over(self.base.document if self.base else Document(opid=self.opid), batch.facts)
            if document is not None:
                self.asked = True
                if self._move_base(Known(revision, document), began, tick):
                    return False
            base = self.base.revision if self.base else None
            if base is not None and base.incarnation == revision.incarnation and not base.is_older_than(revision):
                # A load was faster and holds these facts, or what others made of them since.
                self.rebuild()
                return False
        for slot, fact in batch.facts.items():
            self.saved[slot] = (revision, fact)
        return revision is not None

    def _follows(self, merged: Merged) -> bool:
        """
        Whether nobody else can have written between the base and this save.
        """
        assert merged.revision is not None
        if self.base is None:
            return merged.changed and merged.revision.version == 1
        known = self.base.revision
        return merged.revision == Revision(known.incarnation, known.version + int(merged.changed))


def lay_over(document: Document, facts: Mapping[Slot, Fact]) -> Document:
    """
    Lay facts over a document that the Store has already accepted them for.
    """
    start, finish = document.start, document.finish
    stages = dict(document.stages)
    for fact in facts.values():
        if isinstance(fact, Stage):
            stages[fact.key] = fact
        elif isinstance(fact, Start):
            start = merge_start(start, fact)
        else:
            finish = merge_finish(finish, fact)
    return msgspec.structs.replace(document, start=start, finish=finish, stages=stages)


def _facts_of(update: Update) -> dict[Slot, Fact]:
    facts: dict[Slot, Fact] = {stage.key: stage for stage in update.stages}
    if update.start:
        facts[START] = update.start
    if update.finish:
        facts[FINISH] = update.finish
    return facts
