"""
Tests of large operations in the row engine: a save costs what it says, and no reader sees anything but whole versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline_trio._store._changes import JOIN_EVERY, JOINED_LIMIT, ROW_LIMIT
from timeline_trio.model import Document, Finish, Stage, Start, Status, Update, encode_attributes, merge
from timeline_trio.store import (
    Changes,
    CorruptEntry,
    FetchChanges,
    FetchHeads,
    FetchRows,
    Found,
    JoinChanges,
    Known,
    MemoryStore,
    MergeRequest,
    RaceLost,
    RowStore,
    StoreUnavailable,
    Unchanged,
    WriteRows,
)
from timeline_trio.testing import ManualClock

from .memory_rows import MemoryRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeline_trio.store import Merged, RowOperation, Script

T = TypeVar("T")


class Rows(RowStore):
    """
    Rows in memory that several stores may share, where others may come between any two operations.
    """

    keeps_changes = True

    def __init__(self, table: MemoryRows | None = None) -> None:
        super().__init__(clock=ManualClock())
        self.table = MemoryRows() if table is None else table
        self.asked: list[RowOperation] = []
        self.between: Callable[[RowOperation], object] | None = None

    async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
        del writes, transaction
        script = begin()
        try:
            operation = next(script)
            while True:
                self.asked.append(operation)
                if self.between:
                    self.between(operation)
                operation = script.send(self.table.do(operation))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def written(self) -> int:
        """
        Return how many characters were written since the last call.
        """
        size = 0
        for operation in self.asked:
            if isinstance(operation, WriteRows):
                size += sum(len(write.payload) for write in operation.writes if not hasattr(write, "row"))
        self.asked.clear()
        return size


LARGE = encode_attributes({"x": "x" * ROW_LIMIT})


def stages(*ids: object, name: str = "work", attributes_json: str = "") -> Update:
    return Update(
        stages=tuple(Stage(id=str(each), name=name, started_at=0, attributes_json=attributes_json) for each in ids)
    )


async def known_of(store: RowStore) -> Known:
    answer = await store.read("op")
    assert isinstance(answer, Found)
    return Known(answer.revision, answer.document)


async def make_large(store: Rows) -> Known:
    """
    Make an operation that is kept in a row and one change beside it.
    """
    await store.merge("op", stages("first", attributes_json=LARGE))
    await store.merge("op", stages("second"))
    known = await known_of(store)
    assert known.revision.version == 2
    assert list(store.table.changes) == [("op", known.revision.incarnation, 2)]
    store.asked.clear()
    return known


def after(known: Known, merged: Merged) -> Known:
    assert merged.revision is not None
    assert merged.document is not None
    return Known(merged.revision, merged.document)


async def test_a_small_operation_is_its_row_and_nothing_else() -> None:
    store = Rows()
    for number in range(200):
        await store.merge("op", stages(number))
    assert store.table.changes == {}
    assert len((await known_of(store)).document.stages) == 200


async def test_a_save_of_a_large_operation_writes_what_it_says() -> None:
    store = Rows()
    known = await make_large(store)
    for number in range(JOIN_EVERY // 2):
        known = after(known, await store.merge("op", stages(number), known))
        assert [type(operation) for operation in store.asked] == [WriteRows]
        assert store.written() < 200
    assert store.table.rows["op"].folded == 1
    assert (await known_of(store)).document == known.document


async def test_whoever_knows_a_version_reads_what_came_after_it() -> None:
    store = Rows()
    known = await make_large(store)
    for number in range(3):
        await store.merge("op", stages(number))
    await store.merge("op", Update(finish=Finish(at=9, status=Status.FAILED, error="no")))
    store.asked.clear()
    for answer in (await store.read("op", known), *await store.latest(0, 9, {"op": known})):
        assert isinstance(answer, Changes)
        assert answer.since == known.revision
        assert sorted(stage.id for stage in answer.update.stages) == ["0", "1", "2"]
        merged, _ = merge(known.document, answer.update)
        assert (answer.revision.version, merged) == (6, (await known_of(store)).document)
    assert not isinstance(store.asked[1], FetchRows), "the row itself is not read"
    latest = await known_of(store)
    assert isinstance(await store.read("op", latest), Unchanged)


async def test_what_is_known_from_before_the_row_was_left_is_read_whole() -> None:
    store = Rows()
    await store.merge("op", stages("small"))
    known = await known_of(store)
    await store.merge("op", stages("small, too"))
    await store.merge("op", stages("large", attributes_json=LARGE))
    await store.merge("op", stages("last"))
    assert store.table.rows["op"].folded == 2
    answer = await store.read("op", known)
    assert isinstance(answer, Found)
    assert len(answer.document.stages) == 4


async def test_a_writer_that_is_behind_reads_what_it_missed_and_no_more() -> None:
    store = Rows()
    known = await make_large(store)
    other = Rows(store.table)
    await other.merge("op", stages("theirs"))
    merged = await store.merge("op", stages("ours"), known)
    assert FetchRows not in {type(operation) for operation in store.asked}
    assert merged.document is not None
    assert set(merged.document.stages) == {(each, "") for each in ("first", "second", "theirs", "ours")}
    assert merged.document == (await known_of(other)).document
    assert not (await store.merge("op", stages("theirs"), known)).changed


async def test_many_changes_are_joined_into_few() -> None:
    store = Rows()
    known = await make_large(store)
    most = 0
    for number in range(JOIN_EVERY * JOIN_EVERY + 10):
        known = after(known, await store.merge("op", stages(number % 500, name=f"name {number}"), known))
        most = max(most, len(store.table.changes))
    assert most < 3 * JOIN_EVERY
    assert len(store.table.changes) < JOIN_EVERY
    assert (await known_of(Rows(store.table))).document == known.document


async def test_no_joined_change_is_larger_than_any_database_takes() -> None:
    store = Rows()
    known = await make_large(store)
    filling = encode_attributes({"x": "\xe9" * (JOINED_LIMIT // 20)})
    for number in range(2 * JOIN_EVERY):
        known = after(known, await store.merge("op", stages(number, attributes_json=filling), known))
    sizes = [len(payload.encode()) for payload in store.table.changes.values()]
    assert max(sizes) <= JOINED_LIMIT
    assert len(sizes) < 40
    assert (await known_of(Rows(store.table))).document == known.document


async def test_two_that_join_the_same_changes_at_once_do_no_harm() -> None:
    store, other = Rows(), Rows()
    other.table = store.table
    known = await make_large(store)
    joins: list[WriteRows] = []

    def note(operation: RowOperation) -> None:
        if isinstance(operation, WriteRows) and isinstance(operation.writes[0], JoinChanges):
            joins.append(operation)

    store.between = note
    for number in range(JOIN_EVERY):
        known = after(known, await store.merge("op", stages(number), known))
    (join,) = joins
    before = dict(store.table.changes)
    with pytest.raises(RaceLost):
        store.table.do(join)
    assert store.table.changes == before
    assert (await known_of(other)).document == known.document


async def test_a_join_that_fails_fails_no_merge() -> None:
    store = Rows()
    known = await make_large(store)

    def refuse(operation: RowOperation) -> None:
        if isinstance(operation, FetchChanges):
            raise StoreUnavailable("", "down")

    store.between = refuse
    for number in range(JOIN_EVERY + 1):
        known = after(known, await store.merge("op", stages(number), known))
    store.between = None
    assert (await known_of(store)).document == known.document


@pytest.mark.parametrize("asked", [FetchChanges, FetchRows, FetchHeads])
async def test_a_reader_that_others_come_between_sees_a_whole_version(asked: type, autojump_clock: object) -> None:
    del autojump_clock
    store, reader = Rows(), Rows()
    reader.table = store.table
    known = await make_large(store)
    current = known
    counts: set[int] = set()

    def write(operation: RowOperation) -> None:
        nonlocal current
        if isinstance(operation, asked) and len(counts) < JOIN_EVERY:
            reader.between = None
            for _ in range(JOIN_EVERY // 3):
                current = after(current, _run(store.merge("op", stages(len(current.document.stages)), current)))
            counts.add(len(current.document.stages))

    for _ in range(20):
        for base in (None, known):
            reader.between = write
            answer = await reader.read("op", base)
            reader.between = None
            if isinstance(answer, Found):
                document = answer.document
            else:
                assert isinstance(answer, Changes)
                document, _ = merge(known.document, answer.update)
            assert len(document.stages) == answer.revision.version, "each version added one stage"


def _run(coroutine: object) -> Merged:
    """
    Run a merge of `Rows`, which never waits for anything.
    """
    try:
        coroutine.send(None)  # type: ignore[attr-defined]
    except StopIteration as stop:
        result: Merged = stop.value
        return result
    raise AssertionError("it waits")


async def test_an_operation_that_was_deleted_and_made_anew_has_none_of_the_old_changes() -> None:
    store = Rows()
    known = await make_large(store)
    del store.table.rows["op"]
    await store.merge("op", stages("new"), known)
    answer = await known_of(store)
    assert set(answer.document.stages) == {("new", "")}
    assert store.table.changes == {}
    await store.merge("op", stages("again", attributes_json=LARGE))
    await store.merge("op", stages("more"))
    assert set((await known_of(store)).document.stages) == {("new", ""), ("again", ""), ("more", "")}


async def test_damaged_changes_are_that_operations_and_the_others_go_on() -> None:
    store = Rows()
    known = await make_large(store)
    await store.merge("good", stages("s"))
    await store.merge("op", stages("third"))
    for key in store.table.changes:
        store.table.changes[key] = '{"secret'
    with pytest.raises(CorruptEntry, match="changes of version 2 cannot be read") as caught:
        await store.read("op")
    assert "secret" not in str(caught.value)
    with pytest.raises(CorruptEntry, match="changes of version 3"):
        await store.read("op", known)
    for base in (None, known):
        answers = await store.merge_many([MergeRequest("op", stages("x"), base), MergeRequest("good", stages("x"))])
        assert isinstance(answers[0], CorruptEntry)
        assert not isinstance(answers[1], CorruptEntry)


async def test_without_a_place_for_changes_rows_are_written_whole() -> None:
    class Plain(Rows):
        keeps_changes = False

    store = Plain()
    for number in range(3):
        await store.merge("op", stages(number, attributes_json=LARGE))
    assert store.table.changes == {}
    assert store.table.rows["op"].folded is None
    assert store.written() > 3 * ROW_LIMIT
    # Changes that are there all the same, as before a migration was undone, are read and added to.
    grown = Rows(store.table)
    await grown.merge("op", stages("more"))
    await store.merge("op", stages("most"))
    assert len((await known_of(store)).document.stages) == 5
    assert len(store.table.changes) == 2


actions = st.lists(
    st.tuples(
        st.integers(0, 1),  # which store
        st.booleans(),  # with what it knows
        st.lists(st.integers(0, 6), max_size=3, unique=True),  # stages
        st.integers(0, 3),  # their state
        st.sampled_from(("", "start", "finish")),
    ),
    max_size=40,
)


@given(actions)
def test_large_operations_are_merged_as_in_memory(program: Sequence[tuple[int, bool, list[int], int, str]]) -> None:
    import trio  # noqa: PLC0415 - the program is run anew for each example

    trio.run(_compare, program)


async def _compare(program: Sequence[tuple[int, bool, list[int], int, str]]) -> None:
    first = Rows()
    stores, memory = [first, Rows(first.table)], MemoryStore(clock=ManualClock())
    update = stages("large", attributes_json=LARGE)
    knowns: list[Known | None] = [None, None]
    for store in (first, memory):
        await store.merge("op", update)
    for which, uses_known, ids, state, boundary in program:
        update = Update(
            start=Start(name="n", at=state, live=bool(state % 2)) if boundary == "start" else None,
            finish=Finish(at=state, status=Status.FAILED, live=bool(state % 2)) if boundary == "finish" else None,
            stages=stages(*ids, name=f"name {state}").stages,
        )
        merged = await stores[which].merge("op", update, knowns[which] if uses_known else None)
        expected = await memory.merge("op", update)
        assert (merged.changed, merged.document) == (expected.changed, expected.document)
        assert merged.revision is not None
        assert expected.revision is not None
        assert merged.revision.version == expected.revision.version
        base = knowns[1 - which]
        answer = await stores[1 - which].read("op", base)
        document = expected.document
        assert isinstance(document, Document)
        if isinstance(answer, Found):
            assert answer.document == document
        elif isinstance(answer, Changes):
            assert base is not None
            assert merge(base.document, answer.update)[0] == document
        else:
            assert base is not None
            assert base.document == document
        knowns[1 - which] = Known(answer.revision, document)
