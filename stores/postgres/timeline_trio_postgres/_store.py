"""
The store: rows in one table of a PostgreSQL database.
"""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, final

import msgspec
import psycopg
import trio
from psycopg import pq

from timeline_trio.store import (
    ConnectionPool,
    PoolStatistics,
    RowStore,
    StoreUnavailable,
    run_script,
)

from ._changes import tell
from ._connector import PostgresConnector
from ._dialect import PostgresDialect, RowRefused, Statements
from ._failures import FORBIDDEN, has_moved, is_spent, translate, words_of
from ._layout import inspect
from ._listener import listening
from ._schema import create, creation_schema, grants, identifier, user_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from psycopg import Connection

    from timeline_trio.store import Change, Script

    from ._layout import Layout
    from ._options import Options
    from ._session import Session

T = TypeVar("T")

_logger: Final = logging.getLogger("timeline_trio_postgres")
_CLOSE_TIMEOUT: Final = 2.0  # seconds
_POLL: Final = 0.001  # seconds
_SPARE_THREADS: Final = 4  # for those left behind, which end as soon as their sockets are shut down


class PostgresStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a store is doing.

    Attributes:
        merges: how many merges were asked for.
        attempts: how many times these tried to write a row: again for each race that was lost.
        pool: its connections; those of `watch` are not among them.
        watching: how many connections listen.
    """

    merges: int
    attempts: int
    pool: PoolStatistics
    watching: int


@final
class PostgresStore(RowStore):
    """
    Keeps one row an operation in a PostgreSQL database, which any number of processes share.

    Opened by `open_postgres`, or by `timeline_trio.store.open_store` and a URL.

    Attributes:
        watch: hears of changes, on a connection of its own; not there with `notify=False`.
    """

    def __init__(self, options: Options, *, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0) -> None:
        super().__init__(clock=clock, overlap=overlap)
        self._options = options
        self._statements = Statements.of(options.schema, has_folds=False, keeps_changes=False)
        self._pool = ConnectionPool(
            PostgresConnector(options),
            name=options.name,
            size=options.pool_size,
            connect_timeout=options.connect_timeout,
        )
        self._threads = trio.CapacityLimiter(options.pool_size + _SPARE_THREADS)
        self._layout: Layout | None = None
        self._watching = 0
        self._has_warned = False
        if options.notify:
            self.watch: Callable[[], AbstractAsyncContextManager[AsyncIterator[Change]]] = self._watch

    def __repr__(self) -> str:
        state = "closed" if self._pool.closed else "open"
        return f"<PostgresStore {self._options.name} {state}, {self.statistics()}>"

    @property
    def keeps_changes(self) -> bool:
        """
        Whether the database has the table and the column for changes beside rows.
        """
        return self._layout is not None and self._layout.keeps_changes

    async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
        """
        Run a script in a thread, in one hop. Cancelled, it may have been done.

        Raises:
            RaceLost: another writer came between; the transaction was rolled back.
            StoreUnavailable: the database cannot be used; the message says what to do.
        """
        result = await self._call(partial(self._run, begin, transaction=transaction))
        if writes and not self.keeps_changes and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s has no place for the changes of large operations: each save writes its operation anew; %s",
                self._options.name,
                "" if self._layout is None else self._layout.remedy,
            )
        return result

    async def create_schema(self) -> None:
        """
        Create what is missing of the tables. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: the database cannot be used, or the table in it; the message says what to do.
        """
        await self._call(self._create)

    async def aclose(self) -> None:
        """
        Close all connections. Again, it does nothing more; cancelled, it still closes them.

        It waits, for 2 seconds at most, for threads whose callers were cancelled. In a forked child it does nothing:
        the connections are the parent's.
        """
        try:
            await self._pool.aclose()
        finally:
            if not self._pool.foreign:
                # Shielded, since nobody else waits for them, and bounded, since a decoder may be busy.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_TIMEOUT):  # noqa: ASYNC912
                    while self._threads.borrowed_tokens:  # noqa: ASYNC110 - a thread left behind sets no event
                        await trio.sleep(_POLL)

    def statistics(self) -> PostgresStatistics:
        """
        Return how the store is doing now.
        """
        return PostgresStatistics(
            merges=self.merges, attempts=self.attempts, pool=self._pool.statistics(), watching=self._watching
        )

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[AsyncIterator[Change]]:
        layout = await self._call(self._find_layout)
        self._watching += 1
        try:
            async with listening(self._options, layout.channel) as changes:
                yield changes
        finally:
            self._watching -= 1

    async def _call(self, work: Callable[[Connection], T]) -> T:
        return await self._pool.run(
            lambda session: session.call(partial(self._translated, session, work), self._threads)
        )

    def _translated(self, session: Session, work: Callable[[Connection], T], connection: Connection) -> T:
        try:
            return work(connection)
        except psycopg.Error as error:
            if has_moved(error):
                self._layout = None  # the one that is made next may be another
            if is_spent(error):
                session.mark_spent()
            rights = self._missing_rights(connection) if error.sqlstate == FORBIDDEN else ""
            raise translate(error, self._options.name, rights) from error

    def _missing_rights(self, connection: Connection) -> str:
        try:
            return grants(self._options.schema, user_of(connection))
        except psycopg.Error:  # the session has ended meanwhile
            return ""

    def _find_layout(self, connection: Connection) -> Layout:
        layout = self._layout
        if layout is None or not layout.has_folds:
            # A migration may be made while we run: whoever knew nothing of a row's changes would write over them.
            layout = inspect(connection, self._options.schema, self._options.name)
        if layout is None:
            raise psycopg.errors.UndefinedTable("timelines")
        if layout is not self._layout:
            self._statements = Statements.of(
                self._options.schema, has_folds=layout.has_folds, keeps_changes=layout.keeps_changes
            )
            self._layout = layout
        return layout

    def _create(self, connection: Connection) -> None:
        schema = self._options.schema
        layout = inspect(connection, schema, self._options.name)
        if layout is None:
            try:
                create(connection, schema)
            except psycopg.errors.InsufficientPrivilege as error:
                raise self._uncreatable(error, connection) from error
            except psycopg.errors.InvalidSchemaName as error:
                if schema:
                    raise
                raise self._uncreatable(error, connection) from error
        elif not layout.keeps_changes:
            with suppress(psycopg.errors.InsufficientPrivilege):  # then each save writes its operation anew
                # Where the table is, which need not be where new ones are made.
                create(connection, layout.schema)
        self._layout = None
        self._find_layout(connection)

    def _uncreatable(self, error: psycopg.Error, connection: Connection) -> StoreUnavailable:
        schema, user = self._options.schema or creation_schema(connection), user_of(connection)
        return StoreUnavailable(
            "",
            f"{self._options.name} has no table 'timelines', and we may not create it ({words_of(error)}); run: "
            f"GRANT USAGE, CREATE ON SCHEMA {identifier(schema)} TO {identifier(user)}; or run "
            f"timeline_trio_postgres.SCHEMA as an administrator, then {grants(self._options.schema, user)}, "
            "and open with create=false",
        )

    def _run(self, begin: Callable[[], Script[T]], connection: Connection, *, transaction: bool) -> T:
        layout = self._find_layout(connection)
        dialect = PostgresDialect(connection, self._statements, transaction=transaction)
        try:
            result = _transact(begin(), dialect, connection)
        except RowRefused:
            dialect = PostgresDialect(connection, self._statements, transaction=transaction, careful=True)
            result = _transact(begin(), dialect, connection)
        if dialect.changes and self._options.notify:
            with suppress(psycopg.Error):  # it is a hint, and the merge is done
                tell(connection, layout.channel, dialect.changes)
        return result


def _transact(script: Script[T], dialect: PostgresDialect, connection: Connection) -> T:
    try:
        result = run_script(script, dialect)
        if dialect.begun:
            connection.execute(b"COMMIT", prepare=False)
    except BaseException:
        if connection.pgconn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
            with suppress(psycopg.Error):  # then the session is not sound, and is not used again
                connection.execute(b"ROLLBACK", prepare=False)
        raise
    return result
