"""
What is used of asyncmy, whose own types are partial. Nothing else here touches what it keeps private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

import asyncmy
from asyncmy.errors import MySQLError as MySQLError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Sequence


class Result(Protocol):
    """
    The answer to a statement.
    """

    affected_rows: int
    rows: tuple[tuple[object, ...], ...] | None


class Statement(Protocol):
    """
    A statement that the server has prepared: its arguments are sent in binary form, beside its text.
    """

    async def execute(self, args: Sequence[object] = ...) -> Result:
        """
        Run it.
        """
        ...

    async def close(self) -> None:
        """
        Let the server forget it.
        """
        ...


class Connection(Protocol):
    """
    A connection of asyncmy; its coroutines are asyncio's.
    """

    async def query(self, sql: str) -> int:
        """
        Run a statement as text.
        """
        ...

    async def prepare(self, sql: str) -> Statement:
        """
        Let the server prepare a statement.
        """
        ...

    def character_set_name(self) -> str:
        """
        Tell what it encodes text in, whatever the server takes it for.
        """
        ...

    async def begin(self) -> None:
        """
        Begin a transaction.
        """
        ...

    async def commit(self) -> None:
        """
        Commit it.
        """
        ...

    async def rollback(self) -> None:
        """
        Roll it back.
        """
        ...

    async def autocommit(self, value: bool) -> None:  # noqa: FBT001 - asyncmy's
        """
        Set whether each statement is committed by itself, if it is not so already.
        """
        ...

    def get_autocommit(self) -> bool:
        """
        Tell whether it is, by the server's last word.
        """
        ...

    def get_transaction_status(self) -> bool:
        """
        Tell whether a transaction is open, by the server's last word.
        """
        ...

    async def ensure_closed(self) -> None:
        """
        Take leave of the server, and close.
        """
        ...

    def close(self) -> None:
        """
        Close without taking leave.
        """
        ...


class Pool(Protocol):
    """
    A pool of asyncmy.
    """

    size: int
    freesize: int

    def acquire(self) -> Awaitable[Connection]:
        """
        Wait for a connection.
        """
        ...

    def release(self, connection: Connection) -> object:
        """
        Give it back; one that is closed is not used again.
        """
        ...


class _Insides(Protocol):
    _transport: asyncio.Transport | None
    _stream_broken: bool
    _result: _UnreadResult | None


class _UnreadResult(Protocol):
    has_next: bool
    unbuffered_active: bool


class _PoolInsides(Protocol):
    _loop: _Loop
    _closing: bool


class _Loop(Protocol):
    def is_closed(self) -> bool: ...


class _Connect(Protocol):
    def __call__(self, **options: object) -> Awaitable[Connection]: ...


async def connect(**options: object) -> Connection:
    """
    Open a connection, by asyncmy's own options.
    """
    opening = cast("_Connect", asyncmy.connect)  # pyright: ignore[reportUnknownMemberType] - in parts
    return await opening(**options)


# asyncmy offers no other way to abort a connection, or to ask for the rest.
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false


def transport_of(connection: Connection) -> asyncio.Transport | None:
    """
    Return the transport of a connection, which `close` would forget with all that is buffered in it.
    """
    return cast("_Insides", connection)._transport


def is_idle(connection: Connection) -> bool:
    """
    Tell whether a connection can take the next statement: it is open, and nothing of the last one is left to read.
    """
    insides = cast("_Insides", connection)
    unread = insides._result
    return not (insides._stream_broken or (unread and (unread.has_next or unread.unbuffered_active)))


def loop_of(pool: Pool) -> object:
    """
    Return the event loop that a pool was made on.
    """
    return cast("_PoolInsides", pool)._loop


def problem_of(pool: Pool) -> str:
    """
    Tell why a pool can lend no connection any more, or "".
    """
    insides = cast("_PoolInsides", pool)
    if insides._loop.is_closed():
        return "was made on an event loop that has ended; keep the loop open for as long as the store"
    if insides._closing:
        return "was closed by the application; close it after the store"
    return ""


def is_pool(pool: object) -> TypeGuard[Pool]:
    """
    Tell whether this is a pool of asyncmy on an event loop that Trio's tasks can use.
    """
    return isinstance(pool, asyncmy.Pool) and hasattr(loop_of(cast("Pool", pool)), "run_aio_coroutine")
