"""
Tests of the layers of a cached operation: what the Store said, under what was saved, is being saved, and waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from timeline_trio import StoreRejected
from timeline_trio._cache._cache import Cache
from timeline_trio.model import Document, Finish, Stage, StageKey, Start, Status, Update
from timeline_trio.store import Answer, Changes, Found, Known, Merged, Revision, Unchanged

from .recording import NEW_YEAR

if TYPE_CHECKING:
    from timeline_trio._cache._entry import Entry


def make_cache(**options: int) -> Cache:
    errors: list[tuple[str, Exception]] = []
    limits = {"max_timelines": 10, "max_pending_timelines": 10, "max_pending_updates": 10} | options
    return Cache("writer", report=lambda opid, error: errors.append((opid, error)), **limits)


def stage(name: str, id: str = "s", *, running: bool = False) -> Stage:  # noqa: A002
    if running:
        return Stage(id=id, name=name, started_at=NEW_YEAR)
    return Stage.completed(name, NEW_YEAR, NEW_YEAR + 1, id=id)


def document(*stages: Stage, start: Start | None = None, finish: Finish | None = None) -> Document:
    return Document(opid="op", start=start, finish=finish, stages={each.key: each for each in stages})


def found(version: int, *stages: Stage, incarnation: int = 1) -> Found:
    return Found(opid="op", revision=Revision(incarnation, version), document=document(*stages))


def names(cache: Cache) -> dict[str, str]:
    entry = cache.peek("op")
    assert entry is not None
    return {each.id: each.name for each in cache.view(entry)[0].stages.values()}


def record(cache: Cache, fact: Stage) -> None:
    cache.accept("op", fact.key, fact)


def save(cache: Cache, merged: Merged, began: int | None = None) -> bool:
    frozen = cache.freeze("op")
    assert frozen is not None
    entry, batch, _ = frozen
    return cache.saved(entry, batch, merged, cache.next_tick() if began is None else began)


def merged(version: int, *stages: Stage, changed: bool = True, bare: bool = False, incarnation: int = 1) -> Merged:
    return Merged(
        revision=Revision(incarnation, version), changed=changed, document=None if bare else document(*stages)
    )


def entry_of(cache: Cache) -> Entry:
    entry = cache.peek("op")
    assert entry is not None
    return entry


def test_local_facts_stand_over_what_is_learned() -> None:
    # parity 48, 72
    cache = make_cache()
    record(cache, stage("in flight", "a"))
    assert cache.freeze("op") is not None
    record(cache, stage("pending", "b"))
    cache.learn(found(1, stage("remote", "a"), stage("remote", "b"), stage("remote", "c")), 0, "make")
    assert names(cache) == {"a": "in flight", "b": "pending", "c": "remote"}
    assert cache.dirty_opids() == ["op"]
    record(cache, stage("pending", "a"))
    cache.learn(found(2, stage("newer", "a"), stage("newer", "c")), 0, "make")
    assert names(cache) == {"a": "pending", "b": "pending", "c": "newer"}


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_or_equal_revision_is_ignored(version: int) -> None:
    # parity 72
    cache = make_cache()
    cache.learn(found(2, stage("known")), 0, "make")
    cache.learn(found(version, stage("slow")), cache.next_tick(), "make")
    assert names(cache) == {"s": "known"}


def test_a_slow_read_does_not_undo_a_newer_save() -> None:
    # parity 72
    cache = make_cache()
    began = cache.next_tick()
    record(cache, stage("new"))
    save(cache, merged(2, stage("new")))
    cache.learn(found(1, stage("old")), began, "make")
    assert names(cache) == {"s": "new"}
    assert cache.dirty_opids() == []


def test_a_row_written_anew_replaces_only_if_it_was_asked_for_later() -> None:
    cache = make_cache()
    early = cache.next_tick()
    cache.learn(found(5, stage("first row")), cache.next_tick(), "make")
    cache.learn(found(1, stage("before"), incarnation=2), early, "make")
    assert names(cache) == {"s": "first row"}
    cache.learn(found(1, stage("second row", "t"), incarnation=2), cache.next_tick(), "make")
    assert names(cache) == {"t": "second row"}


def test_local_facts_outlive_the_row_that_they_were_not_saved_in_yet() -> None:
    cache = make_cache()
    cache.learn(found(5, stage("first row")), cache.next_tick(), "make")
    record(cache, stage("mine", "m"))
    cache.learn(found(1, incarnation=2), cache.next_tick(), "make")
    assert names(cache) == {"m": "mine"}


def test_a_save_with_its_document_is_also_a_load() -> None:
    cache = make_cache()
    record(cache, stage("mine", "m"))
    assert not save(cache, merged(7, stage("mine", "m"), stage("theirs", "t")))
    assert names(cache) == {"m": "mine", "t": "theirs"}
    entry = entry_of(cache)
    assert entry.asked
    assert entry.is_flushed
    assert entry.base is not None
    assert entry.base.revision == Revision(1, 7)


def test_a_first_save_without_its_document_makes_the_base() -> None:
    cache = make_cache()
    record(cache, stage("mine", "m"))
    assert not save(cache, merged(1, bare=True))
    entry = entry_of(cache)
    assert entry.base == Known(Revision(1, 1), document(stage("mine", "m")))
    assert not entry.has_local_facts


def test_the_next_save_without_its_document_moves_the_base() -> None:
    cache = make_cache()
    cache.learn(found(4, stage("remote", "r")), cache.next_tick(), "make")
    record(cache, stage("mine", "m"))
    assert not save(cache, merged(5, bare=True))
    entry = entry_of(cache)
    assert entry.base == Known(Revision(1, 5), document(stage("remote", "r"), stage("mine", "m")))
    record(cache, stage("mine", "m"))
    assert not save(cache, merged(5, changed=False, bare=True))
    assert not entry.has_local_facts


@pytest.mark.parametrize("answer", [merged(6, bare=True), merged(1, bare=True, incarnation=2)])
def test_a_save_that_shows_foreign_changes_keeps_its_facts_on_top_until_a_load(answer: Merged) -> None:
    cache = make_cache()
    cache.learn(found(4, stage("remote", "r"), stage("remote", "m")), cache.next_tick(), "make")
    record(cache, stage("mine", "m"))
    assert save(cache, answer)
    entry = entry_of(cache)
    assert entry.base is not None
    assert (entry.base.revision, entry.has_local_facts, entry.is_flushed) == (Revision(1, 4), True, True)
    assert names(cache) == {"r": "remote", "m": "mine"}
    assert answer.revision is not None
    incarnation, version = answer.revision.incarnation, answer.revision.version
    cache.learn(
        found(version, stage("theirs", "r"), stage("theirs", "m"), incarnation=incarnation), cache.next_tick(), "make"
    )
    assert names(cache) == {"r": "theirs", "m": "theirs"}
    assert not entry.has_local_facts


def test_saved_facts_stay_on_top_of_a_load_that_cannot_hold_them_yet() -> None:
    cache = make_cache()
    cache.learn(found(4, stage("remote", "m")), cache.next_tick(), "make")
    record(cache, stage("mine", "m"))
    assert save(cache, merged(6, bare=True))
    cache.learn(found(5, stage("theirs", "m"), stage("theirs", "r")), cache.next_tick(), "make")
    assert names(cache) == {"m": "mine", "r": "theirs"}
    cache.learn(found(6, stage("mine", "m")), cache.next_tick(), "make")
    assert names(cache) == {"m": "mine"}
    assert not entry_of(cache).has_local_facts


def test_a_save_onto_a_row_of_others_that_was_never_loaded_keeps_its_facts_on_top() -> None:
    cache = make_cache()
    record(cache, stage("mine", "m"))
    assert save(cache, merged(3, bare=True))
    assert entry_of(cache).base is None
    assert names(cache) == {"m": "mine"}


def test_a_load_that_was_faster_than_its_save_shows_what_others_made_of_the_facts_since() -> None:
    cache = make_cache()
    record(cache, stage("mine", "m"))
    frozen = cache.freeze("op")
    assert frozen is not None
    began = cache.next_tick()
    cache.learn(found(2, stage("theirs", "m")), cache.next_tick(), "make")
    assert names(cache) == {"m": "mine"}
    assert not cache.saved(frozen[0], frozen[1], merged(1, stage("mine", "m")), began)
    assert names(cache) == {"m": "theirs"}
    assert not entry_of(cache).has_local_facts


def test_a_save_into_a_row_that_is_known_to_be_gone_keeps_its_facts_on_top() -> None:
    cache = make_cache()
    record(cache, stage("mine", "m"))
    frozen = cache.freeze("op")
    assert frozen is not None
    began = cache.next_tick()
    cache.learn(found(1, stage("second row", "t"), incarnation=2), cache.next_tick(), "make")
    assert cache.saved(frozen[0], frozen[1], merged(9, stage("mine", "m")), began)
    assert names(cache) == {"t": "second row", "m": "mine"}


def test_a_store_that_keeps_nothing_leaves_the_facts_here() -> None:
    # parity 47
    cache = make_cache()
    record(cache, stage("mine", "m"))
    assert not save(cache, Merged(revision=None, changed=False))
    assert names(cache) == {"m": "mine"}
    assert entry_of(cache).is_flushed


def test_changes_are_laid_over_the_document_that_they_came_after() -> None:
    cache = make_cache()
    start, finish = Start(name="job", at=1), Finish(at=2, status=Status.FAILED, error="bad")
    cache.learn(found(4, stage("old", "a"), stage("old", "b")), cache.next_tick(), "make")
    update = Update(stages=(stage("new", "b"), stage("new", "c")), start=start, finish=finish)
    changes = Changes(opid="op", since=Revision(1, 4), revision=Revision(1, 6), update=update)
    cache.learn(changes, cache.next_tick(), "make")
    assert names(cache) == {"a": "old", "b": "new", "c": "new"}
    view, _ = cache.view(entry_of(cache))
    assert (view.start, view.finish) == (start, finish)


def test_changes_since_an_older_revision_hold_all_that_came_after_a_newer_one() -> None:
    cache = make_cache()
    cache.learn(found(4, stage("old", "a")), cache.next_tick(), "make")
    record(cache, stage("mine", "m"))
    save(cache, merged(5, stage("old", "a"), stage("mine", "m")))
    update = Update(stages=(stage("mine", "m"), stage("theirs", "t")))
    cache.learn(
        Changes(opid="op", since=Revision(1, 4), revision=Revision(1, 6), update=update), cache.next_tick(), "make"
    )
    assert names(cache) == {"a": "old", "m": "mine", "t": "theirs"}


@pytest.mark.parametrize(
    "answer",
    [
        Changes(opid="op", since=Revision(1, 5), revision=Revision(1, 6), update=Update()),
        Changes(opid="op", since=Revision(2, 4), revision=Revision(2, 6), update=Update()),
        Changes(opid="op", since=Revision(1, 2), revision=Revision(1, 3), update=Update(stages=(stage("old"),))),
        Unchanged(opid="op", revision=Revision(1, 4)),
    ],
)
def test_answers_that_say_nothing_about_the_known_document_leave_it(answer: Answer) -> None:
    cache = make_cache()
    cache.learn(found(4, stage("known")), cache.next_tick(), "make")
    cache.learn(answer, cache.next_tick(), "make")
    assert names(cache) == {"s": "known"}


@pytest.mark.parametrize(
    "answer",
    [
        Unchanged(opid="op", revision=Revision(1, 4)),
        Changes(opid="op", since=Revision(1, 4), revision=Revision(1, 5), update=Update(stages=(stage("new"),))),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_an_answer_about_a_document_that_is_gone_is_not_taken_for_one(
    answer: Answer,
    recorded: bool,  # noqa: FBT001
) -> None:
    cache = make_cache()
    if recorded:
        record(cache, stage("mine", "m"))
    assert cache.learn(answer, cache.next_tick(), "make") is None
    entry = cache.peek("op")
    assert (entry is not None) is recorded
    assert entry is None or not entry.asked


def test_a_retry_repeats_the_frozen_batch_whatever_is_recorded_meanwhile() -> None:
    # parity 32
    cache = make_cache()
    record(cache, stage("first"))
    frozen = cache.freeze("op")
    record(cache, stage("second"))
    again = cache.freeze("op")
    assert frozen is not None
    assert again is not None
    assert again[1] is frozen[1]
    assert again[2].update is frozen[2].update
    assert [each.name for each in again[2].update.stages] == ["first"]
    assert names(cache) == {"s": "second"}


def test_batches_carry_the_writer_and_a_number_that_grows() -> None:
    cache = make_cache()
    updates = []
    for _ in range(2):
        record(cache, stage("x"))
        frozen = cache.freeze("op")
        assert frozen is not None
        updates.append(frozen[2].update)
        save(cache, merged(1, bare=True))
    assert [(update.writer, update.sequence) for update in updates] == [("writer", 1), ("writer", 2)]


def test_a_view_is_detached_from_what_comes_later() -> None:
    cache = make_cache()
    record(cache, stage("first"))
    before, flushed = cache.view(entry_of(cache))
    record(cache, stage("second"))
    record(cache, stage("other", "o"))
    assert [each.name for each in before.stages.values()] == ["first"]
    assert not flushed


def test_members_that_a_newer_version_wrote_are_kept_with_the_document() -> None:
    cache = make_cache()
    answer = Found(opid="op", revision=Revision(1, 1), document=Document(opid="op", extra_json='{"new":1}'))
    cache.learn(answer, cache.next_tick(), "make")
    record(cache, stage("mine"))
    save(cache, merged(2, bare=True))
    assert cache.view(entry_of(cache))[0].extra_json == '{"new":1}'


def test_running_stages_are_found_by_name_and_actor() -> None:
    cache = make_cache()
    cache.learn(
        found(1, stage("copy", "a", running=True), stage("copy", "b"), stage("x", "c", running=True)), 0, "make"
    )
    assert [each.id for each in cache.running_named("op", "copy", "")] == ["a"]
    assert cache.running_named("op", "copy", "id:other") == []
    assert cache.running_named("unknown", "copy", "") == []
    assert cache.live_named("op", "copy", "") == []
    assert cache.live_named("unknown", "copy", "") == []
    assert cache.live_stages("unknown") == []
    key: StageKey = ("a", "")
    assert cache.known(["op", "unknown"])["op"].document.stages[key].name == "copy"


def test_the_age_of_what_waits_counts_from_its_recording_and_not_from_the_save_before_it() -> None:
    cache = make_cache()
    record(cache, stage("first", "a"))
    frozen = cache.freeze("op")
    assert frozen is not None
    entry, batch, _ = frozen
    record(cache, stage("second", "b"))
    recorded_at = time.monotonic()
    cache.saved(entry, batch, merged(1), cache.next_tick())
    assert entry.dirty_since <= recorded_at
    assert cache.oldest_pending >= time.monotonic() - recorded_at - 0.01


def test_operations_come_in_the_order_of_their_oldest_unsaved_facts() -> None:
    cache = make_cache()
    record(cache, stage("first", "a"))
    frozen = cache.freeze("op")
    assert frozen is not None
    record(cache, stage("second", "b"))
    cache.accept("other", stage("third").key, stage("third"))
    cache.saved(frozen[0], frozen[1], merged(1), cache.next_tick())
    assert cache.dirty_opids() == ["op", "other"]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (found(2, stage("known")), {"s": "known"}),
        (Unchanged(opid="op", revision=Revision(1, 2)), {"s": "known"}),
        (
            Changes(opid="op", since=Revision(1, 1), revision=Revision(1, 2), update=Update(stages=(stage("known"),))),
            {"s": "known"},
        ),
        (found(1, stage("older")), {"s": "known", "l": "lost"}),
        (Unchanged(opid="op", revision=Revision(1, 1)), {"s": "known", "l": "lost"}),
    ],
)
def test_a_lost_fact_is_shown_until_the_store_answers(answer: Answer, shown: dict[str, str]) -> None:
    cache = make_cache()
    cache.learn(found(2, stage("known")), cache.next_tick(), "make")
    record(cache, stage("lost", "l"))
    frozen = cache.freeze("op")
    assert frozen is not None
    assert cache.rejected(frozen[0], frozen[1], StoreRejected("op", "never")) == 1
    assert names(cache) == {"s": "known", "l": "lost"}
    changes: list[bool] = []
    cache.watch(entry_of(cache), lambda: changes.append(True))
    for _ in range(2):
        cache.learn(answer, cache.next_tick(), "make")
    assert names(cache) == shown
    assert changes == [True] * (len(shown) == 1)
    assert not entry_of(cache).is_flushed
