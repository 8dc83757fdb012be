"""
Stores by URL: the scheme names an entry point of the group `timeline_trio.stores`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from .._errors import InvalidValue
from ._memory import MemoryStore
from ._noop import NoopStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ._contract import Store

ENTRY_POINT_GROUP = "timeline_trio.stores"
_EXTRAS: Final = {
    "mysql": "mysql",
    "postgres": "postgres",
    "postgresql": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "sqlite": "sqlite",
}
"""Which extra of this distribution serves a scheme."""


@asynccontextmanager
async def open_store(url: str) -> AsyncGenerator[Store]:
    """
    Open a Store by its URL, such as `sqlite:///ops.db`, and close it at the end of the block.

    Another package adds a scheme by an entry point of the group `timeline_trio.stores` that names a function from
    the URL to an async context manager.

    Raises:
        InvalidValue: the URL has no scheme, or one that no installed package serves; the message says what to
            install.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # brackets around what is no IPv6 address
        scheme = ""
    if not scheme:
        raise InvalidValue("url", "expected a URL with a scheme, such as sqlite:///ops.db or memory:")
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        opener = entry_point.load()
        async with opener(url) as store:
            yield store
        return
    if extra := _EXTRAS.get(scheme):
        raise InvalidValue("url", f"{scheme} stores are not installed; run: pip install 'timeline-trio[{extra}]'")
    installed = ", ".join(sorted(entry_points(group=ENTRY_POINT_GROUP).names))
    raise InvalidValue("url", f"no installed package serves the scheme {scheme!r}; installed are: {installed}")


@asynccontextmanager
async def open_memory(url: str) -> AsyncGenerator[Store]:
    """
    Open a new, empty store in this process's memory: `memory:`.
    """
    del url
    yield MemoryStore()


@asynccontextmanager
async def open_noop(url: str) -> AsyncGenerator[Store]:
    """
    Open a store that keeps nothing: `noop:`.
    """
    del url
    yield NoopStore()
