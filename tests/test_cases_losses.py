"""
What goes wrong with single updates: refused, repeated, poisoned or changed ones, and who is told of it.

Each test names the case that it stands for.
"""

from __future__ import annotations

import logging
import random
import resource
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import (
    Actor,
    BufferFull,
    Config,
    InvalidAttribute,
    InvalidStage,
    StoreRejected,
    StoreUnavailable,
    open_manager,
)
from timeline_trio.model import Stage
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore, ManualClock

from .case_support import SECOND, Failures, WrappedStore, stage_ids, stored, version, virtual_time
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from trio.testing import MockClock

    from timeline_trio import Manager
    from timeline_trio.model import Update
    from timeline_trio.store import Known, Merged


class RecordingHandler(logging.Handler):
    """
    Records a stage for every log line.
    """

    def __init__(self, manager: Manager) -> None:
        super().__init__()
        self._manager = manager

    def emit(self, record: logging.LogRecord) -> None:
        self._manager.begin("log", record.getMessage())


async def test_a_log_handler_that_records_does_not_feed_itself(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    # A13
    store = FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    config = Config(max_pending_updates=50, max_pending_timelines=10)
    async with open_manager(store, config=config) as manager:
        handler = RecordingHandler(manager)
        logging.getLogger().addHandler(handler)
        try:
            for number in range(100):
                manager.begin(f"op {number % 5}", "secret name", attributes={"secret key": "secret value"})
                logging.getLogger("elsewhere").warning("line %d", number)
                manager.evict("op 3")
                await trio.sleep(0.1)
                assert manager.statistics().pending_updates <= 50 * 10
        except BufferFull:
            assert manager.statistics().refused_updates
        finally:
            logging.getLogger().removeHandler(handler)
        assert_counters_add_up(manager)
        store.outage = None
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("timeline_trio")]
    assert 1 <= len(ours) <= 6
    assert not any("secret" in line for line in ours)
    assert_counters_add_up(manager)


async def test_a_sink_that_hangs_costs_refusals_but_neither_memory_nor_what_was_accepted(
    autojump_clock: MockClock,
) -> None:
    # A19
    store = FaultyStore(MemoryStore())
    hangs = [store.hang("merge", nth=None), store.hang("merge_many", nth=None)]
    config = Config(max_timelines=50, max_pending_timelines=100, max_pending_updates=50, export_timeout=10**6)
    accepted: set[tuple[str, str]] = set()
    chance = random.Random(1)  # noqa: S311 - the same choices in each run
    async with open_manager(store, config=config) as manager:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(200_000):
            opid, stage_id = f"op {chance.randrange(5_000)}", str(number)
            if chance.random() < 0.02:
                manager.evict(opid)
            with suppress(BufferFull):
                manager.begin(opid, "work", stage_id=stage_id)
                accepted.add((opid, stage_id))
            if number % 10_000 == 0:
                await trio.sleep(1)
                counters = manager.statistics()
                assert counters.pending_timelines <= 100
                assert counters.pending_updates <= 100 * 50
                assert counters.cached_timelines <= 50
                assert_counters_add_up(manager)
        counters = manager.statistics()
        assert counters.refused_updates == 200_000 - len(accepted)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 50_000, "kibibytes, a tenth of what all of them would take"
        assert counters.accepted_updates == len(accepted) >= 1_000
        for hang in hangs:
            hang.release()
        await manager.flush_all()
        assert manager.statistics().dropped_updates == 0
        assert_counters_add_up(manager)
    opids = {opid for opid, _ in accepted}
    assert {(opid, key[0]) for opid in opids for key in (await stored(store, opid)).stages} == accepted


