"""
Opening a store, by connection parameters or by URL.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ._options import check_options, parse_url
from ._store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from ._options import Options


def open_postgres(  # noqa: PLR0913 - flat, as those of the other stores
    conninfo: str | Mapping[str, str | int],
    *,
    pool_size: int = 4,
    connect_timeout: float | None = None,
    create: bool = True,
    notify: bool = True,
    prepare: bool = True,
    schema: str = "",
    clock: Callable[[], int] = time.time_ns,
    overlap: float = 1.0,
) -> AbstractAsyncContextManager[PostgresStore]:
    """
    Open a store in a PostgreSQL database, and close it at the end of the block.

    Args:
        conninfo: how to reach the database, in one of libpq's forms, `postgres://user:password@host:port/database` or
            `host=... dbname=...`, or as a mapping of libpq's parameters. The database must be named, there or in
            libpq's environment.
        pool_size: how many connections there may be at once, without those of `watch`.
        connect_timeout: seconds within which a connection must be open, over all addresses; if None, those of
            `conninfo`, else 5.
        create: whether a missing table is made. If not, nothing is opened before the first call.
        notify: whether commits are told to whoever watches; without, the store has no `watch`.
        prepare: whether statements are prepared on the server; a pooler of transactions may forbid it.
        schema: the schema of the table; by default the one that the search path finds.
        clock: returns nanoseconds since the epoch.
        overlap: seconds by which a row's update time may be ahead of `clock` and still be stepped past.

    Raises:
        InvalidValue: naming the argument.
        StoreUnavailable: on entry; the database cannot be used, and the message says what to do.
    """
    options = check_options(
        conninfo,
        pool_size=pool_size,
        connect_timeout=connect_timeout,
        create=create,
        notify=notify,
        prepare=prepare,
        schema=schema,
    )
    return _open(options, clock, overlap)


def open_store(url: str) -> AbstractAsyncContextManager[PostgresStore]:
    """
    Open a store by URL, and close it at the end of the block.

    Args:
        url: `postgres://user:password@host:port/database` or `postgresql://...`, percent-encoded, with options as in
            `?pool_size=8&notify=false`, and libpq's own parameters as in `?sslmode=verify-full`.

    Raises:
        InvalidValue: naming the option.
        StoreUnavailable: on entry; the database cannot be used, and the message says what to do.
    """
    return _open(parse_url(url))


@asynccontextmanager
async def _open(
    options: Options, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0
) -> AsyncGenerator[PostgresStore]:
    store = PostgresStore(options, clock=clock, overlap=overlap)
    try:
        if options.create:
            await store.create_schema()
        yield store
    finally:
        await store.aclose()
