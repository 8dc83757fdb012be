"""
A pool of database connections on Trio's primitives, for drivers that have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar, final

import msgspec
import trio

from .._errors import StoreUnavailable, WrongProcess
from .._process import ProcessGuard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

C = TypeVar("C")
T = TypeVar("T")

_CLOSE_TIMEOUT: Final = 2.0  # seconds


class Connector(Protocol[C]):
    """
    What a pool must know of its connections.
    """

    async def connect(self) -> C:
        """
        Open a connection. Cancelled or failing, it leaves nothing open.

        Raises:
            StoreUnavailable: telling what to do.
        """
        ...

    def is_sound(self, connection: C) -> bool:
        """
        Tell whether the next caller may have a connection, by what is known here: nothing of it may be under way.
        """
        ...

    def is_lost(self, error: Exception) -> bool:
        """
        Tell whether an error means that the other side had closed the connection.
        """
        ...

    def discard(self, connection: C) -> None:
        """
        Drop a connection at once, in whatever state it is. What was not sent yet must not be sent any more.
        """
        ...

    async def close(self, connection: C) -> None:
        """
        Take leave of a sound connection as the server likes it. Afterwards it is discarded in any case.
        """
        ...


class PoolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a pool is doing.

    Attributes:
        open: connections that are open, or being opened.
        idle: those of them that nobody uses.
        waiting: callers in line for one.
        discarded: how many were dropped so far rather than used again.
    """

    open: int
    idle: int
    waiting: int
    discarded: int


class _Idle(NamedTuple, Generic[C]):
    connection: C
    since: float  # by the Trio clock


@final
class ConnectionPool(Generic[C]):
    """
    At most `size` connections, opened when they are needed; first come, first served, the last used one first.

    A connection whose use ended in an error or a cancellation is handed on only if the connector calls it sound; after
    a cancellation never.

    Args:
        connector: opens and closes connections.
        name: what messages call the server; without a password.
        size: how many connections there may be at once.
        connect_timeout: seconds within which one must be open, with all that the connector does for that.
        max_idle: seconds after which an unused one is not used again, since the server or something between may have
            forgotten it.
    """

    def __init__(
        self, connector: Connector[C], *, name: str, size: int, connect_timeout: float, max_idle: float = 300.0
    ) -> None:
        self._connector = connector
        self._name = name
        self._places = trio.Semaphore(size, max_value=size)
        self._size = size
        self._connect_timeout = connect_timeout
        self._max_idle = max_idle
        self._idle: list[_Idle[C]] = []
        self._used: dict[int, C] = {}  # by identity
        self._open = 0
        self._discarded = 0
        self._closed = False
        self._guard = ProcessGuard()

    def __repr__(self) -> str:
        return f"<ConnectionPool of {self._name} {'closed' if self._closed else 'open'}, {self.statistics()}>"

    @property
    def closed(self) -> bool:
        """
        Whether calls are refused.
        """
        return self._closed

    @property
    def foreign(self) -> bool:
        """
        Whether this process was forked from the one that made the pool, whose connections they are.
        """
        return self._guard.is_foreign

    def statistics(self) -> PoolStatistics:
        """
        Return how the pool is doing now.
        """
        waiting = self._places.statistics().tasks_waiting
        return PoolStatistics(open=self._open, idle=len(self._idle), waiting=waiting, discarded=self._discarded)

    async def run(self, work: Callable[[C], Awaitable[T]]) -> T:
        """
        Run `work` with a connection, once there is a free one.

        If the connection had lain idle and turns out to be lost, `work` is run once more, with a new one: it must be
        harmless to repeat.

        Raises:
            StoreUnavailable: no connection could be opened, or the pool is closed.
            WrongProcess: this process was forked from the one that made the pool.
        """
        if self._guard.is_foreign:
            raise WrongProcess("store")
        await self._find_place()
        try:
            connection = self._take()
            if connection is not None:
                try:
                    return await self._use(connection, work)
                except Exception as error:
                    if not self._connector.is_lost(error):
                        raise
                self._discard_idle()  # the others are as old
            return await self._use(await self._connect(), work)
        finally:
            self._places.release()

    async def aclose(self) -> None:
        """
        Close all connections; those in use are dropped, which ends their use. Again, it does nothing more.

        Cancelled, it drops them all at once. In a forked child it does nothing: they are the parent's.
        """
        if self._guard.is_foreign:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        for connection in list(self._used.values()):
            self._drop(connection)
        self._used.clear()
        idle, self._idle = self._idle, []
        try:
            with trio.move_on_after(_CLOSE_TIMEOUT):  # noqa: ASYNC912 - there may be none
                for each in idle:
                    await self._connector.close(each.connection)
        finally:
            for each in idle:
                self._open -= 1
                self._connector.discard(each.connection)
        await trio.lowlevel.checkpoint()  # there may have been none to close

    async def _find_place(self) -> None:
        """
        Wait for a place. A free one costs no turn of the scheduler: using a connection is a checkpoint anyway.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            await self._places.acquire()

    def _take(self) -> C | None:
        self._check_open()
        oldest = trio.current_time() - self._max_idle
        while self._idle:
            each = self._idle.pop()
            if each.since >= oldest and self._connector.is_sound(each.connection):
                return each.connection
            self._drop(each.connection)
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("", f"the store of {self._name} is closed")

    async def _connect(self) -> C:
        self._check_open()  # closing may be what the last connection was lost by
        self._open += 1
        try:
            with trio.fail_after(self._connect_timeout):
                connection = await self._connector.connect()
        except trio.TooSlowError as error:
            self._open -= 1
            problem = f"{self._name} did not accept a connection within {self._connect_timeout} s"
            raise StoreUnavailable("", problem) from error
        except BaseException:
            self._open -= 1
            raise
        if self._closed:  # meanwhile
            self._drop(connection)
        self._check_open()
        return connection

    async def _use(self, connection: C, work: Callable[[C], Awaitable[T]]) -> T:
        self._used[id(connection)] = connection
        try:
            result = await work(connection)
        except BaseException as error:
            self._give_back(connection, sound=isinstance(error, Exception) and self._connector.is_sound(connection))
            raise
        self._give_back(connection, sound=True)  # it is looked at before it is used again
        return result

    def _give_back(self, connection: C, *, sound: bool) -> None:
        if self._used.pop(id(connection), None) is None:  # dropped as the pool was closed
            return
        if sound:
            self._idle.append(_Idle(connection, trio.current_time()))
        else:
            self._drop(connection)

    def _discard_idle(self) -> None:
        idle, self._idle = self._idle, []
        for each in idle:
            self._drop(each.connection)

    def _drop(self, connection: C) -> None:
        self._open -= 1
        self._discarded += 1
        self._connector.discard(connection)
