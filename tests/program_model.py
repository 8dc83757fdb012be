"""
What generated programs of managers are judged by: plain lists of what was accepted and of what was merged.

Each recording carries a number of its own, so that every fact tells which recording it is of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from timeline_trio import Status
from timeline_trio.model import Stage, Start
from timeline_trio.store import NOTHING_KNOWN, MemoryStore, Merged, MergeRequest, StoreError, StoreRejected

from .case_support import WrappedStore, virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from timeline_trio import Manager, Snapshot
    from timeline_trio.model import Document, Fact, Update
    from timeline_trio.store import Answer, AnswerOrError, Known

Slot = tuple[str, str]
POISON = "poison"  # the error of a stage that the store refuses for good


def number_of(fact: Fact) -> int:
    """
    Return the number of the recording that a fact is of.
    """
    if isinstance(fact, Stage):
        number = fact.attributes.get("number", 0)
        assert isinstance(number, int)
        return max(number, int(fact.code or 0))
    return int(fact.name) if isinstance(fact, Start) else int(fact.error)


def facts_of(source: Update | Document) -> dict[Slot, Fact]:
    """
    Return the facts of an update or a document by their places.
    """
    stages = source.stages if isinstance(source.stages, tuple) else tuple(source.stages.values())
    facts: dict[Slot, Fact] = {(stage.id, "stage"): stage for stage in stages}
    if source.start:
        facts["", "start"] = source.start
    if source.finish:
        facts["", "finish"] = source.finish
    return facts


class Ledger(WrappedStore):
    """
    Keeps a list of what was merged, in order, and refuses poison. Answers may be on their way for a while.

    Attributes:
        merged: operation, place and number of each fact that was merged.
        slow_replies: seconds from a merge to its reply.
        slow_reads: seconds from a read to its answer.
    """

    def __init__(self) -> None:
        super().__init__(MemoryStore(clock=virtual_time))
        self.merged: list[tuple[str, Slot, int]] = []
        self.slow_replies: float = 0
        self.slow_reads: float = 0

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        if any(stage.error == POISON for stage in update.stages):
            await trio.lowlevel.checkpoint()
            raise StoreRejected(opid, "poison")
        merged = await super().merge(opid, update, known)
        self.merged += [(opid, slot, number_of(fact)) for slot, fact in facts_of(update).items()]
        await trio.sleep(self.slow_replies)
        return merged

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        answer = await super().read(opid, known)
        await trio.sleep(self.slow_reads)
        return answer

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        answers = await super().mget(opids, known)
        await trio.sleep(self.slow_reads)
        return answers

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        answers = await super().latest(after, limit, known)
        await trio.sleep(self.slow_reads)
        return answers

    async def merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged | StoreError]:
        answers: list[Merged | StoreError] = []
        for request in requests:
            try:
                answers.append(await self.merge(request.opid, request.update, request.known))
            except StoreRejected as error:
                answers.append(error)
        return answers

    def places(self, opid: str, slot: Slot, number: int) -> list[int]:
        """
        Return where in the order of merges a recording was merged; several times if it was repeated.
        """
        return [place for place, merge in enumerate(self.merged) if merge == (opid, slot, number)]


class Accepted(msgspec.Struct):
    """
    One accepted recording.

    Attributes:
        number: its number, in the order of acceptance of all managers.
        opid: the operation.
        slot: its place in it.
        poison: whether the store refuses it.
        saved_by: the number of the first recording after it was certainly saved.
        forgotten: whether its operation was evicted since.
    """

    number: int
    opid: str
    slot: Slot
    poison: bool
    saved_by: int | None = None
    forgotten: bool = False


class ManagerModel:
    """
    What one manager has accepted, was told and has shown.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.accepted: list[Accepted] = []
        self.refused = 0
        self.reported: list[tuple[str, Exception]] = []
        self.lost: dict[str, int] = {}
        self.manager: Manager | None = None
        self._seen: dict[tuple[str, Slot], int] = {}

    def on_error(self, opid: str, error: Exception) -> None:
        self.reported.append((opid, error))

    def note(self, recording: Accepted) -> None:
        """
        Note a recording that was accepted.
        """
        self.accepted.append(recording)

    def note_saved(self, opid: str, before: int, now: int) -> None:
        """
        Note that a flush has succeeded that began before a recording of that number.
        """
        for each in self.accepted:
            if each.opid == opid and each.number < before and each.saved_by is None:
                each.saved_by = now

    def note_evicted(self, opid: str) -> None:
        """
        Note that the local copy is gone, or will be.
        """
        for each in self.accepted:
            each.forgotten = each.forgotten or each.opid == opid

    def latest(self) -> dict[tuple[str, Slot], Accepted]:
        """
        Return the last recording for each place.
        """
        return {(each.opid, each.slot): each for each in self.accepted}

    def is_merged(self, each: Accepted) -> bool:
        """
        Whether a recording has reached the store.
        """
        return bool(self._ledger.places(each.opid, each.slot, each.number))

    def check_counters(self) -> None:
        """
        Assert that the counters are those of the model, and add up.
        """
        assert self.manager is not None
        counters = self.manager.statistics()
        accounted = counters.saved_updates + counters.superseded_updates + counters.pending_updates
        accounted += counters.rejected_updates + counters.dropped_updates
        assert counters.accepted_updates == accounted == len(self.accepted), counters
        assert counters.refused_updates == self.refused
        assert counters.rejected_updates <= sum(each.poison for each in self.accepted)
        unmerged = sum(not self.is_merged(each) for each in self.latest().values())
        losses = counters.rejected_updates + counters.dropped_updates
        assert unmerged <= counters.pending_updates + losses, (unmerged, counters)
        rejections = sum(isinstance(error, StoreRejected) for _, error in self.reported)
        assert rejections == counters.rejected_updates, "each rejected update is reported"
        if counters.dropped_updates:
            assert self.reported or self.lost, "losses are reported"

    def check_view(self, snapshot: Snapshot) -> None:
        """
        Assert that the view never goes back, shows what was recorded here, and knows what is not saved.
        """
        opid = snapshot.opid
        facts = facts_of(snapshot.document)
        for slot, fact in facts.items():
            places = self._ledger.places(opid, slot, number_of(fact))
            if places:
                seen = self._seen.get((opid, slot), -1)
                assert places[-1] >= seen, f"the view of {slot} went back from merge {seen} to {places}"
                self._seen[opid, slot] = max(seen, places[0])
        mine = [each for (other, _), each in self.latest().items() if other == opid]
        for each in mine:
            if not each.poison and not each.forgotten and not self.is_merged(each):
                assert number_of(facts[each.slot]) == each.number, "what is not saved yet is shown"
            if snapshot.collection.local_flushed and not each.forgotten:
                assert self.is_merged(each), "flushed, and yet not saved"

    def check_end(self) -> None:
        """
        Assert, once the manager is closed, that nothing was lost but what was counted and reported.
        """
        assert self.manager is not None
        self.check_counters()
        counters = self.manager.statistics()
        assert counters.pending_updates == 0
        told = {opid for opid, _ in self.reported} | self.lost.keys()
        for each in self.latest().values():
            if self.is_merged(each):
                continue
            assert each.opid in told, f"{each} was lost without a word"
            assert each.poison or counters.dropped_updates, f"{each} was lost and is not counted"


def check_store(document: Document, models: Sequence[ManagerModel], ledger: Ledger) -> None:
    """
    Assert that each fact of a stored document is the last accepted one, where that is determined.
    """
    opid = document.opid
    facts = facts_of(document)
    owners = {each.number: model for model in models for each in model.accepted}
    for slot in {each.slot for model in models for each in model.accepted if each.opid == opid}:
        recordings = [
            each
            for model in models
            for each in model.accepted
            if each.opid == opid and each.slot == slot and model.is_merged(each)
        ]
        if not recordings:
            assert slot not in facts
            continue
        stored = next(each for each in recordings if each.number == number_of(facts[slot]))
        for other in recordings:
            later = other.number > stored.number
            if later and owners[other.number] is owners[stored.number]:
                raise AssertionError(f"{stored} overwrote {other} of the same manager")
            if later and stored.saved_by is not None and other.number >= stored.saved_by:
                raise AssertionError(f"{stored} was saved before {other} was recorded, and is there in its place")
    assert ledger.inner is not None
    if document.finish:
        assert document.status is not Status.UNKNOWN
