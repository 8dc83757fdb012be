"""
Tests of `check_store`: the library's stores pass it, and a store with a defect does not.
"""

from __future__ import annotations

import sqlite3
from contextlib import aclosing, asynccontextmanager, closing
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from timeline_trio.model import Document, Update
from timeline_trio.store import (
    NOTHING_KNOWN,
    Change,
    CorruptEntry,
    Found,
    Known,
    MemoryStore,
    Merged,
    MergeRequest,
    MergesMany,
    NoopStore,
    NotFound,
    Revision,
    Store,
    StoreRejected,
    StoreUnavailable,
    Unchanged,
    Unreadable,
)
from timeline_trio.testing import FaultyStore, ManualClock, check_store
from timeline_trio_sqlite import SQLiteStore, open_sqlite

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from timeline_trio.store import Answer, AnswerOrError


def opening(make: Callable[[], Store]) -> Callable[[], AbstractAsyncContextManager[Store]]:
    @asynccontextmanager
    async def open_one() -> AsyncGenerator[Store, None]:
        yield make()

    return open_one


async def delete_row(store: Store, opid: str) -> None:  # noqa: ASYNC124 - the trial awaits it
    assert isinstance(store, SQLiteStore)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("DELETE FROM timelines WHERE id = ?", (opid,))


async def test_memory_store_keeps_the_contract() -> None:
    clock = ManualClock()
    await check_store(opening(lambda: MemoryStore(clock=clock)), clock=clock)
    await check_store(opening(MemoryStore))


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_sqlite_store_keeps_the_contract(tmp_path: Path, journal: Any) -> None:
    clock = ManualClock()
    numbers = count()

    def open_one() -> AbstractAsyncContextManager[SQLiteStore]:
        return open_sqlite(tmp_path / f"{next(numbers)}.db", journal=journal, clock=clock)

    await check_store(open_one, clock=clock, delete=delete_row)


@pytest.mark.parametrize("hide_merge_many", [False, True])
async def test_faulty_store_without_faults_keeps_the_contract(hide_merge_many: bool) -> None:  # noqa: FBT001
    def make() -> Store:
        store = FaultyStore(MemoryStore(), hide_merge_many=hide_merge_many)
        store.strip_documents = True
        return store

    await check_store(opening(make))


class Defective:
    """
    Passes all on to a store in memory; the defects are subclasses.
    """

    def __init__(self) -> None:
        self.inner = MemoryStore()

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


class FoldsCase(Defective):
    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        return await self.inner.merge(opid.lower(), update, known)

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        return await self.inner.read(opid.lower(), known)


class LosesRaces(Defective):
    """
    Of two merges at once only one is done, and both report success.
    """

    busy = False

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        await trio.lowlevel.checkpoint()
        if self.busy:
            return Merged(revision=None, changed=True)
        self.busy = True
        try:
            return await self.inner.merge(opid, update, known)
        finally:
            self.busy = False


class HasNoCheckpoint(Defective):
    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        return await self.inner.mget(opids, known) if opids else []


class IgnoresCancellation(Defective):
    async def read(self, opid: str, known: Known | None = None) -> Answer:
        answers: list[Answer] = []
        with trio.CancelScope(shield=True):
            answers.append(await self.inner.read(opid, known))
        return answers[0]


class SaysUnchanged(Defective):
    async def read(self, opid: str, known: Known | None = None) -> Answer:
        answer = await self.inner.read(opid)
        return answer if known is None else Unchanged(opid=opid, revision=known.revision)


class SaysUnchangedToStrangers(Defective):
    async def read(self, opid: str, known: Known | None = None) -> Answer:
        del known
        answer = await self.inner.read(opid)
        assert isinstance(answer, Found)
        return Unchanged(opid=opid, revision=answer.revision)


class MgetForgetsDocuments(Defective):
    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        found = await self.inner.mget(opids, known)
        return [Unchanged(opid=answer.opid, revision=Revision(1, 1)) for answer in found]


class CannotRead(Defective):
    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        found = await self.inner.mget(opids, known)
        return [Unreadable(opid=answer.opid, error=CorruptEntry(answer.opid, "damaged")) for answer in found]


class AcceptsAnything(Defective):
    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        try:
            return await self.inner.merge(opid, update, known)
        except StoreRejected:
            return Merged(revision=None, changed=False)


