"""
Checks of `read`, `mget` and `latest`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .._errors import NotFound
from .._model._document import Update
from .._model._values import Finish, Start, Status
from .._store._contract import Unchanged
from ._trial import SECOND, Trial, expect, promise, resolve, stage, stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._store._contract import AnswerOrError

_LONG_AGO = -(10**18)


@promise("A read of an operation that is not there raises NotFound, naming it.")
async def _unknown_operation_is_not_found(trial: Trial) -> None:
    await trial.store.merge("x", stages(stage("a")))
    for opid in ("op", "%", "_", "no such\noperation"):
        named = None
        try:
            await trial.store.read(opid)
        except NotFound as error:
            named = error.opid
        expect(named == opid, "NotFound is raised, and names the operation")


@promise("`mget` returns the operations that exist, once each, whatever was asked for how often.")
async def _mget_returns_each_found_one_once(trial: Trial) -> None:
    opids = [f"op-{number}" for number in range(20)]
    for opid in opids:
        await trial.store.merge(opid, stages(stage(opid)))
    answers = await trial.store.mget([*opids, "missing", "\ud800", *opids])
    expect(sorted(answer.opid for answer in answers) == sorted(opids), "each one that exists comes once")
    for answer in answers:
        expect(set(resolve(answer, None)[1].stages) == {(answer.opid, "")}, "each comes with its own document")
    expect(list(await trial.store.mget([])) == [], "nothing asked, nothing answered")
    expect(list(await trial.store.mget(["missing"])) == [], "one that does not exist is left out")
    many = await trial.store.mget([f"op-{number}" for number in range(1500)])
    expect(len(many) == len(opids), "any number of ids can be asked for")


@promise("An answer for a known revision, be it the document, the changes or no change, stands for what is stored.")
async def _answers_build_on_what_is_known(trial: Trial) -> None:
    store = trial.store
    await store.merge("op", stages(stage("a"), stage("b")))
    await store.merge("other", stages(stage("a")))
    first, other = await trial.known("op"), await trial.known("other")
    updates = (
        stages(stage("c")),
        stages(stage("a", error="no")),
        Update(start=Start(name="deploy", at=SECOND, attributes_json='{"a":1}')),
        Update(finish=Finish(at=2 * SECOND, status=Status.FAILED, error="no"), stages=(stage("b", at=7), stage("c"))),
    )
    history = [first]
    for update in updates:
        await store.merge("op", update)
        history.append(await trial.known("op"))
    for known in history:
        both = {"op": known, "other": other}
        by_read = [await store.read("op", known), await store.read("other", other)]
        for answers in (
            by_read,
            await store.mget(["op", "other"], both),
            await store.latest(_LONG_AGO, 9, both),
        ):
            found = {answer.opid: resolve(answer, both[answer.opid]) for answer in answers}
            expect(found["op"] == (history[-1].revision, history[-1].document), "it gives what is stored now")
            expect(found["other"] == (other.revision, other.document), "it gives what has not changed")
    expect(isinstance(await store.read("other", other), Unchanged), "an unchanged document is not sent again")


@promise("What was read or answered once is not reached by later merges.")
async def _document_read_is_detached(trial: Trial) -> None:
    merged = await trial.store.merge("op", stages(stage("a")))
    known = await trial.known("op")
    await trial.store.merge("op", stages(stage("a", error="no"), stage("b")))
    for document in (known.document, merged.document):
        if document is not None:
            expect(document.stages == {("a", ""): stage("a")}, "the old document stays as it was")


@promise("`latest` returns what changed last first, at most as much as was asked for.")
async def _latest_is_ordered_and_cut(trial: Trial) -> None:
    for opid in ("a", "c", "b"):
        await trial.store.merge(opid, stages(stage("s")))
        trial.tick()
    await trial.store.merge("a", stages(stage("t")))
    trial.tick()
    await trial.store.merge("c", stages(stage("s")))
    latest = trial.store.latest
    expect(
        _ids(await latest(_LONG_AGO, 9)) == ["a", "b", "c"],
        "the order is that of the last change, descending",
    )
    expect(_ids(await latest(_LONG_AGO, 2)) == ["a", "b"], "the limit keeps the latest")
    for limit in (0, -1):
        expect(_ids(await latest(_LONG_AGO, limit)) == [], "a limit of zero or less gives nothing")
    expect(_ids(await latest(2**62, 9)) == [], "nothing is later than the far future")


@promise(
    "`latest` returns what was updated later than the bound, not at it; equal times go by id, descending.",
    "clock",
)
async def _latest_excludes_its_bound(trial: Trial) -> None:
    start = trial.clock()
    for opid in ("b", "a", "B", "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        await trial.store.merge(opid, stages(stage("s")))
    latest = trial.store.latest
    expect(_ids(await latest(start, 9)) == [], "what was updated at the bound is left out")
    expect(_ids(await latest(start - 1_000, 9)) == ["\xe9", "b", "a", "B"], "what is later comes, by id")
    expect(_ids(await latest(start - 1_000, 2)) == ["\xe9", "b"], "the limit cuts within equal times too")
    trial.tick()
    await trial.store.merge("late", stages(stage("s")))
    expect(_ids(await latest(start, 9)) == ["late"], "what was seen before is not repeated")


@promise(
    "Each change moves the update time forward, also while the clock stands still or is a little behind.",
    "clock",
)
async def _change_moves_the_update_time(trial: Trial) -> None:
    await trial.store.merge("op", stages(stage("a")))
    last = trial.clock()
    for step in (0.0, 0.0, -0.001):
        trial.clock.advance(step)
        await trial.store.merge("op", stages(stage("a", at=last % 1_000_003)))
        expect(_ids(await trial.store.latest(last, 9)) == ["op"], "the change is later than the one before")
        last += 1_000


def _ids(answers: Sequence[AnswerOrError]) -> list[str]:
    return [answer.opid for answer in answers]


CHECKS: Final = (
    _unknown_operation_is_not_found,
    _mget_returns_each_found_one_once,
    _answers_build_on_what_is_known,
    _document_read_is_detached,
    _latest_is_ordered_and_cut,
    _latest_excludes_its_bound,
    _change_moves_the_update_time,
)
