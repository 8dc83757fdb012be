"""
Checks of `watch`, where a store has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from .._model._document import Update
from .._store._contract import Change, MergeRequest
from ._trial import Trial, expect, promise, stage, stages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .._store._contract import MergesMany, WatchesChanges

_PATIENCE: Final = 10.0  # seconds for a change to come


async def _hear(changes: AsyncIterator[Change]) -> Change:
    with trio.move_on_after(_PATIENCE):
        return await anext(changes)
    raise AssertionError(f"a change comes within {_PATIENCE} s")


@promise("Who watches is told of each operation that changes, with the revision that it has then.", "watch")
async def _changes_are_told(trial: Trial) -> None:
    async with cast("WatchesChanges", trial.store).watch() as changes:
        for opid, number in (("a", 0), ("b", 0), ("a", 1), ("\N{GRINNING FACE} 'x' %s", 0)):
            merged = await trial.store.merge(opid, stages(stage("s", at=number)))
            assert merged.revision is not None
            expect(await _hear(changes) == Change(opid, merged.revision), "the change is told")


@promise("What changes nothing is not told.", "watch")
async def _no_change_is_not_told(trial: Trial) -> None:
    await trial.store.merge("a", stages(stage("s")))
    async with cast("WatchesChanges", trial.store).watch() as changes:
        await trial.store.merge("a", stages(stage("s")))
        await trial.store.merge("none", Update())
        await trial.store.merge("b", stages(stage("s")))
        expect((await _hear(changes)).opid == "b", "the first that is told of is the first change")


@promise("All who watch are told, and one who has left disturbs nobody.", "watch")
async def _all_are_told(trial: Trial) -> None:
    store = cast("WatchesChanges", trial.store)
    async with store.watch() as changes:
        async with store.watch() as others:
            await trial.store.merge("a", stages(stage("s")))
            expect((await _hear(others)).opid == "a", "the second one is told")
        await trial.store.merge("b", stages(stage("s")))
        expect({(await _hear(changes)).opid, (await _hear(changes)).opid} == {"a", "b"}, "the first one is told")


@promise("One who waits for a change can be cancelled, and misses none by that.", "watch")
async def _waiting_is_cancelled(trial: Trial) -> None:
    async with cast("WatchesChanges", trial.store).watch() as changes:
        for _ in range(5):
            with trio.move_on_after(0.01):
                await anext(changes)
        await trial.store.merge("a", stages(stage("s")))
        expect((await _hear(changes)).opid == "a", "the change is told")


@promise("What is saved together is told, too.", "watch", "merge_many")
async def _joint_changes_are_told(trial: Trial) -> None:
    requests = [MergeRequest(opid, stages(stage("s"))) for opid in ("a", "b", "c")]
    async with cast("WatchesChanges", trial.store).watch() as changes:
        await cast("MergesMany", trial.store).merge_many(requests)
        heard = [(await _hear(changes)).opid for _ in requests]
        expect(sorted(heard) == ["a", "b", "c"], "each operation is told of once")


CHECKS: Final = (
    _changes_are_told,
    _no_change_is_not_told,
    _all_are_told,
    _waiting_is_cancelled,
    _joint_changes_are_told,
)
