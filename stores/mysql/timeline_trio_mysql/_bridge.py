"""
The way from Trio to an asyncio event loop that runs on top of it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

import trio
from trio.lowlevel import enable_ki_protection

from timeline_trio.model import InvalidValue
from timeline_trio.store import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from ._wire import Wire

    Work = Callable[[], Coroutine[asyncio.Future[object], None, "T"]]

T = TypeVar("T")

_UNSUPPORTED: Final = (3, 14)
_CLOSE_TIMEOUT: Final = 2.0  # seconds
_CLOSED: Final = "the store was closed while it was in use"
_logger: Final = logging.getLogger("timeline_trio_mysql")


class _Loop(Protocol):
    getaddrinfo: object

    async def run_aio_coroutine(self, coroutine: Coroutine[asyncio.Future[object], None, T]) -> T: ...

    def trio_as_future(self, function: Callable[[], Awaitable[T]]) -> asyncio.Future[T]: ...

    def set_exception_handler(self, handler: Callable[[object, dict[str, object]], None]) -> None: ...


class _TrioAsyncio(Protocol):
    TrioEventLoop: type[object]

    def open_loop(self) -> AbstractAsyncContextManager[_Loop]: ...


class Bridge:
    """
    Runs coroutines of asyncio for tasks of Trio, on the event loop that it was given by name.

    Args:
        loop: a loop of trio-asyncio. It is never looked for in the context: a task of a nursery that was opened
            outside of the loop has none there.
    """

    def __init__(self, loop: object) -> None:
        self._loop = cast("_Loop", loop)
        self._calls: set[trio.CancelScope] = set()
        self._closing: trio.Event | None = None

    async def run(self, work: Work[T], wire: Wire | None = None) -> T:
        """
        Await `work()` on the wire that it needs nothing beside, else on the event loop, in one hop.

        Cancelled, it cancels the work and waits for its end.

        Raises:
            StoreUnavailable: the bridge was closed before or meanwhile.
        """
        if self._closing is None:
            with trio.CancelScope() as scope:
                self._calls.add(scope)
                try:
                    if wire is not None:
                        return await wire.run(work)
                    return await self._loop.run_aio_coroutine(work())
                except asyncio.CancelledError as error:
                    # Nobody here was cancelled, or it would be Trio's: the application has ended its loop.
                    raise StoreUnavailable("", _CLOSED) from error  # noqa: ASYNC104 - not Trio's
                finally:
                    self._calls.discard(scope)
                    if self._closing is not None and not self._calls:
                        self._closing.set()
        await trio.lowlevel.checkpoint_if_cancelled()
        raise StoreUnavailable("", _CLOSED)

    async def aclose(self) -> None:
        """
        Refuse further calls, and end those that run. Cancelled, it does so too.

        What were left to the end of the loop would end it with an error.
        """
        if self._closing is None:
            self._closing = trio.Event()
            for scope in self._calls:
                scope.cancel()
            if self._calls:
                # The driver leaves each of its waits at once, so this is bounded without being slow.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_TIMEOUT):
                    await self._closing.wait()
        await trio.lowlevel.checkpoint()


def require_bridge() -> None:
    """
    Refuse a Python that trio-asyncio does not run on.

    That is a wrong choice of a store, which no retry mends, and so no `StoreUnavailable`.

    Raises:
        InvalidValue: telling which Python to use.
    """
    if sys.version_info >= _UNSUPPORTED:
        raise InvalidValue(
            "python",
            "the MySQL store needs a Python older than 3.14 until trio-asyncio runs there; use Python 3.11 to 3.13 for "
            "this process, or another store",
        )


@asynccontextmanager
async def open_bridge() -> AsyncGenerator[Bridge]:
    """
    Open an event loop of our own, next to others that may be open, and close it at the end of the block.

    What the block raises comes out as it was raised.

    Raises:
        InvalidValue: this Python is too new for trio-asyncio.
    """
    own = _OwnLoop(_import_trio_asyncio())
    raised: BaseException | None = None
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            try:
                nursery.start_soon(own.run)
                await own.ready.wait()
                yield own.bridge
            except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, without this nursery's group
                raised = error
            finally:
                own.ended.set()
    except BaseExceptionGroup as group:
        if raised is None:
            if len(group.exceptions) != 1:
                raise
            raised = group.exceptions[0]  # Ctrl-C, or a cancellation, while the loop was opened or closed
    if raised is not None:
        raise raised


class _OwnLoop:
    """
    An event loop in a task of its own, shielded and protected from Ctrl-C.

    One in the middle of the loop's own code would end it by half, while who waits for it cannot be cancelled: the
    program would hang.
    """

    bridge: Bridge

    def __init__(self, module: _TrioAsyncio) -> None:
        self._module = module
        self.ready = trio.Event()
        self.ended = trio.Event()

    @enable_ki_protection
    async def run(self) -> None:
        # What the frames of these tasks call is protected by them. Nothing public does that.
        for name in ("_main_loop", "_io_task"):
            enable_ki_protection(getattr(self._module.TrioEventLoop, name))
        with trio.CancelScope(shield=True):
            async with self._module.open_loop() as loop:
                loop.set_exception_handler(_log_failure)
                loop.getaddrinfo = partial(_resolve, loop)
                self.bridge = Bridge(loop)
                self.ready.set()
                await self.ended.wait()


def _import_trio_asyncio() -> _TrioAsyncio:
    require_bridge()
    # It changes asyncio for the whole process, so only who opens a store imports it. It warns of what Python 3.14 took
    # away; nobody but its authors can do something about that.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return cast("_TrioAsyncio", import_module("trio_asyncio"))


async def _resolve(
    loop: _Loop,
    host: str,
    port: int,
    *,
    family: int = 0,
    type: int = 0,  # noqa: A002 - as there
    proto: int = 0,
    flags: int = 0,
) -> object:
    """
    Look up a name in Trio's way: asyncio's thread would keep a cancelled caller until the resolver gives up.
    """
    return await loop.trio_as_future(partial(trio.socket.getaddrinfo, host, port, family, type, proto, flags))


def _log_failure(_loop: object, context: dict[str, object]) -> None:
    """
    Log what no task of the loop takes, as asyncio does; trio-asyncio would end the application by it.
    """
    error = context.get("exception")
    _logger.error(
        "the event loop of a MySQL store: %s",
        context.get("message"),
        exc_info=error if isinstance(error, BaseException) else None,
    )
