"""
Tests of what a manager tells about the Store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel

from timeline_trio import (
    StoreUnavailable,
    open_manager,
)
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore

from .recording import NEW_YEAR, SECOND, Errors, quiet, virtual_wall, wait_saved

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_health_tells_when_the_store_answered_last(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    async with open_manager(store, config=quiet(clock=virtual_wall, flush_interval=1.0)) as manager:
        statistics = manager.statistics()
        assert (statistics.last_save_at, statistics.last_load_at, statistics.failing_since) == (None, None, None)
        await trio.sleep(5)
        manager.begin("op", "copy")
        await manager.flush("op")
        assert manager.statistics().last_save_at == pytest.approx(NEW_YEAR + 5 * SECOND, abs=SECOND)
        await manager.read("op", fresh=True)
        assert manager.statistics().last_load_at == pytest.approx(NEW_YEAR + 5 * SECOND, abs=SECOND)
        store.outage = StoreUnavailable("", "down")
        manager.begin("op", "copy")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await manager.read("op", fresh=True)
            await trio.sleep(5)
        assert manager.statistics().failing_since == pytest.approx(NEW_YEAR + 5 * SECOND, abs=2 * SECOND)
        assert manager.statistics().oldest_pending > 0
        store.outage = None
        await wait_saved(manager)
        await manager.read("op", fresh=True)
        assert manager.statistics().failing_since is None


async def test_neither_loads_nor_saves_hide_that_the_others_fail(autojump_clock: MockClock) -> None:
    store = FaultyStore(MemoryStore())
    config = quiet(clock=virtual_wall, flush_interval=1.0, on_error=Errors())
    async with open_manager(store, config=config) as manager:
        manager.begin("op", "copy")
        await manager.flush("op")
        saves_fail = store.fail("merge", nth=None)
        manager.begin("op", "copy")
        with pytest.raises(StoreUnavailable):
            await manager.flush("op")
        since = manager.statistics().failing_since
        assert since is not None
        await trio.sleep(5)
        await manager.read("op", fresh=True)
        assert manager.statistics().failing_since == since
        loads_fail = store.fail("read", nth=None)
        with pytest.raises(StoreUnavailable):
            await manager.read("op", fresh=True)
        assert manager.statistics().failing_since == since
        saves_fail.release()
        await wait_saved(manager)
        later = manager.statistics().failing_since
        assert later is not None
        assert later > since
        loads_fail.release()
        await manager.read("op", fresh=True)
        assert manager.statistics().failing_since is None
