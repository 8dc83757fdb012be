"""
Tests of opening a store by its URL.
"""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import distribution
from typing import TYPE_CHECKING, cast

import pytest

from timeline_trio.model import InvalidValue
from timeline_trio.store import MemoryStore, NoopStore, open_store
from timeline_trio_sqlite import SQLiteStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def core_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Let nothing be installed but the core, without a store distribution.
    """
    (core,) = cast("Path", distribution("timeline-trio").locate_file("")).glob("timeline_trio-*.dist-info")
    shutil.copytree(core, tmp_path / core.name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])


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
        ("sqlite:///ops.db", r"pip install 'timeline-trio\[sqlite\]'"),
        ("mysql://host/ops", r"pip install 'timeline-trio\[mysql\]'"),
        ("postgres://host/ops", r"pip install 'timeline-trio\[postgres\]'"),
        ("postgresql://host/ops", r"pip install 'timeline-trio\[postgres\]'"),
        ("redis://host", r"pip install 'timeline-trio\[redis\]'"),
        ("rediss://host", r"pip install 'timeline-trio\[redis\]'"),
        ("carrier-pigeon:coop", "'carrier-pigeon'; installed are: memory, noop"),
    ],
)
async def test_store_that_is_not_there_is_answered_with_what_to_do(url: str, problem: str, core_alone: None) -> None:
    del core_alone
    with pytest.raises(InvalidValue, match=problem):
        async with open_store(url):
            pytest.fail("it opened")
