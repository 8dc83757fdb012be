"""
Opening a store: by address, by URL, or on the application's own pool.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from timeline_trio.model import InvalidValue

from ._bridge import open_bridge, require_bridge
from ._connections import BorrowedConnections, OwnConnections
from ._driver import is_pool
from ._options import check_options, parse_url
from ._store import MySQLStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from ._connections import Connections
    from ._options import MySQLAddress, Options


def open_mysql(
    address: MySQLAddress,
    *,
    pool_size: int = 4,
    connect_timeout: float = 5.0,
    create: bool = True,
    clock: Callable[[], int] = time.time_ns,
    overlap: float = 1.0,
) -> AbstractAsyncContextManager[MySQLStore]:
    """
    Open a store in a database, and close it at the end of the block.

    Entering imports trio-asyncio, which changes asyncio for the whole process: `asyncio.run` gets a loop of it too.

    Args:
        address: where the database is, and as whom to enter it.
        pool_size: how many connections there may be at once. They are opened when they are needed.
        connect_timeout: seconds within which one must be open, login included.
        create: whether a missing table is made. If not, the server is not asked for anything before the first call.
        clock: returns nanoseconds since the epoch.
        overlap: seconds by which a row's update time may be ahead of `clock` and still be stepped past.

    Raises:
        InvalidValue: naming the argument; "python" where this Python is too new for trio-asyncio.
        StoreUnavailable: on entry; the server or the table cannot be used, and the message says what to do.
    """
    require_bridge()
    options = check_options(address, pool_size=pool_size, connect_timeout=connect_timeout, create=create)
    return _open(options, clock, overlap)


def open_mysql_on(
    pool: object,
    *,
    create: bool = True,
    clock: Callable[[], int] = time.time_ns,
    overlap: float = 1.0,
) -> AbstractAsyncContextManager[MySQLStore]:
    """
    Open a store on a pool of the application's own, and leave the pool open at the end of the block.

    Args:
        pool: made by `asyncmy.create_pool` on a loop of `trio_asyncio.open_loop()` that is open for as long as the
            store, with `charset="utf8mb4"`. A connection with another character set, an `sql_mode` that is not strict
            or `READ UNCOMMITTED` is refused by `StoreUnavailable`. While the store has one, each statement is committed
            by itself, and then it is left as it was. Waiting for one has no limit but the caller's.
        create: whether a missing table is made. If not, the server is not asked for anything before the first call.
        clock: returns nanoseconds since the epoch.
        overlap: seconds by which a row's update time may be ahead of `clock` and still be stepped past.

    Raises:
        InvalidValue: naming the argument.
        StoreUnavailable: on entry; the server or the table cannot be used, and the message says what to do.
    """
    if not is_pool(pool):
        raise InvalidValue("pool", "expected a pool of asyncmy.create_pool, made inside of trio_asyncio.open_loop()")
    return _serve(BorrowedConnections(pool), create=create, clock=clock, overlap=overlap)


def open_store(url: str) -> AbstractAsyncContextManager[MySQLStore]:
    """
    Open a store by URL, and close it at the end of the block.

    Args:
        url: `mysql://user:password@host:port/database`, percent-encoded, with options as in
            `?pool_size=8&create=false&connect_timeout=2&ssl=true&unix_socket=/run/mysqld/mysqld.sock`.

    Raises:
        InvalidValue: naming the option; "python" where this Python is too new for trio-asyncio.
        StoreUnavailable: on entry; the server or the table cannot be used, and the message says what to do.
    """
    require_bridge()
    return _open(parse_url(url))


@asynccontextmanager
async def _open(
    options: Options, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0
) -> AsyncGenerator[MySQLStore]:
    async with (
        open_bridge() as bridge,
        _serve(OwnConnections(options, bridge), create=options.create, clock=clock, overlap=overlap) as store,
    ):
        yield store


@asynccontextmanager
async def _serve(
    connections: Connections, *, create: bool, clock: Callable[[], int], overlap: float
) -> AsyncGenerator[MySQLStore]:
    store = MySQLStore(connections, clock=clock, overlap=overlap)
    try:
        if create:
            await store.create_schema()
        yield store
    finally:
        await store.aclose()
