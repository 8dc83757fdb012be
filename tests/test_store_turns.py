"""
Tests of merges into one operation, of one store and of others, at one moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from timeline_trio.model import Stage, Update
from timeline_trio.store import (
    FetchRows,
    Found,
    Merged,
    MergeRequest,
    RaceLost,
    RowStore,
    StoreUnavailable,
    WriteRows,
)

from .memory_rows import MemoryRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from timeline_trio.store import RowOperation, Script

T = TypeVar("T")


class SlowRows(RowStore):
    """
    Rows in memory that several stores may share; each operation takes a tenth of a second.
    """

    def __init__(self, table: MemoryRows | None = None) -> None:
        super().__init__(clock=lambda: round(trio.current_time() * 1e9))
        self.table = MemoryRows() if table is None else table
        self.asked: list[str] = []
        self.running = 0
        self.most_running = 0
        self.failure: Exception | None = None

    async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
        del writes, transaction
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            script = begin()
            operation = next(script)
            while True:
                await trio.sleep(0.1)
                if self.failure:
                    raise self.failure
                operation = script.send(self._do(operation))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            self.running -= 1

    def _do(self, operation: RowOperation) -> object:
        match operation:
            case FetchRows(_, lock):
                self.asked.append("lock" if lock else "read")
            case WriteRows():
                self.asked.append("write")
        return self.table.do(operation)


def stage(stage_id: object) -> Update:
    return Update(stages=(Stage(id=str(stage_id), name="work", started_at=0),))


async def count_stages(store: RowStore, opid: str = "op") -> int:
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    assert len(answer.document.stages) == answer.revision.version
    return answer.revision.version


async def test_merges_into_one_operation_take_turns_and_build_on_each_other(autojump_clock: MockClock) -> None:
    store = SlowRows()
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(store.merge, "op", stage(number))
    assert store.asked == ["read", *["write"] * 10]
    assert store.most_running == 1
    assert (store.merges, store.attempts) == (10, 10)
    assert await count_stages(store) == 10


async def test_merges_into_different_operations_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    store = SlowRows()
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(store.merge, f"op-{number}", stage("s"))
    assert store.most_running == 10
    assert trio.current_time() == pytest.approx(0.2)


async def test_rounds_that_overlap_end_however_their_operations_are_ordered(autojump_clock: MockClock) -> None:
    store = SlowRows()
    opids = ["a", "b", "c"]
    async with trio.open_nursery() as nursery:
        for number in range(12):
            turned = opids[number % 3 :] + opids[: number % 3]
            nursery.start_soon(store.merge_many, [MergeRequest(opid, stage(number)) for opid in turned])
            nursery.start_soon(store.merge, "b", stage(f"alone {number}"))
    assert [await count_stages(store, opid) for opid in opids] == [12, 24, 12]
    assert store.attempts == 48


async def test_cancelled_merge_leaves_the_line(autojump_clock: MockClock) -> None:
    store = SlowRows()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.merge, "op", stage("first"))
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.05) as waiting:
            await store.merge("op", stage("waiting"))
        nursery.start_soon(store.merge, "op", stage("last"))
    assert waiting.cancelled_caught
    with trio.move_on_after(0.05):
        await store.merge("op", stage("cancelled"))
    await store.merge("op", stage("more"))
    assert await count_stages(store) == 3


async def test_merge_after_a_failed_one_reads_what_is_there(autojump_clock: MockClock) -> None:
    store = SlowRows()
    store.failure = StoreUnavailable("", "down")
    failed: list[str] = []

    async def merge(name: str) -> None:
        try:
            await store.merge("op", stage(name))
        except StoreUnavailable:
            failed.append(name)
            store.failure = None

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(merge, name)
    assert len(failed) == 1
    assert store.asked == ["read", "write", "write"]
    assert await count_stages(store) == 2


async def test_operation_that_others_write_to_is_locked_at_once_for_a_while(autojump_clock: MockClock) -> None:
    store = SlowRows()
    other = SlowRows(store.table)
    await store.merge("op", stage("first"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.merge, "op", stage("theirs"))
        nursery.start_soon(store.merge, "op", stage("ours"))
    loser = max(store, other, key=lambda each: each.attempts - each.merges)
    assert loser.asked[-4:] == ["read", "write", "lock", "write"]
    for expected in (["lock", "write"], ["read", "write"]):
        await trio.sleep(0.5)
        loser.asked.clear()
        await loser.merge("op", stage(f"then {expected}"))
        assert loser.asked == expected
    assert await count_stages(store) == 5


async def test_races_lost_while_rows_are_locked_are_run_on_with_pauses(autojump_clock: MockClock) -> None:
    store = SlowRows()
    store.failure = RaceLost()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.merge, "op", stage("s"))
        await trio.sleep(20.5)
        store.failure = None
    assert store.asked == ["lock", "write"]
    assert await count_stages(store) == 1


async def test_answers_of_a_round_are_in_the_order_of_its_requests(autojump_clock: MockClock) -> None:
    store = SlowRows()
    opids = ["c", "a", "b"]
    answers = await store.merge_many([MergeRequest(opid, stage(opid)) for opid in opids])
    for opid, answer in zip(opids, answers, strict=True):
        assert isinstance(answer, Merged)
        assert answer.document is not None
        assert answer.document.opid == opid
