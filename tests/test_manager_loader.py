"""
Tests of the task that loads.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.lowlevel

from timeline_trio import (
    CorruptEntry,
    Status,
    StoreUnavailable,
    open_manager,
)
from timeline_trio.model import Document
from timeline_trio.store import (
    NOTHING_KNOWN,
    AnswerOrError,
    Found,
    Known,
    MemoryStore,
    Revision,
    Unchanged,
    Unreadable,
)
from timeline_trio.testing import FaultyStore

from .case_support import WrappedStore
from .recording import NEW_YEAR, SECOND, Errors, completed, eventually, filled, quiet, virtual_wall
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trio.testing import MockClock


async def test_what_others_record_is_discovered_and_followed(autojump_clock: MockClock) -> None:
    # parity 49
    store = MemoryStore(clock=virtual_wall)
    config = quiet(flush_interval=0.5, load_interval=1.0, clock=virtual_wall)
    async with open_manager(store, config=config) as first, open_manager(store, config=config) as second:
        handle = first.begin("op", "copy", stage_id="s")
        await eventually(lambda: second.statistics().cached_timelines == 1)
        snapshot = await second.read("op")
        assert not snapshot.collection.store_read
        assert snapshot.stages[0].status is Status.RUNNING
        handle.end()
        ended_at = trio.current_time()
        while (await second.read("op")).running_stages():  # noqa: ASYNC110 - polling is what is tried
            await trio.sleep(0.1)
        assert trio.current_time() - ended_at < 3
        assert second.statistics().last_load_at is not None
        assert second.statistics().pending_updates == 0


async def test_loads_keep_to_the_batch_limit_and_the_window_moves_on(autojump_clock: MockClock) -> None:
    # parity 71
    class Recorded:
        def __init__(self) -> None:
            self.inner = MemoryStore(clock=virtual_wall)
            self.merge, self.read = self.inner.merge, self.inner.read
            self.mgets: list[int] = []
            self.latests: list[tuple[float, int, int]] = []
            self.failing = False

        async def mget(
            self,
            opids: Sequence[str],
            known: Mapping[str, Known] = NOTHING_KNOWN,  # noqa: ARG002 - as the contract has it
        ) -> Sequence[AnswerOrError]:
            self.mgets.append(len(opids))
            await trio.lowlevel.checkpoint()
            raise StoreUnavailable("", "no mget today")

        async def latest(
            self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
        ) -> Sequence[AnswerOrError]:
            self.latests.append((trio.current_time(), after, limit))
            if self.failing:
                raise StoreUnavailable("", "no latest either")
            return await self.inner.latest(after, limit, known)

    store, errors = Recorded(), Errors()
    config = quiet(batch_limit=2, load_interval=1.0, clock=virtual_wall, on_error=errors)
    async with open_manager(store, config=config) as manager:
        for index in range(5):
            manager.begin(f"op{index}", "copy")
        await manager.flush_all()
        for index in range(5):
            await manager.read(f"op{index}")
        await eventually(lambda: len(store.latests) == 3)
        assert max(store.mgets) == 2
        assert sum(store.mgets) >= 5
        assert store.latests[0][1:] == (0, 2)
        _, after, _ = store.latests[1]
        assert after == pytest.approx(NEW_YEAR + (store.latests[0][0] - 1) * SECOND, abs=SECOND // 100)
        store.failing = True
        await eventually(lambda: len(store.latests) == 6)
        assert store.latests[4][1] == store.latests[5][1]
        assert [opid for opid, _ in errors.told] == ["", ""]
        assert manager.statistics().failing_since is not None
        store.failing = False
        await eventually(lambda: len(store.latests) == 8)
        assert manager.statistics().failing_since is None


async def test_a_row_that_cannot_be_read_is_reported_once_and_stops_no_other(autojump_clock: MockClock) -> None:
    class Half:
        def __init__(self) -> None:
            self.inner = MemoryStore()
            self.merge, self.read, self.mget = self.inner.merge, self.inner.read, self.inner.mget
            self.broken = True
            self.calls = 0

        async def latest(
            self,
            after: int,  # noqa: ARG002 - as the contract has it
            limit: int,
            known: Mapping[str, Known] = NOTHING_KNOWN,  # noqa: ARG002 - as the contract has it
        ) -> Sequence[AnswerOrError]:
            self.calls += 1
            answers = await self.inner.latest(0, limit, {})
            if not self.broken:
                return answers
            bad = Unreadable(opid="bad", error=CorruptEntry("bad", "nonsense"))
            return [bad if answer.opid == "bad" else answer for answer in answers]

    store, errors = Half(), Errors()
    await filled(store.inner, "op", "bad")
    async with open_manager(store, config=quiet(load_interval=1.0, on_error=errors)) as manager:
        await eventually(lambda: store.calls == 3)
        assert errors.kinds == [CorruptEntry]
        assert manager.statistics().cached_timelines == 1
        store.broken = False
        await eventually(lambda: store.calls == 5)
        store.broken = True
        await eventually(lambda: store.calls == 7)
    assert errors.kinds == [CorruptEntry, CorruptEntry]
    assert {opid for opid, _ in errors.told} == {"bad"}


@pytest.mark.parametrize("method", ["mget", "latest"])
async def test_a_load_that_hangs_times_out_and_is_tried_again(method: str, autojump_clock: MockClock) -> None:
    errors, store = Errors(), FaultyStore(MemoryStore())
    await filled(store, "op")
    store.hang(method, nth=1)  # type: ignore[arg-type]
    async with open_manager(store, config=quiet(load_interval=1.0, export_timeout=2.0, on_error=errors)) as manager:  # noqa: SIM117 - the inner one must end first
        async with manager.watch("op"):
            await errors.wait_for(1)
            await eventually(lambda: store.count(method) == 3)  # type: ignore[arg-type]
    assert [str(error) for error in errors.of("")] == ["the store did not answer within export_timeout=2.0 s"]


async def test_a_full_load_queue_drops_hints(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    await filled(store, *(f"op{index}" for index in range(10)))
    async with open_manager(store, config=quiet(batch_limit=1)) as manager:
        for _ in range(2):
            for index in range(10):
                await manager.read(f"op{index}")
        assert manager.statistics().cached_timelines == 10
    async with open_manager(store, config=quiet(batch_limit=1, export_timeout=1000)) as manager:
        hang = store.hang("mget", nth=None)
        for index in range(10):
            await manager.read(f"op{index}")
            await manager.read(f"op{index}")
        await hang.wait_reached()
        for index in range(10):
            await manager.read(f"op{index}")
        assert manager.statistics().hints_dropped == 5
        hang.release()


async def test_a_save_without_its_document_after_others_have_saved_is_loaded(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore(), hide_watch=True)
    store.strip_documents = True
    async with open_manager(store, config=quiet()) as manager:
        manager.record("op", completed(id="first"))
        await manager.flush("op")
        await filled(store, "op")
        manager.record("op", completed(id="second"))
        await manager.flush("op")
        assert len((await manager.read("op")).stages) == 2
        await eventually(lambda: store.count("mget") == 1)
        await trio.sleep(1)
        assert {stage.id for stage in (await manager.read("op")).stages} == {"first", "second", "s"}
        assert_counters_add_up(manager)


async def test_reads_do_not_starve_the_look_for_changes_in_a_slow_store(autojump_clock: MockClock) -> None:
    class Slow(WrappedStore):
        async def mget(
            self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN
        ) -> Sequence[AnswerOrError]:
            await trio.sleep(1.5)
            return await super().mget(opids, known)

        async def latest(
            self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
        ) -> Sequence[AnswerOrError]:
            looked_at.append(trio.current_time())
            return await super().latest(after, limit, known)

    looked_at: list[float] = []
    store = Slow()
    await filled(store, *(f"op{index}" for index in range(10)))
    async with open_manager(store, config=quiet(load_interval=1.0)) as manager:
        for _ in range(60):
            for index in range(10):
                await manager.read(f"op{index}")
                await trio.sleep(0.1)
    assert max(later - earlier for earlier, later in pairwise(looked_at)) < 6
    assert len(looked_at) > 10


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [None],
        [Found(opid="op", revision=1, document=Document(opid="op"))],  # type: ignore[arg-type]
        [Unchanged(opid="op", revision=None)],  # type: ignore[arg-type]
        [Found(opid=" bad ", revision=Revision(1, 1), document=Document(opid=" bad "))],
    ],
)
async def test_a_wrong_answer_to_a_load_is_the_stores_failure(wrong: Any, autojump_clock: MockClock) -> None:
    class Wrong(WrappedStore):
        is_wrong = True

        async def latest(self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN) -> Any:
            answers = await super().latest(after, limit, known)
            return wrong if self.is_wrong else answers

    store, errors = Wrong(), Errors()
    await filled(store, "op")
    async with open_manager(store, config=quiet(load_interval=1.0, on_error=errors)) as manager:
        await errors.wait_for(1)
        await trio.sleep(3)
        assert manager.statistics().cached_timelines == 0
        assert len(errors.told) == 1
        store.is_wrong = False
        await eventually(lambda: manager.statistics().cached_timelines == 1)


async def test_an_answer_about_an_impossible_operation_stops_no_other(autojump_clock: MockClock) -> None:
    class Odd(WrappedStore):
        async def latest(
            self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
        ) -> Sequence[AnswerOrError]:
            odd = Found(opid=" bad ", revision=Revision(1, 1), document=Document(opid=" bad "))
            return [odd, *await super().latest(after, limit, known)]

    store, errors = Odd(), Errors()
    await filled(store, "op")
    async with open_manager(store, config=quiet(load_interval=1.0, on_error=errors)) as manager:
        await eventually(lambda: manager.statistics().cached_timelines == 1)
    assert errors.kinds == [CorruptEntry]
