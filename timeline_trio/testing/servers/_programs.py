"""
Finds the programs of servers, which are not all on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from ._errors import ServerMissing

_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")  # an ordinary user's PATH leaves them out


def find_program(name: str, packages: str, *, folders: tuple[str, ...] = _SYSTEM_FOLDERS) -> str:
    """
    Return the path of a program.

    Args:
        name: its name, or its path.
        packages: the Debian packages that bring it.
        folders: where to look besides PATH.

    Raises:
        ServerMissing: it is not there.
    """
    if sys.platform != "linux":
        raise ServerMissing(name, packages, "is started as a private server on Linux only")
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *folders]))
    if found is None:
        raise ServerMissing(name, packages)
    return found


def postgres_folders() -> tuple[str, ...]:
    """
    Return the folders that Debian keeps each version's programs in, the newest first.
    """
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return tuple(map(str, sorted(folders, key=lambda folder: _number(folder.parent.name), reverse=True)))


def _number(name: str) -> int:
    digits = re.match(r"\d+", name)
    return int(digits[0]) if digits else 0
