"""
One try of one transaction: what its caller and its thread must agree on.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    import sqlite3
    import threading


T = TypeVar("T")


class Phase(enum.Enum):
    """
    How far a call is.

    The thread moves it on. Only the caller moves it to abandoned, and from there nobody moves it.
    """

    RUNNING = enum.auto()
    COMMITTING = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()
    ABANDONED = enum.auto()


class Abandoned(Exception):
    """
    The caller has left. Raised in the thread, where nobody sees it.
    """


class Call(Generic[T]):
    """
    The phase of one call, and the connection that its thread has meanwhile.

    Args:
        lock: guards both. It is never held for I/O.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._connection: sqlite3.Connection | None = None
        self._result: T | None = None
        self.phase = Phase.RUNNING

    @property
    def result(self) -> T:
        """
        What the transaction returned; only once the call is done.
        """
        return cast("T", self._result)

    def abandon(self) -> None:
        """
        Leave the thread behind, so that it commits nothing.

        That has no effect on one that is committing or has ended. The statement that another one is in is
        interrupted, so that it ends soon.
        """
        with self._lock:
            if self.phase is Phase.RUNNING:
                self.phase = Phase.ABANDONED
                if self._connection is not None:
                    self._connection.interrupt()

    def use(self, connection: sqlite3.Connection) -> None:
        """
        Tell, in the thread, which connection is to be interrupted.

        Raises:
            Abandoned: the caller has left.
        """
        with self._lock:
            self._require_caller()
            self._connection = connection

    def enter(self, phase: Phase) -> None:
        """
        Move on to a phase, in the thread.

        Raises:
            Abandoned: the caller has left.
        """
        with self._lock:
            self._require_caller()
            self.phase = phase

    def finish(self, result: T) -> None:
        """
        Note, in the thread, that the transaction is committed.
        """
        with self._lock:
            self._result = result
            self.phase = Phase.DONE

    def end(self) -> bool:
        """
        End, in the thread, with the lock held; return whether the call was not abandoned.
        """
        self._connection = None
        if self.phase is Phase.ABANDONED:
            return False
        if self.phase is not Phase.DONE:
            self.phase = Phase.FAILED
        return True

    def _require_caller(self) -> None:
        if self.phase is Phase.ABANDONED:
            raise Abandoned
