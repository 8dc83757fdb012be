"""
Where sessions come from: a small pool of our own, or the application's.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, final

import trio

from timeline_trio import WrongProcess
from timeline_trio.store import ConnectionPool, PoolStatistics, StoreUnavailable

from ._bridge import Bridge
from ._driver import MySQLError, connect, loop_of, problem_of
from ._failures import is_lost
from ._session import Session

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from ._driver import Connection, Pool
    from ._options import Options

    Work = Callable[[Session], Coroutine[asyncio.Future[object], None, "T"]]  # asyncio's

T = TypeVar("T")

_LONGEST_CONNECT: Final = 86_400.0  # seconds: the driver's own limit knows nothing of the login, so ours governs all


class Connections(Protocol):
    """
    Lends sessions.
    """

    name: str

    async def run(self, work: Work[T]) -> T:
        """
        Run `work` with a session that nobody else uses, on the event loop, in one hop.

        Cancelled, it drops the session's connection at once. If the connection was not new and turns out to be lost,
        `work` is run once more, with another one.

        Raises:
            MySQLError: as `work` raised it, or the login.
            StoreUnavailable: no session could be had.
            WrongProcess: this process was forked from the one that opened the store.
        """
        ...

    def statistics(self) -> PoolStatistics:
        """
        Return how the pool is doing now.
        """
        ...

    async def aclose(self) -> None:
        """
        Refuse further calls, and close what is ours.
        """
        ...


class _Connector:
    def __init__(self, options: Options, bridge: Bridge) -> None:
        self._options = options
        self._bridge = bridge

    async def connect(self) -> Session:
        return await self._bridge.run(self._log_in)

    def is_sound(self, connection: Session) -> bool:
        return connection.is_sound

    def is_lost(self, error: Exception) -> bool:
        return isinstance(error, MySQLError) and is_lost(error)

    def discard(self, connection: Session) -> None:
        connection.abort()

    async def close(self, connection: Session) -> None:
        await self._bridge.run(connection.close)

    async def _log_in(self) -> Session:
        address = self._options.address
        connection = await connect(
            host=address.host,
            port=address.port,
            unix_socket=address.unix_socket or None,
            user=address.user,
            password=address.password.encode(),  # the driver would take text for latin-1
            database=address.database,
            ssl=address.ssl,
            autocommit=None,  # set with the rest
            connect_timeout=_LONGEST_CONNECT,
            program_name="timeline-trio",
        )
        session = Session(connection, self._options.name)
        try:
            await session.settle()
        except BaseException:
            session.abort()
            raise
        return session


@final
class OwnConnections:
    """
    Sessions of our own, at most `pool_size` at once.
    """

    def __init__(self, options: Options, bridge: Bridge) -> None:
        self.name: str = options.name
        self._bridge = bridge
        self._pool = ConnectionPool(
            _Connector(options, bridge),
            name=options.name,
            size=options.pool_size,
            connect_timeout=options.connect_timeout,
        )

    async def run(self, work: Work[T]) -> T:
        """
        Run `work` with a session; see `Connections`.
        """
        return await self._pool.run(lambda session: self._bridge.run(partial(work, session), session.wire))

    def statistics(self) -> PoolStatistics:
        """
        Return how the pool is doing now.
        """
        return self._pool.statistics()

    async def aclose(self) -> None:
        """
        Close all connections, those in use too: their event loop is about to end.
        """
        try:
            await self._pool.aclose()
        finally:
            if not self._pool.foreign:
                await self._bridge.aclose()  # noqa: ASYNC102 - it is shielded, with a timeout


@final
class BorrowedConnections:
    """
    Sessions on the connections of the application's pool, which it opens and closes.
    """

    def __init__(self, pool: Pool) -> None:
        self.name: str = "the application's MySQL pool"
        self._pool = pool
        self._bridge = Bridge(loop_of(pool))
        self._sessions: dict[int, tuple[Connection, Session]] = {}
        self._waiting = 0
        self._discarded = 0
        self._is_closed = False
        self._process = os.getpid()

    async def run(self, work: Work[T]) -> T:
        """
        Run `work` with a session; see `Connections`.
        """
        if os.getpid() != self._process:
            raise WrongProcess("store")
        if self._is_closed:
            raise StoreUnavailable("", f"the store of {self.name} is closed")
        if problem := problem_of(self._pool):
            raise StoreUnavailable("", f"{self.name} {problem}")
        return await self._bridge.run(partial(self._borrow, work))

    def statistics(self) -> PoolStatistics:
        """
        Return how the application's pool is doing now; of its waiters, only our own are known.
        """
        return PoolStatistics(
            open=self._pool.size, idle=self._pool.freesize, waiting=self._waiting, discarded=self._discarded
        )

    async def aclose(self) -> None:
        """
        Refuse further calls, and end those that run. The pool is the application's to close.
        """
        self._is_closed = True
        if os.getpid() == self._process:
            await self._bridge.aclose()
        self._sessions.clear()
        await trio.lowlevel.checkpoint()

    async def _borrow(self, work: Work[T]) -> T:
        self._waiting += 1
        try:
            connection = await self._pool.acquire()
        except RuntimeError as error:
            if problem := problem_of(self._pool):  # since
                raise StoreUnavailable("", f"{self.name} {problem}") from error
            raise
        finally:
            self._waiting -= 1
        known = self._known_session(connection)
        try:
            return await self._use(connection, known or self._new_session(connection), work)
        except MySQLError as error:
            if known is None or not is_lost(error):
                raise
        return await self._borrow(work)

    async def _use(self, connection: Connection, session: Session, work: Work[T]) -> T:
        try:
            result = await _as_we_need_it(connection, session, work)
        except BaseException as error:
            if not (isinstance(error, Exception) and session.is_sound):
                self._drop(connection, session)
            raise
        finally:
            self._pool.release(connection)
        return result

    def _known_session(self, connection: Connection) -> Session | None:
        known = self._sessions.get(id(connection))
        return known[1] if known and known[0] is connection and known[1].is_current else None

    def _new_session(self, connection: Connection) -> Session:
        # A pool tells of no end of a connection; so what is over is forgotten when another one is met.
        self._sessions = {key: pair for key, pair in self._sessions.items() if pair[1].is_current}
        session = Session(connection, self.name)
        self._sessions[id(connection)] = connection, session
        return session

    def _drop(self, connection: Connection, session: Session) -> None:
        self._discarded += 1
        self._sessions.pop(id(connection), None)
        session.abort()


async def _as_we_need_it(connection: Connection, session: Session, work: Work[T]) -> T:
    """
    Run `work` with each statement committed by itself, then leave the connection as it was.

    So no statement reads an old snapshot, and no transaction stays open.
    """
    if connection.get_transaction_status():
        await session.rollback()  # nobody's: the pool keeps no connection in a transaction
    autocommits = connection.get_autocommit()
    if not autocommits:
        await session.autocommit(on=True)
    try:
        if not session.max_packet:
            await session.ask_settings()
        return await work(session)
    finally:
        if not autocommits and session.is_sound:
            await session.autocommit(on=False)  # noqa: ASYNC102 - asyncio's; cancelled, it drops the connection
