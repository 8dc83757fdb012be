"""
The bytes of one connection, read by the very task of Trio that waits for them.

The event loop that runs on top of Trio wakes some eight tasks and callbacks for each answer, one after the other: of
0.25 ms of this process's time that a merge took, 0.11 went there. asyncio's interface between transport and protocol
allows to do without: while reading is paused, whoever likes may hand the protocol what came. Connecting, TLS, writing
what the socket does not take at once, and closing stay with the loop.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, TypeVar, final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


@final
class Wire:
    """
    Runs coroutines that wait for nothing but what a server answers.

    Args:
        transport: of the connection; without TLS, whose records are not what the protocol takes.
        protocol: what the transport serves.
    """

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.BufferedProtocol) -> None:
        transport.pause_reading()
        self._protocol = protocol
        # A second descriptor of the socket: the transport goes on to own the first, and may close it at any time.
        shared: socket.socket = transport.get_extra_info("socket")
        self._socket = shared.dup()

    @property
    def is_quiet(self) -> bool:
        """
        Whether there is nothing to read, neither an answer that nobody asked for nor the end of the stream.
        """
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def run(self, work: Callable[[], Coroutine[asyncio.Future[object], None, T]]) -> T:
        """
        Await `work()`, which must use no other connection.

        Cancelled, it leaves the work where it is: the connection is not to be used any more.
        """
        coroutine = work()
        has_waited = False
        try:
            while True:  # noqa: ASYNC913 - what needs no answer ends
                answer = coroutine.send(None)
                while not answer.done():
                    await trio.lowlevel.wait_readable(self._socket)
                    has_waited = True
                    self._receive()
        except StopIteration as stop:
            result: T = stop.value
        finally:
            coroutine.close()
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return result  # noqa: ASYNC910 - a checkpoint was passed above

    def close(self) -> None:
        """
        Give up the descriptor. The connection ends when the transport does so too.
        """
        self._socket.close()

    def _receive(self) -> None:
        try:
            count = self._socket.recv_into(self._protocol.get_buffer(-1))
        except BlockingIOError:
            return
        except OSError:  # reset by the other side, which is no other end than a close
            count = 0
        if count:
            self._protocol.buffer_updated(count)
        else:
            self._protocol.eof_received()


def lay_wire(transport: asyncio.Transport) -> Wire | None:
    """
    Return the wire of a connection that has logged in; None if it uses TLS.
    """
    if transport.get_extra_info("ssl_object") is not None:
        return None
    protocol = transport.get_protocol()
    assert isinstance(protocol, asyncio.BufferedProtocol)
    return Wire(transport, protocol)
