"""
The store: rows in a table of MySQL or MariaDB, which any number of machines share.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar, final

import msgspec

from timeline_trio.store import PoolStatistics, RowStore, Script, run_script_async

from ._dialect import MySQLDialect
from ._driver import MySQLError
from ._failures import translate
from ._schema import SCHEMA

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from ._connections import Connections
    from ._session import Session

T = TypeVar("T")


class MySQLStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a store is doing.

    Attributes:
        merges: how many merges were asked for.
        attempts: how many times these tried to write a row: again for each race that was lost.
        connections: the pool's.
    """

    merges: int
    attempts: int
    connections: PoolStatistics


@final
class MySQLStore(RowStore):
    """
    Keeps one row an operation in a table of MySQL or MariaDB.

    Opened by `open_mysql` or `open_mysql_on`, or by `timeline_trio.store.open_store` and a URL.
    """

    def __init__(
        self, connections: Connections, *, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0
    ) -> None:
        super().__init__(clock=clock, overlap=overlap)
        self._connections = connections

    def __repr__(self) -> str:
        return f"<MySQLStore of {self._connections.name}, {self.statistics()}>"

    async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
        """
        Run a script on one connection, in one hop to the event loop.

        Cancelled, it may have been done, and the connection is dropped; what has reached the server already may still
        be done, and is overwritten by nobody's mistake: whoever writes afterwards has read the row before, or loses the
        race.

        Raises:
            RaceLost: start the script anew.
            StoreUnavailable: the server cannot be used, or the table; the message says what to do.
        """
        del writes
        return await self._run(partial(_run_script, begin=begin, transaction=transaction))

    async def create_schema(self) -> None:
        """
        Create the table, if it is not there. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: it cannot be created, or the one that is there cannot be used; the message says what to
                do.
        """
        await self._run(_create_table)

    async def aclose(self) -> None:
        """
        Close all connections; those in use are dropped. Again, it does nothing more; cancelled, it drops them all.

        In a forked child it does nothing: the connections are the parent's.
        """
        await self._connections.aclose()

    def statistics(self) -> MySQLStatistics:
        """
        Return how the store is doing now.
        """
        return MySQLStatistics(merges=self.merges, attempts=self.attempts, connections=self._connections.statistics())

    async def _run(self, work: Callable[[Session], Coroutine[asyncio.Future[object], None, T]]) -> T:
        try:
            return await self._connections.run(work)
        except MySQLError as error:
            raise translate(error, self._connections.name) from error


async def _run_script(session: Session, *, begin: Callable[[], Script[T]], transaction: bool) -> T:
    try:
        dialect = MySQLDialect(session, await session.find_table())
        if not transaction:
            return await run_script_async(begin(), dialect)
        await session.begin()
        result = await run_script_async(begin(), dialect)
        await session.commit()
    except Exception as error:
        await session.recover(error)  # noqa: ASYNC120 - asyncio's
        raise
    return result


async def _create_table(session: Session) -> None:
    # Looked for first: an account that may not create tables may still use one.
    if not await session.has_table():
        await session.define(SCHEMA)
    await session.find_table()
