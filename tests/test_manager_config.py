"""
Tests of the options of a manager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from timeline_trio import Config, InvalidValue, new, open_manager
from timeline_trio.store import MemoryStore

if TYPE_CHECKING:
    from trio.testing import MockClock


class WithoutLatest:
    def __init__(self) -> None:
        inner = MemoryStore()
        self.merge, self.read, self.mget, self.latest = inner.merge, inner.read, inner.mget, None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"actor": "me"}, "actor"),
        ({"batch_limit": 0}, "batch_limit"),
        ({"batch_limit": 1.0}, "batch_limit"),
        ({"max_timelines": True}, "max_timelines"),
        ({"max_pending_timelines": -1}, "max_pending_timelines"),
        ({"max_pending_updates": 0}, "max_pending_updates"),
        ({"max_fact_bytes": "1"}, "max_fact_bytes"),
        ({"flush_interval": 0}, "flush_interval"),
        ({"flush_interval": float("inf")}, "flush_interval"),
        ({"load_interval": float("nan")}, "load_interval"),
        ({"export_timeout": "5"}, "export_timeout"),
        ({"redact": 5}, "redact"),
        ({"on_error": "log"}, "on_error"),
        ({"clock": None}, "clock"),
        ({"new_id": 5}, "new_id"),
    ],
)
def test_options_are_refused_by_name(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Config(**options)  # type: ignore[arg-type]
    assert caught.value.field == field


async def test_other_options_of_the_manager_are_refused_by_name(autojump_clock: MockClock) -> None:
    arguments: dict[str, Any]
    for arguments, field in (
        ({"config": {}}, "config"),
        ({"drain_timeout": -1}, "drain_timeout"),
        ({"drain_timeout": float("nan")}, "drain_timeout"),
        ({"drain_timeout": None}, "drain_timeout"),
    ):
        with pytest.raises(InvalidValue) as caught:
            async with open_manager(**arguments):
                pass
        assert caught.value.field == field
    assert Config(batch_limit=3).batch_limit == 3
    async with open_manager(config=Config(batch_limit=3)) as manager:
        assert manager.config.batch_limit == 3
        assert repr(manager).startswith("<Manager open, 0 timelines, 0 of them pending, on ")
    assert repr(manager).startswith("<Manager closed")


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        ("sqlite:///ops.db", "open_store\\(url\\)"),
        (5, "got int without merge, read, mget, latest"),
        (MemoryStore, "got a class"),
        (WithoutLatest(), "got WithoutLatest without latest"),
    ],
)
async def test_what_is_no_store_is_refused(store: Any, problem: str, autojump_clock: MockClock) -> None:
    with pytest.raises(InvalidValue, match=problem) as caught:
        async with open_manager(store):
            pass
    assert caught.value.field == "store"
    with pytest.raises(InvalidValue, match=problem):
        new("op", store=store)
