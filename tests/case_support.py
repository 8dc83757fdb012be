"""
What the tests of cases share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from timeline_trio.model import Document, Stage
from timeline_trio.store import NOTHING_KNOWN, Found, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from timeline_trio.model import Actor, Update
    from timeline_trio.store import Answer, AnswerOrError, Known, Merged, Store

NEW_YEAR = 1_767_225_600 * 10**9  # 2026, in nanoseconds since the epoch
SECOND = 10**9


def virtual_time() -> int:
    """
    Return wall time that runs with Trio's clock, for stores and managers of one test.
    """
    return NEW_YEAR + round(trio.current_time() * SECOND)


def interval(stage_id: str, *, actor: Actor | None = None, **options: str) -> Stage:
    """
    Return a finished stage, to hand to `record`.
    """
    given = {} if actor is None else {"actor": actor}
    return Stage.completed("work", NEW_YEAR, NEW_YEAR + SECOND, id=stage_id, **given, **options)  # type: ignore[arg-type]


async def stored(store: Store, opid: str = "op") -> Document:
    """
    Return what a store holds of an operation.
    """
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return answer.document


async def version(store: Store, opid: str = "op") -> int:
    """
    Return how often a store has changed an operation.
    """
    answer = await store.read(opid)
    return answer.revision.version


def stage_ids(stages: Iterable[Stage]) -> list[str]:
    """
    Return the ids of stages, sorted.
    """
    return sorted(stage.id for stage in stages)


def tasks() -> set[trio.lowlevel.Task]:
    """
    Return all tasks of this Trio run.
    """
    root = trio.lowlevel.current_root_task()
    found, waiting = set[trio.lowlevel.Task](), [root] if root else []
    while waiting:
        task = waiting.pop()
        found.add(task)
        waiting.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return found


class Failures:
    """
    An `on_error` that keeps what it is called with.
    """

    def __init__(self) -> None:
        self.all: list[tuple[str, Exception]] = []

    def __call__(self, opid: str, error: Exception) -> None:
        self.all.append((opid, error))

    def of(self, opid: str) -> list[Exception]:
        """
        Return the failures of one operation; of batch loads for "".
        """
        return [error for each, error in self.all if each == opid]


class StepCounter(trio.abc.Instrument):
    """
    Counts how often tasks are run: what spins does not rest.
    """

    def __init__(self) -> None:
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.steps += 1


class WrappedStore:
    """
    Passes every call on; tests override the one that they are about. Without `merge_many`.
    """

    def __init__(self, inner: Store | None = None) -> None:
        self.inner: Store = inner or MemoryStore()

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        return await self.inner.merge(opid, update, known)

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        return await self.inner.read(opid, known)

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        return await self.inner.mget(opids, known)

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        return await self.inner.latest(after, limit, known)
