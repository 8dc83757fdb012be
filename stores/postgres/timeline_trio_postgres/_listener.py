"""
Hearing of changes: a connection of its own that listens, on Trio's loop.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import psycopg
import trio
from psycopg import sql

from timeline_trio.store import StoreUnavailable

from ._changes import Feed, decode
from ._failures import translate
from ._protocol import ask, connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from psycopg.pq.abc import PGconn

    from ._options import Options


@asynccontextmanager
async def listening(options: Options, channel: str, *, quiet: float = 15.0) -> AsyncGenerator[Feed]:
    """
    Listen to a channel until the end of the block; what the block raises leaves it unchanged.

    Args:
        options: how to reach the database.
        channel: the channel.
        quiet: seconds without a word after which the server is asked whether it is still there.

    Raises:
        StoreUnavailable: on entry; the server does not let us listen.
    """
    feed = Feed(options.name)
    failure: BaseException | None = None
    connection = await _open(options, channel)
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            nursery.start_soon(_hear, connection, feed, quiet, options.connect_timeout)
            try:
                yield feed
            # Raised below: the nursery would wrap it.
            except BaseException as error:  # noqa: ASYNC103, BLE001
                failure = error
            nursery.cancel_scope.cancel()
    finally:
        feed.end()
        connection.finish()
    if failure is not None:
        raise failure


async def _open(options: Options, channel: str) -> PGconn:
    try:
        with trio.fail_after(options.connect_timeout):
            connection = await connect(options)
            try:
                await ask(connection, sql.SQL("LISTEN {}").format(sql.Identifier(channel)).as_bytes(None))
            except BaseException:
                connection.finish()
                raise
    except psycopg.Error as error:
        raise translate(error, options.name) from error
    except trio.TooSlowError as error:
        seconds = options.connect_timeout
        raise StoreUnavailable("", f"{options.name} did not let us listen within {seconds} s") from error
    return connection


async def _hear(  # noqa: ASYNC910 - it ends by a failure
    connection: PGconn, feed: Feed, quiet: float, patience: float
) -> None:
    """
    Pass on what comes in, always: what nobody reads would fill the queue that all sessions of the server share.
    """
    try:
        while True:
            with trio.move_on_after(quiet) as silence:
                await trio.lowlevel.wait_readable(connection.socket)
                connection.consume_input()
            if silence.cancelled_caught:
                with trio.fail_after(patience):
                    await ask(connection, b"SELECT")
            while (notification := connection.notifies()) is not None:
                if change := decode(bytes(notification.extra)):
                    feed.offer(change)
    except (psycopg.Error, OSError, trio.TooSlowError) as error:
        feed.fail(error)
