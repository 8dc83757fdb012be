"""
A bell by Linux's inotify, which tells of a write within some 50 microseconds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, cast, final

import trio
from inotify_simple import INotify, flags  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

from ._bell import gone

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Protocol

    class _Event(Protocol):
        @property
        def wd(self) -> int: ...
        @property
        def mask(self) -> int: ...
        @property
        def name(self) -> str: ...

    class _Inotify(Protocol):
        def fileno(self) -> int: ...
        def add_watch(self, path: str, mask: int) -> int: ...
        def read(self, timeout: int) -> Iterable[_Event]: ...
        def close(self) -> None: ...


_COMES_OR_GOES: Final = int(flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO)
_FOLDER: Final = int(_COMES_OR_GOES | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR)
_FOLDER_GONE: Final = int(flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED)


@final
class InotifyBell:
    """
    Watches the file and its WAL for writes, and their folder for what comes and goes.

    Not the whole folder for writes: a busy log beside the database would wake us for nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.path.realpath(path)  # SQLite keeps the WAL beside the file that a link leads to
        self._wal = self._file + "-wal"
        folder, self._name = os.path.split(self._file)
        self._inotify = cast("_Inotify", INotify(nonblocking=True))
        try:
            self._folder = self._add(folder, _FOLDER)
            self._add(self._file, flags.MODIFY)
            self._add_wal()
        except BaseException:
            self._inotify.close()
            raise

    async def wait(self) -> None:
        """
        Wait for an event. It stays in the kernel's queue until it is silenced.
        """
        await trio.lowlevel.wait_readable(self._inotify.fileno())

    def silence(self) -> bool:
        """
        Empty the kernel's queue. It is bounded, and tells when it has overflown; that rings as well.
        """
        rang = False
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                self._add(self._file, flags.MODIFY)
                self._add_wal()
                rang = True
            elif event.wd != self._folder:
                rang = True
            elif event.mask & _FOLDER_GONE or event.name == self._name:
                raise gone(self._path)
            elif event.name == f"{self._name}-wal":
                # Watched before it is rung for: what was written in between is seen by the one who then asks.
                self._add_wal()
                rang = True
        return rang

    def close(self) -> None:
        """
        Close the descriptor.
        """
        self._inotify.close()

    def _add(self, path: str, mask: int) -> int:
        # By its name, and nothing is opened. A file that is watched already stays so.
        return self._inotify.add_watch(path, mask)

    def _add_wal(self) -> None:
        try:
            self._add(self._wal, flags.MODIFY)
        except FileNotFoundError:
            return
