"""
What rings when a database file may have changed, whoever changed it.

SQLite has no call that waits for other processes, but their commits are writes: to `<file>-wal` in WAL mode, to the
file itself otherwise. Those are watched from outside. Neither file is ever opened for that: when a process closes any
descriptor of a file, POSIX drops all locks that the process has on it, SQLite's own included ("How To Corrupt An SQLite
Database File", section 2.2).
"""

from __future__ import annotations

import errno
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

import trio

if TYPE_CHECKING:
    from pathlib import Path

_INTERVAL: Final = 0.1  # seconds between two looks at the files; one costs half a millisecond, with its thread


class Bell(Protocol):
    """
    Rings when a file may have changed. It may ring for nothing, and rings once for many changes.
    """

    async def wait(self) -> None:
        """
        Wait until it has rung since it was last silenced. Cancelled, it goes on ringing.

        Raises:
            OSError: the file has gone, or cannot be watched any more.
        """
        ...

    def silence(self) -> bool:
        """
        Forget what has rung, and return whether anything did. What happens from now on rings anew.

        Raises:
            OSError: the file has gone, or cannot be watched any more.
        """
        ...

    def close(self) -> None:
        """
        Ring no more. Nobody may be waiting.
        """
        ...


def open_bell(path: Path) -> Bell:
    """
    Return the best bell of this platform for a file, blocking a little. What happens once it returns will ring.

    Raises:
        OSError: the file is not there, or cannot be watched.
    """
    if sys.platform == "linux":
        from ._inotify import InotifyBell  # noqa: PLC0415 - there is none elsewhere

        return InotifyBell(path)
    return PollingBell(path)


class _Glance(NamedTuple):
    """
    What is seen of a file from outside; None in place of all where there is no file.
    """

    identity: tuple[int, int]
    size: int
    modified_at: int


def _look(path: str) -> _Glance | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - many times a second
    except FileNotFoundError:
        return None
    return _Glance((status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns)


def gone(path: Path) -> FileNotFoundError:
    """
    Return the error for a file that is not the one any more that was there before.
    """
    return FileNotFoundError(errno.ENOENT, "the file was moved, deleted or replaced", str(path))


@final
class PollingBell:
    """
    Looks at size and modification time many times a second, in a thread, since a file system may hang.

    Args:
        path: the file.
        interval: seconds between two looks.
    """

    def __init__(self, path: Path, *, interval: float = _INTERVAL) -> None:
        self._path = path
        self._interval = interval
        self._file = os.path.realpath(path)  # SQLite keeps the WAL beside the file that a link leads to
        self._limiter = trio.CapacityLimiter(1)
        self._first = _look(self._file)
        self._silenced = self._found = self._glances()

    async def wait(self) -> None:
        """
        Look until something differs.
        """
        looking = partial(trio.to_thread.run_sync, self._glances, abandon_on_cancel=True, limiter=self._limiter)
        await trio.lowlevel.checkpoint()
        while self._found == self._silenced:
            await trio.sleep(self._interval)
            self._found = await looking()

    def silence(self) -> bool:
        """
        Take what was found for the state from which on things differ.
        """
        rang = self._found != self._silenced
        self._silenced = self._found
        return rang

    def close(self) -> None:
        """
        Do nothing: nothing is open.
        """

    def _glances(self) -> tuple[_Glance, _Glance | None]:
        glance = _look(self._file)
        if glance is None or self._first is None or glance.identity != self._first.identity:
            raise gone(self._path)
        return glance, _look(self._file + "-wal")
