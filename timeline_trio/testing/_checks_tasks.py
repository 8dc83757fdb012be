"""
Checks of a store under many tasks, and under cancellation.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio
from trio.testing import assert_checkpoints

from .._errors import NotFound, StoreRejected
from .._model._document import Update
from .._model._values import Actor
from .._store._contract import MergeRequest, MergesMany
from ._trial import Trial, expect, promise, stage, stages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_WRITERS = 16


@promise("Merges of many tasks into one operation are all kept, and the version counts them.")
async def _concurrent_merges_lose_nothing(trial: Trial) -> None:
    await trial.store.merge("old", stages(stage("first")))
    known = await trial.known("old")
    for opid, before, base in (("old", 1, None), ("old", 1 + _WRITERS, known), ("brand new", 0, None)):
        async with trio.open_nursery() as nursery:
            for number in range(_WRITERS):
                fact = stage(f"at {before}", actor=Actor(id=str(number)))
                nursery.start_soon(trial.store.merge, opid, stages(fact), base)
        after = await trial.known(opid)
        expect(len(after.document.stages) == before + _WRITERS, f"all facts are in the operation {opid!r}")
        expect(after.revision.version == before + _WRITERS, "the version equals the number of changes")


@promise("Many new operations created at the same instant are all kept, while others read.")
async def _concurrent_operations_go_on(trial: Trial) -> None:
    store = trial.store
    opids = [f"op-{number}" for number in range(_WRITERS)]
    async with trio.open_nursery() as nursery:
        for opid in opids:
            nursery.start_soon(store.merge, opid, stages(stage("s")))
            nursery.start_soon(store.mget, opids)
            nursery.start_soon(store.latest, 0, 5)
    expect(len(await store.mget(opids)) == _WRITERS, "all operations are there")


@promise("Each call is a checkpoint, whether it finds something to do, or fails, or not.")
async def _each_call_is_a_checkpoint(trial: Trial) -> None:
    store = trial.store
    await store.merge("op", stages(stage("a")))
    with assert_checkpoints():
        await store.merge("op", stages(stage("b")))
    with assert_checkpoints():
        await store.merge("op", stages(stage("b")))
    with assert_checkpoints(), suppress(StoreRejected):
        await store.merge("", Update())
    with assert_checkpoints():
        await store.read("op")
    with assert_checkpoints(), suppress(NotFound):
        await store.read("missing")
    for opids in ([], ["op"], ["missing"]):
        with assert_checkpoints():
            await store.mget(opids)
    for limit in (-1, 0, 9):
        with assert_checkpoints():
            await store.latest(0, limit)
    if isinstance(store, MergesMany):
        for requests in ([], [MergeRequest("op", stages(stage("c")))]):
            with assert_checkpoints():
                await store.merge_many(requests)


@promise("A call in a cancelled scope is left at once, and the store serves the next one.")
async def _cancelled_call_is_left(trial: Trial) -> None:
    store = trial.store
    await store.merge("op", stages(stage("a")))
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.merge("op", stages(stage("b"))),
        lambda: store.read("op"),
        lambda: store.mget(["op"]),
        lambda: store.mget([]),
        lambda: store.latest(0, 9),
        lambda: store.latest(0, 0),
    ]
    if isinstance(store, MergesMany):
        merge_many = store.merge_many
        calls.append(lambda: merge_many([MergeRequest("op", stages(stage("b")))]))
        calls.append(lambda: merge_many([]))
    for call in calls:
        with trio.CancelScope() as scope:
            scope.cancel()
            await call()
        expect(scope.cancelled_caught, "Cancelled is raised")
    await store.merge("op", stages(stage("c")))
    expect(("c", "") in (await trial.document("op")).stages, "a later merge is done")


@promise("A merge that was cancelled midway is done before the same writer's next one, or never.")
async def _cancelled_merge_cannot_come_late(trial: Trial) -> None:
    for attempt in range(30):
        with trio.move_on_after(0.0001 * attempt):
            await trial.store.merge("op", stages(stage("s", at=2 * attempt)))
        await trial.store.merge("op", stages(stage("s", at=2 * attempt + 1)))
        expect(
            (await trial.document("op")).stages["s", ""] == stage("s", at=2 * attempt + 1),
            "the newer state holds",
        )


CHECKS: Final = (
    _concurrent_merges_lose_nothing,
    _concurrent_operations_go_on,
    _each_call_is_a_checkpoint,
    _cancelled_call_is_left,
    _cancelled_merge_cannot_come_late,
)
