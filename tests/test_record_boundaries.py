"""
Tests of an operation's start and finish, and of its attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from timeline_trio import BufferFull, Canceled, InvalidValue, Status, open_manager
from timeline_trio.store import MemoryStore
from timeline_trio.testing import ManualClock

from .recording import NEW_YEAR, SECOND, quiet, stored
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock


async def test_a_start_alone_leaves_the_result_unknown(autojump_clock: MockClock) -> None:
    # parity 59
    async with open_manager(config=quiet(clock=ManualClock())) as manager:
        manager.start("op", "job", attributes={"a": 1})
        snapshot = await manager.read("op")
    assert (snapshot.name, snapshot.started_at, snapshot.status) == ("job", NEW_YEAR, Status.UNKNOWN)
    assert (snapshot.attributes, snapshot.finished_at) == ({"a": 1}, None)


async def test_a_finish_may_come_without_a_start_and_before_it(autojump_clock: MockClock) -> None:
    # parity 59, 75
    async with open_manager(config=quiet()) as manager:
        manager.finish("op", "bad", at=NEW_YEAR)
        snapshot = await manager.read("op")
        assert (snapshot.status, snapshot.error, snapshot.name, snapshot.started_at) == ("failed", "bad", "", None)
        manager.start("op", "job", at=NEW_YEAR + SECOND)
        snapshot = await manager.read("op")
    assert (snapshot.status, snapshot.name, snapshot.duration) == (Status.FAILED, "job", -SECOND)


async def test_stages_may_come_before_between_and_after(autojump_clock: MockClock) -> None:
    # parity 12, 54, 59
    async with open_manager(config=quiet()) as manager:
        early = manager.begin("op", "early")
        manager.start("op", "job")
        manager.begin("op", "between")
        manager.finish("op")
        manager.begin("op", "late")
        early.end()
        snapshot = await manager.read("op")
    assert (snapshot.status, len(snapshot.running_stages()), len(snapshot.stages)) == (Status.SUCCEEDED, 2, 3)


@pytest.mark.parametrize("flushed", [True, False])
async def test_repeats_that_say_nothing_new_keep_the_known_time(
    *,
    flushed: bool,
    autojump_clock: MockClock,
) -> None:
    # parity 53, 59
    clock, store = ManualClock(), MemoryStore()
    async with open_manager(store, config=quiet(clock=clock)) as manager:
        for _ in range(3):
            manager.start("op", "job", attributes={"a": 1})
            manager.start("op", "job")
            manager.finish("op", "bad")
            if flushed:
                await manager.flush("op")
            clock.advance(1)
        assert manager.statistics().changing_merges == int(flushed)
        snapshot = await manager.read("op")
        assert (snapshot.started_at, snapshot.finished_at) == (NEW_YEAR, NEW_YEAR)
        assert snapshot.attributes == {"a": 1}
        assert_counters_add_up(manager)
    document = await stored(store)
    assert (document.started_at, document.finished_at) == (NEW_YEAR, NEW_YEAR)


async def test_what_differs_replaces_with_its_own_time(autojump_clock: MockClock) -> None:
    # parity 28, 59
    clock = ManualClock()
    async with open_manager(config=quiet(clock=clock)) as manager:
        manager.start("op", "job", attributes={"a": 1})
        manager.finish("op", "bad")
        clock.advance(1)
        manager.start("op", "job", attributes={"a": 2})
        manager.finish("op")
        snapshot = await manager.read("op")
        assert (snapshot.started_at, snapshot.finished_at) == (NEW_YEAR + SECOND, NEW_YEAR + SECOND)
        assert (snapshot.attributes, snapshot.status, snapshot.error) == ({"a": 2}, Status.SUCCEEDED, "")
        manager.start("op", "job", at=NEW_YEAR - 1)
        manager.finish("op", at=NEW_YEAR - 2)
        snapshot = await manager.read("op")
    assert (snapshot.started_at, snapshot.finished_at, snapshot.attributes) == (NEW_YEAR - 1, NEW_YEAR - 2, {})


async def test_a_restarted_process_may_repeat_the_start(autojump_clock: MockClock) -> None:
    # parity 53
    store = MemoryStore()
    async with open_manager(store, config=quiet(clock=ManualClock())) as manager:
        manager.start("op", "job", attributes={"a": 1, "b": 2})
    async with open_manager(store, config=quiet(clock=ManualClock(NEW_YEAR + SECOND))) as manager:
        manager.start("op", "job", attributes={"b": 2})
        entry_before = manager.statistics().pending_updates
        snapshot = await manager.read("op")
        assert (entry_before, snapshot.started_at, snapshot.attributes) == (1, NEW_YEAR, {"a": 1, "b": 2})
        await manager.flush("op")
        assert manager.statistics().changing_merges == 0


async def test_a_repeating_process_shows_its_own_time_until_it_knows_better(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet(clock=ManualClock())) as manager:
        manager.start("op", "job")
    async with open_manager(store, config=quiet(clock=ManualClock(NEW_YEAR + SECOND))) as manager:
        manager.start("op", "job")
        async with manager.watch("op") as snapshots:
            assert (await anext(snapshots)).started_at == NEW_YEAR + SECOND
            await manager.flush("op")
            assert (await anext(snapshots)).started_at == NEW_YEAR


async def test_attributes_of_an_operation_are_laid_over_its_known_start(autojump_clock: MockClock) -> None:
    # parity 28
    clock = ManualClock()
    async with open_manager(MemoryStore(), config=quiet(clock=clock)) as manager:
        writer = manager.writer("op")
        with pytest.raises(InvalidValue) as caught:
            writer.set_attributes({"a": 1})
        assert caught.value.field == "start"
        writer.begin("copy")
        with pytest.raises(InvalidValue):
            writer.set_attributes({"a": 1})
        manager.start("op", "job", attributes={"a": 1, "b": 1})
        clock.advance(1)
        writer.set_attributes({"b": 2, "c": 3})
        await manager.flush("op")
        writer.set_attributes({"d": 4})
        manager.finish("op")
        snapshot = await manager.read("op")
    assert snapshot.attributes == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert (snapshot.started_at, snapshot.finished_at) == (NEW_YEAR, NEW_YEAR + SECOND)


async def test_attributes_that_are_set_on_a_live_start_keep_the_stored_time(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet(clock=ManualClock())) as manager:
        manager.start("op", "job")
    async with open_manager(store, config=quiet(clock=ManualClock(NEW_YEAR + SECOND))) as manager:
        await manager.read("op")
        manager.start("op", "job")
        manager.writer("op").set_attributes({"a": 1})
        assert (await manager.read("op")).started_at == NEW_YEAR
    assert (await stored(store)).started_at == NEW_YEAR


async def test_bad_boundaries_are_refused_by_name_and_leave_nothing(autojump_clock: MockClock) -> None:
    # parity 16, 65
    async with open_manager(config=quiet()) as manager:
        calls: tuple[tuple[Callable[[], None], str], ...] = (
            (lambda: manager.start("op", ""), "name"),
            (lambda: manager.start("op", 5), "name"),  # type: ignore[arg-type]
            (lambda: manager.start("op", "job", at=1.0), "at"),  # type: ignore[arg-type]
            (lambda: manager.start("op", "job", attributes={"a": b""}), "attributes['a']"),
            (lambda: manager.start(" ", "job"), "opid"),
            (lambda: manager.start([], "job"), "opid"),  # type: ignore[arg-type]
            (lambda: manager.finish([]), "opid"),  # type: ignore[arg-type]
            (lambda: manager.start("op", "job", attributes=[]), "attributes"),  # type: ignore[arg-type]
            (lambda: manager.finish("op", "\ud800"), "error"),
            (lambda: manager.finish("op", at="now"), "at"),  # type: ignore[arg-type]
            (lambda: manager.finish(" "), "opid"),
        )
        for call, field in calls:
            with pytest.raises(InvalidValue) as caught:
                call()
            assert caught.value.field == field
        assert manager.statistics().cached_timelines == 0
        manager.finish("op", Canceled("off"))
        assert (await manager.read("op")).status is Status.CANCELED


async def test_a_refused_finish_leaves_no_trace_and_may_be_tried_again_with_another_result(
    autojump_clock: MockClock,
) -> None:
    # parity 65
    store = MemoryStore()
    async with open_manager(store, config=quiet(max_pending_updates=1)) as manager:
        manager.start("op", "job")
        with pytest.raises(BufferFull, match="max_pending_updates=1"):
            manager.finish("op", "too early")
        assert (await manager.read("op")).status is Status.UNKNOWN
        await manager.flush("op")
        manager.finish("op")
        await manager.flush("op")
        assert manager.statistics().refused_updates == 1
        assert_counters_add_up(manager)
    assert (await stored(store)).status is Status.SUCCEEDED
