"""
One connection to one node, shared by all calls.

The driver's own pool is not used: each connection attempt and each pipeline that is cancelled costs it a place for
ever, and a cancelled pipeline breaks the connection for all others on it. One connection is enough, since requests
are sent without waiting for the replies to those before, and it keeps them in order. A reply belongs to its request
by its place, so one whose caller has left is dropped when it comes.

Connections are run by tasks of the store, not of its callers: a caller that is cancelled while one is being opened
leaves it to the others.
"""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from coredis.exceptions import ConnectionError as ConnectionFailed
from trio.lowlevel import enable_ki_protection

from ._failures import LoginCut, LoginRefused, NotConnected, translate
from ._quiet import quiet_driver
from ._server import StoreClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from coredis.connection import BaseConnection, Location

    from ._connect import Connector
    from ._connections import Connections
    from ._place import Place
    from ._server import Command, Reply

_SILENCE: Final = 1.0  # seconds without a byte after which a caller that leaves takes the connection with it

_ASKING: Final = b"ASKING"
_LOST: Final = "Connection lost"  # how the driver's texts begin where there was a connection


class _Status:
    """
    What the driver tells that a connection is ready.
    """

    def __init__(self, on_started: Callable[[], None]) -> None:
        self._on_started = on_started

    def started(self, value: object = None) -> None:
        del value
        self._on_started()


@enable_ki_protection
async def run_connection(
    connector: Connector, location: Location, on_ready: Callable[[BaseConnection], None]
) -> Exception | None:
    """
    Open a connection and run it until it is lost; return why it could not be opened, if so.

    Args:
        connector: makes the connection.
        location: where to.
        on_ready: is called once commands can be sent.
    """
    await trio.lowlevel.checkpoint()
    ready = False

    def note_ready() -> None:
        nonlocal ready
        ready = True
        scope.deadline = float("inf")
        on_ready(connection)

    failure: Exception | None = None
    refusal: list[bytes] = []
    with quiet_driver(), trio.move_on_after(connector.timeout) as scope:  # noqa: ASYNC912 - the driver connects
        try:
            connection = connector.connect(location, refusal.append)
        except Exception as error:  # noqa: BLE001 - of whatever settings an application's client was made with
            return error
        try:
            await connection.run(task_status=_Status(note_ready))
        except Exception as error:  # noqa: BLE001 - whatever the driver raises is about this connection only
            failure = error
            # While it logs in the driver raises an error of its own over whatever came.
            if error.__context__ is not None and _is_interrupt(error.__context__):
                signal.raise_signal(signal.SIGINT)
        except BaseException as error:  # noqa: ASYNC103 - a Ctrl-C is raised again, elsewhere
            if not _is_interrupt(error):
                raise
            # Ctrl-C hit one of the driver's tasks. The program expects it in its own: there it cancels the block, and
            # what is left is saved, by another connection. Raised here the signal goes there, since this is protected.
            signal.raise_signal(signal.SIGINT)
        finally:
            _close_streams(connection)
    if ready:
        return None
    return _explained(failure, refusal, connector.timeout)


def _explained(failure: Exception | None, refusal: Sequence[bytes], timeout: float) -> Exception:
    """
    Return why a connection could not be opened.
    """
    if failure is None:
        return NotConnected(f"no connection within {timeout} s")
    if not _is_loss(failure):
        return failure
    # The driver knows that the connection was closed, and not what the server said before it did that.
    explained: Exception
    if refusal:
        explained = LoginRefused(refusal[0].decode(errors="replace").removeprefix("ERR "))
    elif str(failure).startswith(_LOST):
        explained = LoginCut(str(failure))
    else:
        return failure
    explained.__cause__ = failure
    return explained


def _is_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_interrupt, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return isinstance(error, KeyboardInterrupt)


def _close_streams(connection: BaseConnection) -> None:
    """
    Close the channels that the driver makes with a connection, and forgets where it could not be opened.
    """
    for part in vars(connection).values():
        if isinstance(part, MemoryObjectSendStream | MemoryObjectReceiveStream):
            part.close()


class _Attempt:
    outcome: BaseConnection | Exception

    def __init__(self) -> None:
        self.ended = trio.Event()


