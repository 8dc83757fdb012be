"""
One connection, used by one thread at a time, and given up by whoever leaves its thread behind.

A thread cannot be cancelled. When its caller is, the thread has a moment to come to its end, which most calls do, and
which spares the server a new session; then the server is asked to stop, which mostly ends the thread within
milliseconds; then the socket is shut down, which ends it in any case, whatever state the server is in. Who comes last,
the thread or whoever gives the connection up, closes it: nobody closes what the other one reads from.

What the thread had sent may have been done, or may even yet be done by a server that stood still. It never overwrites
what was written afterwards, since each write names the version that it replaces.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import psycopg
import trio
from psycopg import pq

from ._protocol import STOP_TIME, ask_to_stop, hang_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

T = TypeVar("T")

_MOMENT: Final = 0.005  # seconds that a cancelled caller waits for what is as good as done


class _Abandoned(Exception):
    """
    The caller has left. Raised in the thread, where nobody sees it.
    """


@final
class _Call(Generic[T]):
    """
    One piece of work: how its thread and its caller find each other. The session's lock guards it.
    """

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self.work = work
        self.results: list[T] = []
        self.begun = False
        self.ended = False
        self.left: trio.Event | None = None  # what the caller who was cancelled waits for


@final
class Session:
    """
    One connection.

    Args:
        connection: an open one, which nobody else uses.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # A descriptor of its own, for a look and for the shutdown: libpq's may be closed by a thread at any time. Its
        # family is of no importance for either.
        self._socket = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
        self._socket.settimeout(0)
        self._lock = threading.Lock()  # guards what follows, and the beginning of calls; never held for I/O
        self._in_thread = False
        self._given_up = False
        self._spent = False

    @property
    def is_sound(self) -> bool:
        """
        Whether the next caller may have it: nothing is under way, and nothing came in that nobody asked for.
        """
        if self._given_up or self._spent or self._in_thread:
            return False
        if self._connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            return False
        try:
            # The end of the connection, or the server's reason for it.
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def call(self, work: Callable[[Connection], T], threads: trio.CapacityLimiter) -> T:
        """
        Do some work with the connection, in a thread. Cancelled, it may have been done.

        A result that is there soon, or before the server has stopped, is returned; the next checkpoint raises again.
        """
        call = _Call(work)
        token = trio.lowlevel.current_trio_token()
        try:
            return await trio.to_thread.run_sync(
                self._run, call, token, abandon_on_cancel=True, limiter=threads, thread_name="timeline_trio_postgres"
            )
        except trio.Cancelled:
            with self._lock:
                call.left = trio.Event()
                underway = call.begun and not call.ended
            if underway:
                await self._stop(call.left)  # noqa: ASYNC102 - it is shielded and bounded itself
            if call.results:
                return call.results[0]  # noqa: ASYNC104, ASYNC910 - it was a checkpoint
            raise

    def mark_spent(self) -> None:
        """
        Let nobody have it after the one who has it now.
        """
        self._spent = True

    def give_up(self) -> None:
        """
        Close it at once, or let the thread do so that still uses it, and which ends by this.
        """
        with self._lock:
            if not self._given_up:
                self._given_up = True
                with suppress(OSError):  # the other side may have been faster
                    self._socket.shutdown(socket.SHUT_RDWR)
                if not self._in_thread:
                    self._close()

    def leave(self) -> None:
        """
        Close it in good order. It must be sound.
        """
        with self._lock:
            self._given_up = True
            self._close()

    def _close(self) -> None:
        self._connection.close()
        self._socket.close()

    async def _stop(self, ended: trio.Event) -> None:
        # Shielded, since it follows a cancellation, and bounded, since the server may stand still.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _MOMENT):
            await ended.wait()
        if ended.is_set():
            return
        # A late request would hit the next statement on this connection, so there must not be one.
        self._spent = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIME):
            with suppress(psycopg.Error, OSError):
                await ask_to_stop(self._connection.pgconn)
            await ended.wait()
            await hang_up(self._socket)  # no thread uses it any more

    def _run(self, call: _Call[T], token: trio.lowlevel.TrioToken) -> T:
        with self._lock:
            if call.left is not None or self._given_up:
                raise _Abandoned
            call.begun = self._in_thread = True
        try:
            result = call.work(self._connection)
            call.results.append(result)
        finally:
            with self._lock:
                self._in_thread = False
                call.ended = True
                if self._given_up:
                    self._close()
            if call.left is not None:
                with suppress(trio.RunFinishedError):  # the caller's run may be over
                    token.run_sync_soon(call.left.set)
        return result
