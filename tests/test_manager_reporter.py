"""
Tests of what the log says where no `on_error` is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from timeline_trio import open_manager
from timeline_trio.store import MemoryStore, StoreUnavailable
from timeline_trio.testing import FaultyStore

from .support import assert_counters_add_up

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


async def test_a_loss_at_the_end_has_its_line_though_a_failure_was_logged_just_before(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    async with open_manager(store, drain_timeout=1.0) as manager:
        manager.begin("op", "work")
        await trio.sleep(3)
    lines = [record.getMessage() for record in caplog.records if record.name == "timeline_trio"]
    assert any("StoreUnavailable: down" in line for line in lines)
    assert any("updates are lost: DrainError" in line and "'op' (1)" in line for line in lines)
    assert manager.statistics().dropped_updates == 1
    assert_counters_add_up(manager)


async def test_failures_without_a_line_are_counted_in_the_next_one(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    async with open_manager(store) as manager:
        for opid in ("a", "b", "c"):
            manager.begin(opid, "work")
        await trio.sleep(3)
        store.outage = None
    lines = [record.getMessage() for record in caplog.records if record.name == "timeline_trio"]
    assert len(lines) == 2
    assert "further failures were not logged" in lines[1]