async def test_refusals_are_counted_and_logged_as_one_streak(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    # A20
    store = FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    async with open_manager(store, config=Config(max_pending_updates=10, on_error=Failures())) as manager:
        for number in range(10):
            manager.begin("op", "work", stage_id=str(number))
        for _ in range(100):
            for _ in range(10):
                with pytest.raises(BufferFull) as caught:
                    manager.begin("op", "work")
            await trio.sleep(0.05)
        assert (caught.value.option, caught.value.limit) == ("max_pending_updates", 10)
        counters = manager.statistics()
        assert (counters.refused_updates, counters.dropped_updates) == (1_000, 0)

        store.outage = None
        await trio.sleep(60)
        assert manager.statistics().refused_updates == 1_000
        assert manager.statistics().saved_updates == 10
        assert_counters_add_up(manager)
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 2
        assert "refused" in lines[0]
        assert "1000 updates were refused" in lines[1]


@pytest.mark.parametrize("value", [object(), float("nan"), "\ud800", b"bytes"], ids=repr)
async def test_a_bad_value_is_refused_at_the_call_and_changes_nothing(value: object, autojump_clock: MockClock) -> None:
    # A22
    store = MemoryStore()
    async with open_manager(store) as manager:
        with pytest.raises(InvalidAttribute) as caught:
            manager.begin("op", "work", attributes={"good": 1, "x": value})
        assert caught.value.key == "x"
        assert manager.statistics().cached_timelines == 0
        handle = manager.begin("op", "work", stage_id="a", attributes={"x": 1})
        with pytest.raises(InvalidAttribute):
            handle.end(attributes={"x": value})
        with pytest.raises(InvalidAttribute):
            Stage.completed("work", 0, 1, id="b", attributes={"x": value})
        handle.end()
        assert_counters_add_up(manager)
    (stage,) = (await stored(store)).stages.values()
    assert stage.attributes == {"x": 1}
    assert stage.finished_at is not None


class Picky(WrappedStore):
    """
    Refuses one operation for good.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        self.asked.append(opid)
        if opid == "bad":
            await trio.lowlevel.checkpoint()
            raise StoreRejected(opid, "not this one")
        return await super().merge(opid, update, known)


async def test_a_rejected_document_is_not_tried_again_and_stops_no_other(autojump_clock: MockClock) -> None:
    # A22
    store, failures = Picky(), Failures()
    opids = ["a", "b", "bad", "c", "d"]
    async with open_manager(store, config=Config(on_error=failures)) as manager:
        for opid in opids:
            manager.begin(opid, "work")
        await trio.sleep(15)
        assert manager.statistics().rejected_updates == 1
        assert manager.statistics().saved_updates == 4
        assert_counters_add_up(manager)
        assert not (await manager.read("bad")).collection.local_flushed
    assert store.asked == opids
    assert [(opid, type(error)) for opid, error in failures.all] == [("bad", StoreRejected)]


async def test_a_rejected_batch_loses_its_culprit_alone(autojump_clock: MockClock) -> None:
    # A22, within one document
    class PickyAboutStages(WrappedStore):
        async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
            if "bad" in stage_ids(update.stages):
                await trio.lowlevel.checkpoint()
                raise StoreRejected(opid, "not this one")
            return await super().merge(opid, update, known)

    store, failures = PickyAboutStages(), Failures()
    async with open_manager(store, config=Config(on_error=failures)) as manager:
        for stage_id in ("a", "b", "bad", "c", "d"):
            manager.begin("op", "work", stage_id=stage_id)
        with pytest.raises(StoreRejected):
            await manager.flush("op")
        await manager.flush("op")
        assert manager.statistics().rejected_updates == 1
        assert_counters_add_up(manager)
        manager.begin("op", "work", stage_id="e")
        await manager.flush("op")
        assert_counters_add_up(manager)
    assert stage_ids((await stored(store)).stages.values()) == ["a", "b", "c", "d", "e"]
    assert len(failures.all) == 1


async def test_nothing_that_the_caller_changes_afterwards_is_seen(autojump_clock: MockClock) -> None:
    # A24
    attributes: dict[str, object] = {"a": [1]}
    async with open_manager(MemoryStore()) as manager:
        manager.begin("op", "work", stage_id="a", attributes=attributes)
        manager.start("op", "deploy", attributes=attributes)
        assert attributes == {"a": [1]}
        inner = attributes["a"]
        assert isinstance(inner, list)
        inner.append(2)
        attributes["b"] = 3
        snapshot = await manager.read("op")
        (stage,) = snapshot.stages
        assert stage.attributes == snapshot.attributes == {"a": [1]}

        stage.attributes["a"] = "changed"
        snapshot.attributes["a"] = "changed"
        manager.begin("op", "work", stage_id="b")
        assert len(snapshot.stages) == 1, "detached from later recordings"
        assert (await manager.read("op")).attributes == {"a": [1]}
        assert (await manager.read("op")).stages[0].attributes == {"a": [1]}


async def test_a_retry_of_what_had_arrived_changes_nothing(autojump_clock: MockClock) -> None:
    # A25
    store = FaultyStore(MemoryStore(clock=virtual_time))
    lost = store.lose_reply()
    actor = Actor("1", "host")
    async with open_manager(store, config=Config(on_error=Failures(), clock=virtual_time)) as manager:
        manager.begin("op", "work", stage_id="a", actor=actor)
        manager.start("op", "deploy")
        await lost.wait_reached()
        arrived_at = virtual_time()
        assert await version(store) == 1
        await trio.sleep(10)
        assert manager.statistics().pending_updates == 0
        assert manager.statistics().changing_merges == 0
        assert_counters_add_up(manager)
        assert (await manager.read("op")).collection.local_flushed
    assert store.count("merge") == 2
    assert list((await stored(store)).stages) == [("a", actor.key)]
    assert await version(store) == 1
    assert not await store.latest(arrived_at, 10), "updated_at was not moved"


async def test_the_length_of_a_stage_comes_from_a_clock_that_never_steps(autojump_clock: MockClock) -> None:
    # A28
    clock = ManualClock()
    store = MemoryStore()
    async with open_manager(store, config=Config(clock=clock)) as manager:
        earliest = time.monotonic_ns()
        handle = manager.begin("op", "work")
        latest = time.monotonic_ns()
        clock.advance(-0.5)
        while time.monotonic_ns() < latest + 1_000_000:
            pass
        before = time.monotonic_ns()
        handle.end()
        after = time.monotonic_ns()
        snapshot = await manager.read("op")
        (stage,) = snapshot.stages
        assert stage.finished_at == stage.started_at - SECOND // 2, "kept as recorded"
        assert stage.elapsed_ns is not None
        assert before - latest <= stage.elapsed_ns <= after - earliest
        assert stage.duration(snapshot.captured_at) == stage.elapsed_ns

        with pytest.raises(InvalidStage):
            Stage.completed("work", 10 * SECOND, 7 * SECOND, id="a")
        manager.start("op", "deploy", at=10 * SECOND)
        manager.finish("op", at=7 * SECOND)
        assert (await manager.read("op")).duration == -3 * SECOND
    document = await stored(store)
    assert (document.started_at, document.finished_at) == (10 * SECOND, 7 * SECOND)
