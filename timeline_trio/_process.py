"""
Tells a process from the one that it was forked from.
"""

from __future__ import annotations

import os
from typing import Final, Protocol, final
from weakref import WeakSet

from ._errors import WrongProcess


class ForkAware(Protocol):
    """
    What is told of a fork.
    """

    def note_fork(self) -> None:
        """
        Prepare, in the child, for being of no use there. Other threads may have held any lock.
        """
        ...


@final
class Forks:
    """
    Counts the forks between this process and the first one: facts of the process, so the one module-level state.
    """

    count = 0
    aware: Final[WeakSet[ForkAware]] = WeakSet()

    @classmethod
    def note(cls) -> None:
        cls.count += 1
        for each in list(cls.aware):
            each.note_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.note)


@final
class ProcessGuard:
    """
    Remembers the process that it was made in. Asking it costs an attribute, where asking for the pid is a system call.
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = Forks.count

    @property
    def is_foreign(self) -> bool:
        """
        Whether this is a child of the process that the guard was made in.
        """
        return self._count != Forks.count

    def check(self) -> None:
        """
        Refuse to go on in a forked child: locks may be held by threads that are not there, and facts are copies.

        Raises:
            WrongProcess: this is a child of the process that the guard was made in.
        """
        if self._count != Forks.count:
            raise WrongProcess
