"""
What SQLite's errors mean: try again at once, the file needs attention, or never.
"""

from __future__ import annotations

import errno
import sqlite3
from typing import TYPE_CHECKING, Final

from timeline_trio.store import StoreUnavailable

if TYPE_CHECKING:
    from pathlib import Path

_BUSY: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL))

_ADVICE: Final = {
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that its folder exists and may be written to",
    sqlite3.SQLITE_READONLY: "may not be written to; check the permissions of the file and of its folder",
    sqlite3.SQLITE_PERM: "may not be accessed; check the permissions of the file and of its folder",
    sqlite3.SQLITE_FULL: "cannot grow; free some space on its disk",
    sqlite3.SQLITE_IOERR: "cannot be read or written; check its disk",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup, or recover it with sqlite3's .recover",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; check the path",
}

_WATCH_ADVICE: Final = {
    errno.ENOENT: "cannot be watched: it is not there, or was moved, deleted or replaced; watch again once it is there",
    errno.EACCES: "cannot be watched; check the permissions of the file and of its folder",
    errno.EMFILE: "cannot be watched; raise the sysctl fs.inotify.max_user_instances, or the limit of open files",
    errno.ENFILE: "cannot be watched; raise the sysctl fs.file-max",
    errno.ENOSPC: "cannot be watched; raise the sysctl fs.inotify.max_user_watches",
}


class Busy(Exception):
    """
    Another connection holds a lock that this one needs. Try again shortly.
    """


def primary_code(error: sqlite3.Error) -> int:
    """
    Return SQLite's result code without its extension; SQLITE_ERROR where the error is the module's own.
    """
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """
    Tell whether another connection was in the way.
    """
    return primary_code(error) in _BUSY


def translate(error: sqlite3.Error, path: Path) -> Busy | StoreUnavailable:
    """
    Return what to raise instead of SQLite's error, which becomes its cause.
    """
    if is_busy(error):
        return Busy()
    code = primary_code(error)
    if code == sqlite3.SQLITE_ERROR and "no such table" in str(error):
        problem = "has no table 'timelines'; call create_schema() once, or open it with create=True"
    else:
        # SQLite's own text may quote what was stored, so it stays in the cause.
        problem = _ADVICE.get(code, "could not be used; the cause tells more")
    return StoreUnavailable("", f"{str(path)!r} {problem}")


def translate_watch(error: OSError, path: Path) -> StoreUnavailable:
    """
    Return what to raise instead of the error of one who watches the file, which becomes its cause.
    """
    problem = _WATCH_ADVICE.get(error.errno or 0, "cannot be watched; the cause tells more")
    return StoreUnavailable("", f"{str(path)!r} {problem}")
