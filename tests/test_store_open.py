"""
Tests of opening a store by its URL.
"""

from __future__ import annotations

import pytest

from timeline_trio.model import InvalidValue
from timeline_trio.store import MemoryStore, NoopStore, open_store
from timeline_trio_sqlite import SQLiteStore


async def test_scheme_picks_the_store(tmp_path: object) -> None:
    async with open_store("memory:") as store:
        assert isinstance(store, MemoryStore)
    async with open_store("noop:") as store:
        assert isinstance(store, NoopStore)
    async with open_store(f"sqlite:///{tmp_path}/ops.db") as store:
        assert isinstance(store, SQLiteStore)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ops.db", "expected a URL with a scheme"),
        ("", "expected a URL with a scheme"),
        ("redis://[host", "expected a URL with a scheme"),
        ("mysql://host/ops", r"pip install 'timeline-trio\[mysql\]'"),
        ("redis://host", r"pip install 'timeline-trio\[redis\]'"),
        ("carrier-pigeon:coop", "'carrier-pigeon'; installed are: memory, noop, sqlite"),
    ],
)
async def test_store_that_is_not_there_is_answered_with_what_to_do(url: str, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem):
        async with open_store(url):
            pytest.fail("it opened")
