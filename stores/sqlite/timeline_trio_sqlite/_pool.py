"""
Connections for threads that may be abandoned.

SQLite blocks, so each transaction runs in a thread, and a thread cannot be cancelled: its caller leaves it
behind instead. Such a thread must not share its connection, nor overwrite later what its caller's successors
wrote. So

- a connection belongs to the thread that took it. The pool forgets it until it is given back; the thread of
  an abandoned call closes it instead. The next call takes another one, or opens one, at once.
- an abandoned call commits nothing, decided under one lock: the thread asks for leave right after it got
  SQLite's write lock and again right before COMMIT, and the canceller either comes first, or finds the commit
  begun. A commit that has begun still holds SQLite's write lock, so that every later write waits for it and
  comes out on top.

No thread waits for a lock for long: SQLite's own waiting cannot be interrupted, and starves processes. A busy
transaction is tried anew by its caller, after a jittered pause outside of the thread, for as long as the
caller's scope allows.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from timeline_trio import WrongProcess
from timeline_trio.store import StoreUnavailable

from ._call import Call, Phase
from ._failures import Busy, translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

CLOSE_TIMEOUT: Final = 1.0  # seconds
_SHORTEST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.020
_COMMIT_TIME: Final = 0.1  # seconds that a cancelled caller waits for a commit that has begun
_SPARE_THREADS: Final = 4  # how many abandoned ones may be stuck before new calls wait for them


async def _settle(call: Call[T]) -> None:
    """
    Wait a little for a commit that has begun: mostly it is through in no time, and then its outcome is known.
    """
    # Shielded, since it follows a cancellation, and bounded, since a disk may hang.
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _COMMIT_TIME):
        await trio.lowlevel.checkpoint()
        # A thread that was left behind can set no event of ours: the run may be over by then.
        while call.phase is Phase.COMMITTING:  # noqa: ASYNC110
            await trio.sleep(_SHORTEST_PAUSE)


class Pool:
    """
    Runs transactions in threads, each on a connection of its own.

    Args:
        path: the file, for messages.
        connect: opens a connection, in a thread.
        begin: the statement that begins a transaction.
        size: how many transactions run at once, and how many connections are kept.
    """

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection], *, begin: str, size: int) -> None:
        self._path = path
        self._process = os.getpid()
        self._connect = connect
        self._begin = begin
        self._size = size
        self._places = trio.Semaphore(size)
        self._threads = trio.CapacityLimiter(size + _SPARE_THREADS)
        self._lock = threading.Lock()  # guards what follows, and the phases of calls
        self._thread_done = threading.Condition(self._lock)
        self._idle: list[sqlite3.Connection] = []
        self._running = 0
        self._closed = False
        self._busy = 0

    @property
    def foreign(self) -> bool:
        """
        Whether this is a child of the process that opened the pool: SQLite's connections do not survive a fork.
        """
        return os.getpid() != self._process

    @property
    def running(self) -> int:
        """
        How many threads run, with those that were left behind.
        """
        return self._running

    @property
    def idle(self) -> int:
        """
        How many connections are open and not in use.
        """
        return len(self._idle)

    @property
    def busy(self) -> int:
        """
        How many times a transaction was tried anew because another connection held a lock.
        """
        return self._busy

    @property
    def closed(self) -> bool:
        """
        Whether calls are refused.
        """
        return self._closed

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """
        Run `work` in one transaction, in a thread, and commit it; again and again while others hold locks.

        Cancelled, it may have been done, and never overwrites what is written afterwards.

        Raises:
            StoreUnavailable: the file cannot be used.
            WrongProcess: this process was forked from the one that opened the store.
        """
        if self.foreign:
            raise WrongProcess("store")
        longest = _SHORTEST_PAUSE
        async with self._places:
            while True:
                call: Call[T] = Call(self._lock)
                try:
                    return await trio.to_thread.run_sync(
                        self._run, call, work, abandon_on_cancel=True, limiter=self._threads
                    )
                except Busy:
                    self._busy += 1
                except trio.Cancelled:
                    call.abandon()
                    await _settle(call)  # noqa: ASYNC102 - it is shielded and bounded itself
                    if call.phase is Phase.DONE:
                        # It was done before the cancellation came, so the caller may know; the next checkpoint
                        # raises again.
                        return call.result  # noqa: ASYNC104
                    raise
                except BaseException:  # Ctrl-C, or the thread's own failure, which has ended the call
                    call.abandon()
                    raise
                longest = min(2 * longest, _LONGEST_PAUSE)
                await trio.sleep(random.uniform(_SHORTEST_PAUSE, longest))  # noqa: S311 - no secret

    def close(self) -> None:
        """
        Close the connections, blocking.

        Threads that still have one close it themselves, which is waited for a little.
        """
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        with self._lock:
            self._thread_done.wait_for(lambda: not self._running, CLOSE_TIMEOUT)

    def _run(self, call: Call[T], work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._take()
        sound = True
        try:
            if connection is None:
                connection = self._connect()
            call.use(connection)
            return self._transact(call, connection, work)
        except sqlite3.Error as error:
            failure = translate(error, self._path)
            sound = isinstance(failure, Busy)
            raise failure from error
        finally:
            self._give_back(call, connection, sound=sound)

    def _transact(self, call: Call[T], connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection.execute(self._begin)
            call.enter(Phase.RUNNING)
            result = work(connection)
            call.enter(Phase.COMMITTING)
            connection.execute("COMMIT")
            call.finish(result)
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _take(self) -> sqlite3.Connection | None:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("", f"the store of {str(self._path)!r} is closed")
            self._running += 1
            return self._idle.pop() if self._idle else None

    def _give_back(self, call: Call[T], connection: sqlite3.Connection | None, *, sound: bool) -> None:
        with self._lock:
            wanted = call.end() and sound and not self._closed and len(self._idle) < self._size
            if connection is not None and wanted:
                self._idle.append(connection)
        if connection is not None and not wanted:
            connection.close()
        with self._lock:
            self._running -= 1
            self._thread_done.notify_all()
