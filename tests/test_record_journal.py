"""
Tests of recordings that go into the journal, without the lock: whatever comes in between, each fact is there once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from timeline_trio import ManagerClosed, Status
from timeline_trio._cache._cache import Cache
from timeline_trio._cache._entry import JOURNAL
from timeline_trio._record._beginner import Beginner
from timeline_trio._record._recorder import Recorder
from timeline_trio.model import Actor, Stage
from timeline_trio.store import Merged, Revision

from .recording import interrupting

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeline_trio import StageHandle

PLACES = 200


class Recording:
    """
    A cache, what records into it, and all that was ever saved from it.
    """

    def __init__(self) -> None:
        self.cache = Cache(
            "writer",
            max_timelines=2,
            max_pending_timelines=100,
            max_pending_updates=10_000,
            report=lambda _, error: self.reported.append(error),
        )
        self.reported: list[Exception] = []
        recorder = Recorder(
            self.cache,
            actor=Actor(),
            clock=lambda: 7,
            new_id=None,
            max_fact_bytes=10_000,
            redact=None,
            report=lambda _, error: self.reported.append(error),
        )
        self.begin = Beginner(recorder).begin
        self.saved: dict[str, Stage] = {}
        self.version = 0

    def save(self) -> None:
        """
        Do what the saver does, all of it at once.
        """
        for opid in self.cache.dirty_opids():
            while (frozen := self.cache.freeze(opid)) is not None:
                entry, batch, request = frozen
                self.saved |= {stage.id: stage for stage in request.update.stages}
                self.version += 1
                merged = Merged(revision=Revision(1, self.version), changed=True)
                self.cache.saved(entry, batch, merged, self.cache.next_tick())

    def lost(self) -> int:
        """
        Close, and return how many facts were accepted and not saved.
        """
        self.cache.close()
        return sum(self.cache.release().values())

    def check_counters(self) -> None:
        counters, (_, _, pending) = self.cache.totals()
        assert counters.accepted(pending) == counters.saved + counters.superseded + counters.dropped + pending

    def view(self) -> dict[str, Stage]:
        entry = self.cache.peek("op")
        document = self.cache.view(entry)[0] if entry else None
        return {stage.id: stage for stage in document.stages.values()} if document else {}


@pytest.fixture
def recording() -> Recording:
    """
    A cache with an open journal.
    """
    recording = Recording()
    recording.begin("op", "first").end()
    return recording


def everywhere(
    interruption: Callable[[Recording], object], record: Callable[[Recording], StageHandle]
) -> list[Recording]:
    """
    Interrupt a recording at each place in turn.
    """
    recordings: list[Recording] = []
    for place in range(PLACES):
        recording = Recording()
        recording.begin("op", "first")
        with interrupting(place, lambda recording=recording: interruption(recording)) as met:  # type: ignore[misc]
            record(recording)
        if not met:
            assert place > 5, "it was interrupted at several places"
            return recordings
        recordings.append(recording)
    raise AssertionError("endless")


def begin(recording: Recording) -> StageHandle:
    return recording.begin("op", "copy", attributes={"a": 1})


def begin_and_end(recording: Recording) -> StageHandle:
    handle = begin(recording)
    handle.end()
    return handle


INTERRUPTIONS: dict[str, Callable[[Recording], object]] = {
    "saved": Recording.save,
    "evicted": lambda recording: recording.cache.evict("op"),
    "crowded out": lambda recording: [recording.begin(f"other-{number}", "x") for number in range(3)],
    "looked at": Recording.view,
    "watched": lambda recording: recording.cache.watch(recording.cache.pin("op"), lambda: None),
    "asked for by name": lambda recording: recording.cache.live_named("op", "copy", ""),
    "counted": Recording.check_counters,
    "recorded into": begin_and_end,
}


@pytest.mark.parametrize("name", INTERRUPTIONS)
@pytest.mark.parametrize("record", [begin, begin_and_end])
def test_recording_that_is_interrupted_is_there_in_the_end(
    name: str, record: Callable[[Recording], StageHandle]
) -> None:
    status = Status.RUNNING if record is begin else Status.SUCCEEDED
    for recording in everywhere(INTERRUPTIONS[name], record):
        recording.check_counters()
        recording.save()
        stages = [stage for stage in recording.saved.values() if stage.name == "copy"]
        assert stages[-1].status is status or name == "recorded into"
        assert len(stages) == (2 if name == "recorded into" else 1)
        assert sum(stage.status is status for stage in stages) >= 1
        recording.check_counters()
        assert recording.lost() == 0
        assert recording.reported == []


@pytest.mark.parametrize("record", [begin, begin_and_end])
def test_recording_that_is_interrupted_by_the_end_of_all_is_refused_or_counted_as_lost(
    record: Callable[[Recording], StageHandle],
) -> None:
    outcomes: set[tuple[bool, int]] = set()
    for place in range(PLACES):
        recording = Recording()
        recording.begin("op", "first")
        recording.save()
        recording.begin("op", "second")
        refused = False
        lost: list[int] = []
        with interrupting(place, lambda recording=recording, lost=lost: lost.append(recording.lost())) as met:  # type: ignore[misc]
            try:
                record(recording)
            except ManagerClosed:
                refused = True
        if not met:
            break
        recording.check_counters()
        counters, (_, _, pending) = recording.cache.totals()
        assert pending == 0, "nothing is accepted after the end"
        assert counters.dropped == lost[0]
        outcomes.add((refused, lost[0]))
    assert (True, 1) in outcomes, "refused, and only the stage before it is lost"
    assert (False, 2) in outcomes, "accepted, and lost with the stage before it"
    assert all(refused or count == 2 for refused, count in outcomes)


def test_end_that_is_interrupted_by_another_one_is_one_end() -> None:
    for place in range(PLACES):
        recording = Recording()
        handle = recording.begin("op", "copy")
        with interrupting(place, handle.end) as met:
            handle.end()
        if not met:
            return
        recording.save()
        (stage,) = recording.saved.values()
        assert stage.status is Status.SUCCEEDED
        counters, (_, _, pending) = recording.cache.totals()
        assert (counters.accepted(pending), counters.superseded, pending) == (2, 1, 0)
    raise AssertionError("endless")


def test_journal_is_taken_over_before_it_is_long(recording: Recording) -> None:
    for _ in range(10 * JOURNAL):
        recording.begin("op", "copy")
        entry = recording.cache.peek("op")
        assert entry is not None
        assert len(entry.journal) <= JOURNAL
    assert len(recording.view()) == 10 * JOURNAL + 1


def test_handle_of_an_evicted_operation_keeps_nothing_but_itself(recording: Recording) -> None:
    handle = recording.begin("op", "copy")
    recording.save()
    recording.cache.evict("op")
    assert handle.entry is None
    handle.end()
    recording.save()
    assert recording.saved[handle.stage_id].status is Status.SUCCEEDED
