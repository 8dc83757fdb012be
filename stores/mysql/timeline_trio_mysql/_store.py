"""
The store: rows in tables of MySQL or MariaDB, which any number of machines share.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, final

import msgspec

from timeline_trio import TimelineError
from timeline_trio.store import PoolStatistics, RaceLost, RowStore, Script, run_script_async

from ._dialect import MySQLDialect
from ._driver import MySQLError
from ._failures import is_forbidden, translate, translate_other
from ._grants import cannot_create, cannot_use
from ._schema import STATEMENTS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from ._connections import Connections
    from ._schema import Table
    from ._session import Session

T = TypeVar("T")

_logger: Final = logging.getLogger("timeline_trio_mysql")


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
    Keeps one row an operation in a table of MySQL or MariaDB, and the changes of large ones beside them.

    Opened by `open_mysql` or `open_mysql_on`, or by `timeline_trio.store.open_store` and a URL.
    """

    def __init__(
        self, connections: Connections, *, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0
    ) -> None:
        super().__init__(clock=clock, overlap=overlap)
        self._connections = connections
        self._keeps_changes = False  # nobody has looked yet
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<MySQLStore of {self._connections.name}, {self.statistics()}>"

    @property
    def keeps_changes(self) -> bool:
        """
        Whether the database has the table and the column for changes beside rows, and the account may use them.
        """
        return self._keeps_changes

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
        result = await self._run(partial(_run_script, begin=begin, transaction=transaction, note=self._note))
        if writes and not self._keeps_changes and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s has no place for the changes of large operations: each save writes its operation anew. Call "
                "create_schema() as a user who may alter the table, and GRANT SELECT, INSERT, DELETE ON "
                "timeline_changes.",
                self._connections.name,
            )
        return result

    async def create_schema(self) -> None:
        """
        Create what is missing of the tables. Cancelled, it may have been done.

        A table of an older version that cannot be altered, or not within a few seconds, is used as it is.

        Raises:
            StoreUnavailable: they cannot be created, or the one that is there cannot be used; the message says what to
                do.
        """
        self._note(await self._run(_create_tables))

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

    def _note(self, table: Table) -> None:
        self._keeps_changes = table.keeps_changes

    async def _run(self, work: Callable[[Session], Coroutine[asyncio.Future[object], None, T]]) -> T:
        try:
            return await self._connections.run(work)
        except MySQLError as error:
            raise translate(error, self._connections.name) from error
        except (TimelineError, RaceLost):
            raise
        except Exception as error:
            raise translate_other(error, self._connections.name) from error


async def _run_script(
    session: Session, *, begin: Callable[[], Script[T]], transaction: bool, note: Callable[[Table], None]
) -> T:
    try:
        table = await session.find_table()
        note(table)
        dialect = MySQLDialect(session, table, transaction=transaction)
        if not transaction:
            return await run_script_async(begin(), dialect)
        await session.begin()
        result = await run_script_async(begin(), dialect)
        await session.commit()
    except Exception as error:
        await _give_up(session, error)  # noqa: ASYNC120 - asyncio's
        raise
    return result


async def _create_tables(session: Session) -> Table:
    try:
        # Looked for first: an account that may not create tables may still use them.
        if not await session.has_table():
            await _define_tables(session)
        elif not (await session.find_table()).keeps_changes:
            await session.migrate()
        return await session.find_table()
    except Exception as error:
        await _give_up(session, error)  # noqa: ASYNC120 - asyncio's
        raise


async def _define_tables(session: Session) -> None:  # noqa: ASYNC910 - asyncio's
    try:
        for statement in STATEMENTS:
            await session.define(statement)
    except MySQLError as error:
        if not is_forbidden(error):
            raise
        raise cannot_create(error, await session.find_account(), session.name) from error  # noqa: ASYNC120 - asyncio's


async def _give_up(session: Session, error: Exception) -> None:  # noqa: ASYNC910 - asyncio's
    """
    Leave the session as the next caller needs it.

    Raises:
        StoreUnavailable: the account may not do that; with what to grant.
    """
    await session.recover(error)
    if isinstance(error, MySQLError) and is_forbidden(error):
        raise cannot_use(error, await session.find_account(), session.name) from error
