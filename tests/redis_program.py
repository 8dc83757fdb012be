"""
A program that saves to Redis until Ctrl-C ends it, and says what left its block.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import coredis
import trio
from coredis.connection import TCPConnection, TCPLocation
from coredis.pool import ConnectionPool

from timeline_trio import Config, Stage, open_manager
from timeline_trio_redis import open_redis

if TYPE_CHECKING:
    from anyio.abc import ByteStream


class InterruptedConnection(TCPConnection):
    """
    A connection whose reading task is hit by Ctrl-C, once.
    """

    countdown = 30

    async def _connect(self) -> ByteStream:
        stream = await super()._connect()
        receive = stream.receive

        async def receive_or_be_hit(max_bytes: int = 65_536) -> bytes:
            data = await receive(max_bytes)
            type(self).countdown -= 1
            if type(self).countdown == 0:
                raise KeyboardInterrupt
            return data

        stream.receive = receive_or_be_hit  # type: ignore[method-assign]
        return stream


async def main(url: str, opid: str, where: str) -> None:
    """
    Record one stage after the other and flush each; print how many were recorded once Ctrl-C has come.
    """
    server: Any = url
    if where == "driver":
        parts = urlsplit(url)
        location = TCPLocation(parts.hostname or "", parts.port or 0)
        server = coredis.Redis(
            connection_pool=ConnectionPool(connection_class=InterruptedConnection, location=location)
        )
    recorded = 0
    try:
        async with open_redis(server) as store, store.watch(), open_manager(store, config=Config()) as manager:
            print("ready", flush=True)  # noqa: T201 - read by the test
            while True:
                manager.record(opid, Stage.completed("work", 0, 1, id=f"s{recorded}"))
                recorded += 1
                await manager.flush(opid)
    except BaseException as error:  # noqa: ASYNC103, BLE001 - it is told
        print(type(error).__name__, recorded, flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:4])  # type: ignore[arg-type]
