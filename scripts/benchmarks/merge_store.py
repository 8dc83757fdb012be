"""
Merges by a store, on Trio.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from documents import StoreWriter

from timeline_trio.store import Found, Known, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from loads import Step


@asynccontextmanager
async def open_writers(url: str, opids: Sequence[str], *, reads: bool) -> AsyncGenerator[list[Step]]:
    """
    Open the store once, and yield what the writer of each operation does for one merge.
    """
    async with open_store(url) as store:
        steps: list[Step] = []
        for opid in opids:
            found = await store.read(opid)
            assert isinstance(found, Found)
            known = None if reads else Known(found.revision, found.document)
            steps.append(StoreWriter(store, opid, known).merge)
        yield steps
