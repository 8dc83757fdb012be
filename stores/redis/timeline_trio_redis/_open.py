"""
Opening a store, by URL or over an application's client.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from ._connections import Connections
from ._options import DEFAULT_PREFIX, DEFAULT_TIMEOUT, check_options, parse_address, parse_url
from ._store import RedisStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from coredis import Redis, RedisCluster

    from ._connect import Connector
    from ._options import Address, Options
    from ._server import Server


def open_redis(
    server: str | Redis[bytes] | Redis[str] | RedisCluster[bytes] | RedisCluster[str],
    *,
    prefix: str = DEFAULT_PREFIX,
    expire_after: float | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    clock: Callable[[], int] = time.time_ns,
    overlap: float = 1.0,
) -> AbstractAsyncContextManager[RedisStore]:
    """
    Open a store in Redis, and close it at the end of the block.

    Args:
        server: `redis://user:password@host:port/number`, `rediss://` for TLS, with `?cluster=true` for a Redis Cluster
            and `?ca_file=path` for certificates to trust; or a client of the application, whose settings are used.
            The store has connections of its own, one a node and one a `watch`, and leaves the client's alone.
        prefix: begins all keys. Stores of one prefix share their operations.
        expire_after: seconds after its last change that an operation is kept; None for good.
        timeout: seconds for connecting, and for an answer.
        clock: returns nanoseconds since the epoch.
        overlap: seconds by which an update time may be ahead of `clock` and still be stepped past.

    Raises:
        InvalidValue: naming the argument; of `ca_file`, on entry.
        StoreUnavailable: on entry; the server cannot be used, and the message says what to do.
    """
    options = check_options(prefix=prefix, expire_after=expire_after, timeout=timeout, overlap=overlap)
    return _open(parse_address(server) if isinstance(server, str) else server, options, clock)


def open_store(url: str) -> AbstractAsyncContextManager[RedisStore]:
    """
    Open a store by URL, and close it at the end of the block.

    Args:
        url: as for `open_redis`, with the other options too, as in `?prefix=ops&expire_after=86400&timeout=5`.

    Raises:
        InvalidValue: naming the option; `ca_file` on entry, if the file holds no certificates.
        StoreUnavailable: on entry; the server cannot be used, and the message says what to do.
    """
    return _open(*parse_url(url))


@asynccontextmanager
async def _open(
    address: Address | object, options: Options, clock: Callable[[], int] = time.time_ns
) -> AsyncGenerator[RedisStore, None]:
    connector = _connector(address, options)
    await trio.lowlevel.checkpoint()
    failure: BaseException | None = None
    async with trio.open_nursery(strict_exception_groups=True) as nursery:
        connections = Connections()
        nursery.start_soon(connections.run)
        try:
            await connections.ready.wait()
            async with _store(_server(connector, connections), options, clock) as store:
                yield store
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again once the connections are closed
            failure = error
        finally:
            connections.close()
    if failure is not None:
        # Out of the nursery, which would wrap it.
        raise failure


@asynccontextmanager
async def _store(server: Server, options: Options, clock: Callable[[], int]) -> AsyncGenerator[RedisStore, None]:
    store = RedisStore(server, options, clock=clock)
    await store.ping()
    try:
        yield store
    finally:
        store.close()


def _connector(server: Address | object, options: Options) -> Connector:
    # Imported here: the driver takes half a second to import, which who uses another store need not spend.
    from ._connect import connector_of_address, connector_of_client  # noqa: PLC0415
    from ._options import Address  # noqa: PLC0415

    if isinstance(server, Address):
        return connector_of_address(server, options)
    return connector_of_client(server, options)


def _server(connector: Connector, connections: Connections) -> Server:
    from ._cluster import ClusterServer  # noqa: PLC0415 - as above
    from ._single import SingleServer  # noqa: PLC0415 - as above

    return ClusterServer(connector, connections) if connector.is_cluster else SingleServer(connector, connections)