class Link:
    """
    The shared connection to one node, opened when it is needed and anew when it was lost.

    Args:
        connector: makes the connections.
        location: the node.
        connections: runs them.
    """

    def __init__(self, connector: Connector, location: Location, connections: Connections) -> None:
        self._connector = connector
        self._location = location
        self._connections = connections
        self._connection: BaseConnection | None = None
        self._attempt: _Attempt | None = None

    @property
    def is_open(self) -> bool:
        """
        Whether there is a connection.
        """
        return self._connection is not None and self._connection.usable

    def close(self) -> None:
        """
        Give the connection up; what waits for a reply fails.
        """
        if self._connection is not None:
            self._connection.invalidate("no longer needed")

    async def run(self, commands: Sequence[Command], *, asking: bool = False) -> list[Reply]:
        """
        Send commands together, and return a reply or the driver's error each.

        Cancelled, any of them may have been done. Those that a lost connection leaves unanswered are sent once more
        if it had been idle: it may have been lost long ago. So each must be harmless when it is repeated.

        Args:
            commands: what to send.
            asking: send each with leave to work on a slot that is on its way here.
        """
        was_open = self.is_open
        replies = await self._send(commands, asking=asking)
        if was_open and all(_is_loss(reply) for reply in replies):
            replies = await self._send(commands, asking=asking)
        if self._connections.are_closed:
            return [StoreClosed() if _is_loss(reply) else reply for reply in replies]
        return replies

    async def _send(self, commands: Sequence[Command], *, asking: bool) -> list[Reply]:
        connection = await self._connected()
        if isinstance(connection, Exception):
            return [connection] * len(commands)
        sent_at = time.perf_counter()
        try:
            requests = [self._request(connection, command, asking=asking) for command in commands]
        except ConnectionFailed as error:  # it was lost again before this task's turn
            await trio.lowlevel.checkpoint()
            return [error] * len(commands)
        replies: list[Reply] = []
        try:
            for request in requests:
                replies.append(await request)
                if isinstance(replies[-1], TimeoutError):
                    connection.invalidate("no answer in time")  # which fails the others, and drops what was not sent
        except trio.Cancelled:
            # A connection that nothing comes from may be dead, and only a new one would tell.
            silent_since = max(sent_at, connection.statistics.last_byte_received_at)
            if time.perf_counter() - silent_since > _SILENCE:
                connection.invalidate("no answer")
            raise
        return replies

    @staticmethod
    def _request(connection: BaseConnection, command: Command, *, asking: bool) -> Awaitable[Reply]:
        if asking:
            connection.create_request(_ASKING, decode=False, raise_exceptions=False)
        request = connection.create_request(command.name, *command.arguments, decode=False, raise_exceptions=False)
        return cast("Awaitable[Reply]", request)

    async def _connected(self) -> BaseConnection | Exception:
        if self._connection is not None and self._connection.usable:
            return self._connection  # noqa: ASYNC910 - the request is the checkpoint
        attempt = self._attempt
        if attempt is None:
            attempt = _Attempt()
            try:
                self._connections.start(partial(self._run, attempt))
            except StoreClosed as error:
                await trio.lowlevel.checkpoint()
                return error
            self._attempt = attempt
        await attempt.ended.wait()
        return attempt.outcome

    @enable_ki_protection
    async def _run(self, attempt: _Attempt) -> None:
        def on_ready(connection: BaseConnection) -> None:
            self._connection = connection
            self._end(attempt, connection)

        failure: Exception | None = None
        try:
            failure = await run_connection(self._connector, self._location, on_ready)
        finally:
            self._end(attempt, failure or StoreClosed())

    def _end(self, attempt: _Attempt, outcome: BaseConnection | Exception) -> None:
        if self._attempt is attempt:
            self._attempt = None
            attempt.outcome = outcome
            attempt.ended.set()


def _is_loss(reply: Reply) -> bool:
    # The driver's class is also that of a server that is loading, which has answered.
    return type(reply) is ConnectionFailed


def as_replies(replies: Sequence[Reply], place: Place) -> list[Reply]:
    """
    Return replies with the driver's errors translated.
    """
    return [translate(reply, place) if isinstance(reply, Exception) else reply for reply in replies]