class BreaksDown(Defective):
    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        del after, limit, known
        await trio.lowlevel.checkpoint()
        raise StoreUnavailable("", "down")


class FailsTogether(Defective):
    """
    One refused request fails the whole of `merge_many`.
    """

    async def merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged]:
        await trio.lowlevel.checkpoint()
        return [await self.inner.merge(request.opid, request.update) for request in requests]


class TellsOfNothing(Defective):
    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Change]]:
        await trio.lowlevel.checkpoint()
        send, receive = trio.open_memory_channel[Change](0)
        with send:
            yield receive


class TellsUntilCancelled(Defective):
    """
    A generator, which a cancelled step ends.
    """

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Change]]:
        async with self.inner.watch() as changes, aclosing(change async for change in changes) as generator:
            yield generator


class TellsOfEveryMerge(Defective):
    def __init__(self) -> None:
        super().__init__()
        self.told, self.changes = trio.open_memory_channel[Change](100)

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        merged = await self.inner.merge(opid, update, known)
        self.told.send_nowait(Change(opid, merged.revision or Revision(0, 0)))
        return merged

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Change]]:
        self.told, self.changes = trio.open_memory_channel[Change](100)
        await trio.lowlevel.checkpoint()
        yield self.changes


@pytest.mark.parametrize(
    ("defect", "promise"),
    [
        (FoldsCase, "whose ids differ in case"),
        (LosesRaces, "of many tasks into one operation are all kept"),
        (HasNoCheckpoint, "Each call is a checkpoint"),
        (IgnoresCancellation, "A call in a cancelled scope is left at once"),
        (SaysUnchanged, "An answer for a known revision"),
        (SaysUnchangedToStrangers, "returns the whole document"),
        (MgetForgetsDocuments, "one who knows nothing is answered with the document"),
        (CannotRead, "what was written through the store can be read from it"),
        (AcceptsAnything, "StoreRejected is raised"),
        (BreaksDown, "StoreUnavailable"),
        (FailsTogether, "what is rejected stops nobody else"),
        (TellsOfNothing, "a change comes within"),
        (TellsUntilCancelled, "can be cancelled, and misses none by that"),
        (TellsOfEveryMerge, "What changes nothing is not told"),
    ],
)
async def test_defect_is_found_and_named(defect: type[Defective], promise: str, autojump_clock: object) -> None:
    with pytest.raises(AssertionError, match=promise) as caught:
        await check_store(opening(cast("Any", defect)))
    assert str(caught.value).startswith(f"{defect.__name__} breaks a promise. ")
    assert caught.value.__cause__ is not None


async def test_noop_store_keeps_nothing() -> None:
    store = NoopStore()
    assert isinstance(store, MergesMany)
    merged = Merged(revision=None, changed=False)
    assert await store.merge("op", Update()) == merged
    assert await store.merge_many([MergeRequest("op", Update())] * 2) == [merged] * 2
    assert await store.mget(["op"]) == await store.latest(0, 9) == []
    with pytest.raises(NotFound):
        await store.read("op")


@pytest.mark.parametrize("method", ["merge", "merge_many", "read", "mget", "latest"])
async def test_noop_store_honours_cancellation(method: str) -> None:
    arguments: dict[str, tuple[object, ...]] = {
        "merge": ("op", Update()),
        "merge_many": ([],),
        "read": ("op",),
        "mget": (["op"],),
        "latest": (0, 9),
    }
    with trio.CancelScope() as scope:
        scope.cancel()
        await getattr(NoopStore(), method)(*arguments[method])
    assert scope.cancelled_caught


def test_revisions_of_different_incarnations_have_no_order() -> None:
    assert Revision(1, 1).is_older_than(Revision(1, 2))
    assert not Revision(1, 2).is_older_than(Revision(1, 2))
    assert not Revision(1, 1).is_older_than(Revision(2, 2))


def test_answers_carry_a_document_of_the_operation() -> None:
    assert Found(opid="op", revision=Revision(1, 1), document=Document(opid="op")).document.opid == "op"


def test_manual_clock_moves_when_told() -> None:
    clock = ManualClock(5)
    clock.advance(1.5)
    assert clock() == 1_500_000_005
    assert repr(clock) == "ManualClock(1500000005)"
