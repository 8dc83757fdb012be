"""
Opening a store, by path or by URL.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ._options import check_options, parse_url
from ._store import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager
    from os import PathLike

    from ._options import Journal, Options, Synchronous


def open_sqlite(
    path: str | PathLike[str],
    *,
    synchronous: Synchronous = "normal",
    journal: Journal = "wal",
    create: bool = True,
    clock: Callable[[], int] = time.time_ns,
    overlap: float = 1.0,
) -> AbstractAsyncContextManager[SQLiteStore]:
    """
    Open a store in an SQLite file, and close it at the end of the block.

    Args:
        path: the file. All processes that share it must be of one machine.
        synchronous: what a commit survives: `normal` the end of the process, `full` a loss of power too.
        journal: `wal`, or `delete` where the file system has no shared memory: readers and the writer then
            wait for each other. A file in use keeps the mode it has.
        create: whether a missing file and table are made. If not, nothing is opened before the first call.
        clock: returns nanoseconds since the epoch.
        overlap: seconds by which a row's update time may be ahead of `clock` and still be stepped past.

    Raises:
        InvalidValue: naming the argument.
        StoreUnavailable: on entry; the file cannot be created or used, and the message says what to do.
    """
    options = check_options(path, synchronous=synchronous, journal=journal, create=create)
    return _open(options, clock, overlap)


def open_store(url: str) -> AbstractAsyncContextManager[SQLiteStore]:
    """
    Open a store by URL, and close it at the end of the block.

    Args:
        url: `sqlite:///relative.db` or `sqlite:////absolute/path.db`, percent-encoded, with options as in
            `?synchronous=full&journal=delete&create=false`.

    Raises:
        InvalidValue: naming the option.
        StoreUnavailable: on entry; the file cannot be created or used, and the message says what to do.
    """
    return _open(parse_url(url))


@asynccontextmanager
async def _open(
    options: Options, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0
) -> AsyncGenerator[SQLiteStore, None]:
    store = SQLiteStore(options, clock=clock, overlap=overlap)
    try:
        if options.create:
            await store.create_schema()
        yield store
    finally:
        await store.aclose()
