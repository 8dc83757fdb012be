"""
Checks of `merge` and `merge_many`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio.lowlevel

from .._errors import StoreRejected
from .._model._document import Update, merge
from .._model._values import Finish, Stage, Start, Status
from .._store._contract import Known, Merged, MergeRequest
from ._trial import SECOND, Trial, expect, promise, resolve, stage, stages

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from .._store._contract import MergesMany, Revision

_NAMELESS = Stage(id="nameless", name="", started_at=0)


@promise("The first merge creates the operation, at version 1.")
async def _new_operation_is_created(trial: Trial) -> None:
    merged = await trial.store.merge("op", stages(stage("a")))
    known = await trial.known("op")
    expect(merged.changed, "the answer says that something changed")
    expect(merged.revision == known.revision, "the answer's revision is the one that is read")
    expect(known.revision.version == 1, "the version is 1")
    expect(list(known.document.stages.values()) == [stage("a")], "the stage is read as it was written")
    expect(merged.document is None or merged.document == known.document, "the answer's document is what is read")


@promise("The same update again, whose first reply may have been lost, changes nothing.")
async def _repeat_is_harmless(trial: Trial) -> None:
    update = Update(
        start=Start(name="deploy", at=SECOND, attributes_json='{"b":[1.0,"x"]}', live=True),
        finish=Finish(at=2 * SECOND, status=Status.FAILED, error="no", live=True),
        stages=(stage("a", error="no"),),
        writer="w",
        sequence=1,
    )
    first = await trial.store.merge("op", update)
    before = await trial.known("op")
    trial.tick()
    again = await trial.store.merge("op", update)
    expect(not again.changed, "the answer says that nothing changed")
    expect(again.revision == first.revision, "the revision stays")
    expect(await trial.known("op") == before, "the document stays")
    expect(again.document is None or again.document == before.document, "the answer's document is what is read")
    if "clock" in trial.abilities:
        expect(not await trial.store.latest(trial.clock() - SECOND, 9), "the update time stays")


@promise("A live boundary that says what is known already keeps the known time; an explicit time replaces it.")
async def _live_boundary_keeps_its_first_time(trial: Trial) -> None:
    await trial.store.merge("op", Update(start=Start(name="deploy", at=SECOND, live=True)))
    again = await trial.store.merge("op", Update(start=Start(name="deploy", at=2 * SECOND, live=True)))
    expect(not again.changed, "a restarted process changes nothing by starting again")
    await trial.store.merge("op", Update(start=Start(name="deploy", at=3 * SECOND)))
    expect((await trial.document("op")).started_at == 3 * SECOND, "an explicit time is taken")


@promise("Each merge that changes something steps the version by one, and the incarnation stays.")
async def _version_counts_changes(trial: Trial) -> None:
    revisions: list[Revision] = []
    for number in range(5):
        await trial.store.merge("op", stages(stage("a", at=number)))
        await trial.store.merge("op", stages(stage("a", at=number)))
        revisions.append((await trial.known("op")).revision)
    expect([revision.version for revision in revisions] == [1, 2, 3, 4, 5], "the versions are 1 to 5")
    expect(len({revision.incarnation for revision in revisions}) == 1, "the incarnation is the same")


@promise("Facts of one key replace each other in the order of acceptance, and leave the others alone.")
async def _last_accepted_wins(trial: Trial) -> None:
    await trial.store.merge("op", Update(finish=Finish(at=9 * SECOND, status=Status.SUCCEEDED)))
    await trial.store.merge("op", stages(stage("a", at=5, error="no"), stage("b")))
    await trial.store.merge("op", Update(start=Start(name="deploy", at=SECOND), stages=(stage("a", ended=False),)))
    document = await trial.document("op")
    expect(document.stages["a", ""] == stage("a", ended=False), "a late running state reopens an ended stage")
    expect(document.stages["b", ""] == stage("b"), "another stage is left alone")
    expect(
        document.status is Status.SUCCEEDED and document.name == "deploy",
        "boundaries may come in either order",
    )


@promise("An update without facts is no change, and creates no operation.")
async def _empty_update_creates_nothing(trial: Trial) -> None:
    merged = await trial.store.merge("op", Update())
    expect(not merged.changed, "the answer says that nothing changed")
    expect(not await trial.store.mget(["op"]), "the operation is not found")


@promise("What the caller knows of the operation may be fresh or stale; nothing is lost by building on it.")
async def _known_document_is_a_base(trial: Trial) -> None:
    await trial.store.merge("op", stages(stage("a")))
    old = await trial.known("op")
    fresh = await trial.store.merge("op", stages(stage("b")), old)
    expect(fresh.revision is not None and fresh.revision.version == old.revision.version + 1, "fresh: one step")
    await trial.store.merge("op", stages(stage("c")), old)
    names = {key[0] for key in (await trial.document("op")).stages}
    expect(names == {"a", "b", "c"}, "with a stale base, what came after it is kept")
    repeat = await trial.store.merge("op", stages(stage("c")), await trial.known("op"))
    expect(not repeat.changed, "with a fresh base, a repeat is still no change")


@promise("A merge after a deletion writes its update alone, into a new incarnation.", "delete")
async def _deleted_operation_is_written_anew(trial: Trial) -> None:
    await trial.store.merge("op", stages(stage("a")))
    old = await trial.known("op")
    await trial.delete("op")
    trial.tick()
    merged = await trial.store.merge("op", stages(stage("b")), old)
    new = await trial.known("op")
    expect(set(new.document.stages) == {("b", "")}, "what was known of the deleted one does not come back")
    expect(merged.revision == new.revision, "the answer's revision is the one that is read")
    expect(new.revision.incarnation != old.revision.incarnation, "the incarnation is another one")
    expect(new.revision.version == 1, "the version is 1 again")
    answer = await trial.store.read("op", old)
    document = getattr(answer, "document", None)
    expect(document == new.document, "one who knows the deleted one is answered with the whole document")


@promise("An update with an invalid item raises StoreRejected, and nothing of it is written.")
async def _invalid_update_is_rejected_whole(trial: Trial) -> None:
    await trial.store.merge("op", stages(stage("a")))
    before = await trial.known("op")
    for update in (
        stages(stage("b"), _NAMELESS),
        Update(start=Start(name="", at=0), stages=(stage("b"),)),
        Update(finish=Finish(at=0, status=Status.RUNNING), stages=(stage("b"),)),
        stages(stage("b", name="\ud800")),
    ):
        await _expect_rejected(trial.store.merge("op", update))
        await _expect_rejected(trial.store.merge("new", update))
    for opid in ("", " op", "a\nb", "x" * 192, "\ud800"):
        await _expect_rejected(trial.store.merge(opid, stages(stage("b"))))
    expect(await trial.known("op") == before, "the operation stays as it was")
    expect(not await trial.store.mget(["new"]), "no operation is created")


@promise(
    "`merge_many` gives an answer a request in their order, and what is rejected stops nobody else.",
    "merge_many",
)
async def _merge_many_isolates_failures(trial: Trial) -> None:
    merge_many = cast("MergesMany", trial.store).merge_many
    expect(list(await merge_many([])) == [], "no request, no answer")
    await trial.store.merge("z", stages(stage("a")))
    known = await trial.known("z")
    answers = await merge_many(
        [
            MergeRequest("z", stages(stage("b")), known),
            MergeRequest("bad", stages(_NAMELESS)),
            MergeRequest("\ud800", stages(stage("b"))),
            MergeRequest("a", stages(stage("b"))),
            MergeRequest("same", Update()),
        ]
    )
    kinds = [type(answer) for answer in answers]
    expect(kinds[0] is kinds[3] is kinds[4] is Merged, "the valid requests are done")
    expect(
        isinstance(answers[1], StoreRejected) and isinstance(answers[2], StoreRejected),
        "the others are rejected",
    )
    read = await trial.store.mget(["a", "bad", "same", "z"])
    found = {answer.opid: resolve(answer, None)[0] for answer in read}
    expect(found.keys() == {"a", "z"}, "nothing is created by a rejected or empty update")
    for answer, opid in ((answers[0], "z"), (answers[3], "a")):
        expect(getattr(answer, "revision", None) == found[opid], "each revision is the one that is read")
    merged = merge(known.document, stages(stage("b")))[0]
    expect((await trial.known("z")) == Known(found["z"], merged), "the document is merged as by merge")


async def _expect_rejected(merging: Awaitable[object]) -> None:
    rejected = False
    await trio.lowlevel.checkpoint()
    try:
        await merging
    except StoreRejected:
        rejected = True
    expect(rejected, "StoreRejected is raised")


CHECKS: Final = (
    _new_operation_is_created,
    _repeat_is_harmless,
    _live_boundary_keeps_its_first_time,
    _version_counts_changes,
    _last_accepted_wins,
    _empty_update_creates_nothing,
    _known_document_is_a_base,
    _deleted_operation_is_written_anew,
    _invalid_update_is_rejected_whole,
    _merge_many_isolates_failures,
)
