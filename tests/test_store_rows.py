"""
Tests of the row engine on rows in a dict, where another writer can come between.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pytest

from timeline_trio._store._stamp import next_stamp
from timeline_trio.model import Stage, Update
from timeline_trio.store import (
    CorruptEntry,
    Found,
    Known,
    MergeRequest,
    Row,
    RowHead,
    RowStore,
    StoreRejected,
    StoreUnavailable,
    Unchanged,
    Unreadable,
    run_script,
    run_script_async,
)
from timeline_trio.testing import ManualClock

from .memory_rows import MemoryRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeline_trio.store import ChangeRange, ChangeRow, RowWrite, Script

T = TypeVar("T")

SECOND = 10**9


class DictRows(RowStore):
    """
    Rows in memory, without transactions; `between` runs before each write, as another writer would.
    """

    keeps_changes = True

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(clock=self.clock)
        self.table = MemoryRows()
        self.between: list[Callable[[], object]] = []
        self.tries = 0
        self.asked: list[str] = []  # the operations, and the transactions around them
        self.refusal: StoreRejected | StoreUnavailable | None = None

    async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
        del writes
        self.tries += 1
        self.asked += ["begin"] if transaction else []
        return run_script(begin(), self)

    @property
    def rows(self) -> dict[str, Row]:
        return self.table.rows

    def fetch_heads(self, ids: Sequence[str], *, lock: bool) -> Sequence[RowHead]:
        self.asked.append(f"{'locked ' * lock}heads of {' '.join(ids)}")
        return self.table.fetch_rows(ids)

    def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> list[Row]:
        self.asked.append(f"{'locked ' * lock}rows of {' '.join(ids)}")
        self._let_others_in()
        return self.table.fetch_rows(ids)

    def fetch_recent_heads(self, after: int, limit: int) -> Sequence[RowHead]:
        return self.table.fetch_recent_heads(after, limit)

    def fetch_changes(self, ranges: Sequence[ChangeRange]) -> list[ChangeRow]:
        self.asked += [f"changes {each.first} to {each.last} of {each.id}" for each in ranges]
        self._let_others_in()
        return self.table.fetch_changes(ranges)

    def write_rows(self, writes: Sequence[RowWrite]) -> list[bool | StoreRejected]:
        self.asked.append(f"write {' '.join(write.id for write in writes)}")
        return [self._write(write) for write in writes]

    def _write(self, write: RowWrite) -> bool | StoreRejected:
        self._let_others_in()
        if isinstance(self.refusal, StoreRejected):
            return self.refusal
        if self.refusal:
            raise self.refusal
        return self.table.write(write)

    def _let_others_in(self) -> None:
        if self.between:
            self.between.pop(0)()


def stage(stage_id: str) -> Update:
    return Update(stages=(Stage(id=stage_id, name="work", started_at=0),))


async def ids_of(store: DictRows, opid: str = "op") -> set[str]:
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return {key[0] for key in answer.document.stages}


async def rows_of_another_writer(opid: str, *stage_ids: str) -> dict[str, Row]:
    other = DictRows()
    for stage_id in stage_ids:
        await other.merge(opid, stage(stage_id))
    return other.rows


async def test_lost_race_for_a_new_row_is_run_again(autojump_clock: object) -> None:
    del autojump_clock
    store = DictRows()
    theirs = await rows_of_another_writer("op", "theirs")
    store.between = [lambda: store.rows.update(theirs)]
    merged = await store.merge("op", stage("ours"))
    assert merged.revision is not None
    assert merged.revision.version == 2
    assert await ids_of(store) == {"ours", "theirs"}


async def test_lost_races_for_a_row_are_run_until_one_is_won(autojump_clock: object) -> None:
    del autojump_clock
    store = DictRows()
    await store.merge("op", stage("first"))
    versions = [await rows_of_another_writer("op", "first", *"abcdefgh"[: n + 1]) for n in range(8)]
    for rows in versions:
        # Each try fetches the row, and then writes it.
        store.between += [int, partial(store.rows.update, rows)]
    await store.merge("op", stage("ours"))
    assert await ids_of(store) == {"first", "ours", *"abcdefgh"}
    assert store.tries == 1 + 9 + 1


async def test_fresh_base_saves_the_read_and_a_moved_row_is_noticed() -> None:
    store = DictRows()
    first = await store.merge("op", stage("a"))
    assert first.revision is not None
    assert first.document is not None
    known = Known(first.revision, first.document)
    theirs = await rows_of_another_writer("op", "a", "theirs")
    store.between = [lambda: store.rows.update(theirs)]
    await store.merge("op", stage("ours"), known)
    assert await ids_of(store) == {"a", "ours", "theirs"}


async def known_of(store: DictRows, opid: str) -> Known:
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    store.asked.clear()
    return Known(answer.revision, answer.document)


async def test_merge_into_what_is_known_is_one_operation_and_into_the_unknown_two() -> None:
    store = DictRows()
    await store.merge("op", stage("a"))
    assert store.asked == ["rows of op", "write op"]
    known = await known_of(store, "op")
    merged = await store.merge("op", stage("b"), known)
    assert store.asked == ["write op"]
    assert merged.document is not None
    store.asked.clear()
    assert merged.revision is not None
    assert not (await store.merge("op", stage("b"), Known(merged.revision, merged.document))).changed
    assert store.asked == ["heads of op"], "nothing to write, but the row may have been deleted"


async def test_what_is_known_no_longer_is_read_in_the_same_script() -> None:
    store = DictRows()
    await store.merge("op", stage("a"))
    known = await known_of(store, "op")
    await store.merge("op", stage("theirs"))
    store.asked.clear()
    assert (await store.merge("op", stage("ours"), known)).changed
    assert store.asked == ["write op", "rows of op", "write op"]
    store.asked.clear()
    assert not (await store.merge("op", stage("a"), known)).changed
    assert store.asked == ["heads of op", "rows of op"]
    assert await ids_of(store) == {"a", "ours", "theirs"}
    assert (store.merges, store.attempts) == (4, 4)


async def test_lost_race_is_repeated_with_the_row_locked(autojump_clock: object) -> None:
    del autojump_clock
    store = DictRows()
    await store.merge("op", stage("first"))
    theirs = await rows_of_another_writer("op", "first", "theirs")
    store.asked.clear()
    store.between = [int, lambda: store.rows.update(theirs)]
    await store.merge("op", stage("ours"))
    assert store.asked == ["rows of op", "write op", "begin", "locked rows of op", "write op"]
    assert (store.merges, store.attempts) == (2, 3)


async def test_joint_merge_is_one_transaction_in_the_order_of_ids() -> None:
    store = DictRows()
    await store.merge("b", stage("x"))
    known = await known_of(store, "b")
    await store.merge("d", stage("x"))
    stale = await known_of(store, "d")
    await store.merge("d", stage("theirs"))
    store.asked.clear()
    requests = [
        MergeRequest("d", stage("y"), stale),
        MergeRequest("c", stage("y")),
        MergeRequest("", stage("y")),
        MergeRequest("b", stage("y"), known),
        MergeRequest("a", stage("y")),
    ]
    answers = await store.merge_many(requests)
    assert [type(answer).__name__ for answer in answers] == ["Merged", "Merged", "StoreRejected", "Merged", "Merged"]
    assert store.asked == ["begin", "write b d", "rows of a c", "locked rows of d", "write a c d"]
    assert await ids_of(store, "d") == {"x", "theirs", "y"}


async def test_reads_ask_for_heads_only_where_something_is_known() -> None:
    store = DictRows()
    for opid in ("a", "b"):
        await store.merge(opid, stage("x"))
    known = {"b": await known_of(store, "b")}
    await store.mget(["a", "b", "none"], known)
    assert store.asked == ["rows of a none", "heads of b"]


async def test_row_that_is_found_by_another_id_is_nobodys() -> None:
    class Folding(DictRows):
        def fetch_heads(self, ids: Sequence[str], *, lock: bool) -> Sequence[RowHead]:
            return super().fetch_heads([opid.lower() for opid in ids], lock=lock)

        def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> list[Row]:
            return super().fetch_rows([opid.lower() for opid in ids], lock=lock)

    store = Folding()
    await store.merge("op", stage("s"))
    known = await known_of(store, "op")
    assert await store.mget(["OP"]) == []
    assert await store.mget(["OP"], {"OP": known}) == []


async def test_script_runs_on_coroutines_of_any_event_loop() -> None:
    class Awaited:
        """
        Passes each operation on, as a coroutine.
        """

        def __init__(self, rows: DictRows) -> None:
            self.rows = rows

        async def fetch_heads(self, ids: Sequence[str], *, lock: bool) -> Sequence[RowHead]:
            return self.rows.fetch_heads(ids, lock=lock)

        async def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> Sequence[Row]:
            return self.rows.fetch_rows(ids, lock=lock)

        async def fetch_recent_heads(self, after: int, limit: int) -> Sequence[RowHead]:
            return self.rows.fetch_recent_heads(after, limit)

        async def fetch_changes(self, ranges: Sequence[ChangeRange]) -> Sequence[ChangeRow]:
            return self.rows.fetch_changes(ranges)

        async def write_rows(self, writes: Sequence[RowWrite]) -> Sequence[bool | StoreRejected]:
            return self.rows.write_rows(writes)

    class AwaitedRows(DictRows):
        async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
            del writes, transaction
            return await run_script_async(begin(), Awaited(self))

    store = AwaitedRows()
    await store.merge("op", stage("a"))
    await store.merge("op", stage("b"), await known_of(store, "op"))
    assert await ids_of(store) == {"a", "b"}
    assert [answer.opid for answer in await store.latest(0, 9)] == ["op"]
    store.rows["op"] = msgspec.structs.replace(store.rows["op"], payload="")
    with pytest.raises(CorruptEntry):
        await store.merge("op", stage("c"))


async def test_row_deleted_between_head_and_row_is_written_anew() -> None:
    store = DictRows()
    await store.merge("op", stage("old"))
    store.between = [store.rows.clear]
    await store.merge("op", stage("new"))
    assert await ids_of(store) == {"new"}


async def test_row_deleted_between_head_and_row_is_not_read() -> None:
    store = DictRows()
    await store.merge("op", stage("old"))
    store.between = [store.rows.clear]
    assert await store.mget(["op"]) == []


async def test_corrupt_row_is_an_answer_and_the_others_go_on() -> None:
    store = DictRows()
    for opid in ("bad", "good", "swapped"):
        await store.merge(opid, stage("s"))
    store.rows["bad"] = msgspec.structs.replace(store.rows["bad"], payload='{"id":"bad","stages":"secret"')
    store.rows["swapped"] = msgspec.structs.replace(store.rows["swapped"], payload=store.rows["good"].payload)
    answers = {answer.opid: answer for answer in await store.mget(["bad", "good", "swapped"])}
    assert isinstance(answers["good"], Found)
    for opid, problem in (("bad", "cannot be read"), ("swapped", "another operation's")):
        answer = answers[opid]
        assert isinstance(answer, Unreadable)
        with pytest.raises(CorruptEntry, match=problem) as caught:
            await store.read(opid)
        assert caught.value.opid == answer.error.opid == opid
        assert "secret" not in str(caught.value)
        with pytest.raises(CorruptEntry):
            await store.merge(opid, stage("t"))
    before = store.rows["bad"]
    refused, merged = await store.merge_many([MergeRequest("bad", stage("t")), MergeRequest("good", stage("t"))])
    assert isinstance(refused, CorruptEntry)
    assert not isinstance(merged, CorruptEntry)
    assert store.rows["bad"] is before


async def test_refusal_of_a_row_is_its_answer_but_an_outage_is_everybodys() -> None:
    store = DictRows()
    store.refusal = StoreRejected("new", "too large")
    with pytest.raises(StoreRejected, match="too large"):
        await store.merge("new", stage("s"))
    store.refusal = StoreUnavailable("", "down")
    with pytest.raises(StoreUnavailable, match="down"):
        await store.merge("new", stage("s"))


async def test_row_that_only_differs_in_spelling_keeps_its_version() -> None:
    store = DictRows()
    update = Update(stages=(Stage(id="s", name="work", started_at=0, attributes_json='{"a":1,"b":{"c":2.50}}'),))
    await store.merge("op", update)
    row = store.rows["op"]
    loose = row.payload.replace('{"a":1,"b":{"c":2.50}}', ' { "b" : {"c": 2.50}, "a": 1 }').replace(":0", ":0", 1)
    store.rows["op"] = msgspec.structs.replace(row, payload=f"\n{loose}\t")
    assert not (await store.merge("op", update)).changed
    assert store.rows["op"].version == 1


@pytest.mark.parametrize(
    ("now", "previous", "expected"),
    [
        (10 * SECOND, 5 * SECOND, 10 * SECOND),
        (10 * SECOND, 10 * SECOND, 10 * SECOND + 1_000),
        (10 * SECOND + 500, 10 * SECOND, 10 * SECOND + 1_000),
        (10 * SECOND, 11 * SECOND, 11 * SECOND + 1_000),
        (10 * SECOND, 11 * SECOND + 1, 10 * SECOND),
        (10 * SECOND, 86_400 * SECOND, 10 * SECOND),
    ],
)
def test_update_time_steps_past_the_previous_one_unless_that_is_far_ahead(
    now: int, previous: int, expected: int
) -> None:
    assert next_stamp(now, previous, SECOND) == expected


async def test_rows_of_exactly_the_time_that_was_seen_are_found_within_the_overlap() -> None:
    store = DictRows()
    merged = await store.merge("seen", stage("s"))
    assert merged.revision is not None
    assert merged.document is not None
    seen = store.rows["seen"].updated_at * 1_000
    for opid in ("a", "b", "c"):
        await store.merge(opid, stage("s"))
    known = {"seen": Known(merged.revision, merged.document)}
    answers = await store.latest(seen - SECOND, 9, known)
    assert [(answer.opid, type(answer)) for answer in answers] == [
        ("seen", Unchanged),
        ("c", Found),
        ("b", Found),
        ("a", Found),
    ]


async def test_late_commit_is_found_within_the_overlap_or_by_its_id() -> None:
    """
    Writer A stamps first and commits after writer B, which a poller has seen already.
    """
    store = DictRows()
    late = await rows_of_another_writer("a", "s")
    store.clock.advance(0.9)
    await store.merge("b", stage("s"))
    seen = store.rows["b"].updated_at * 1_000
    store.rows.update(late)
    overlap = SECOND
    assert [answer.opid for answer in await store.latest(seen, 9)] == []
    assert [answer.opid for answer in await store.latest(seen - overlap, 9)] == ["b", "a"]
    assert len(await store.mget(["a"])) == 1


@pytest.mark.parametrize("opid", ["\udcff", " op", ""])
async def test_a_damaged_id_is_an_answer_and_the_others_go_on(opid: str) -> None:
    class Strict(DictRows):
        def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> list[Row]:
            for each in ids:
                each.encode()  # as drivers do
            return super().fetch_rows(ids, lock=lock)

    store = Strict()
    await store.merge("good", stage("s"))
    store.rows[opid] = msgspec.structs.replace(store.rows["good"], id=opid)
    answers = {answer.opid: answer for answer in await store.latest(0, 10)}
    assert isinstance(answers["good"], Found)
    damaged = answers[opid]
    assert isinstance(damaged, Unreadable)
    assert isinstance(damaged.error, CorruptEntry)
