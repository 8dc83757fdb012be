"""
How busy others kept the machine while something was measured.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)  # of the columns in /proc/stat: idle, and waiting for a disk
_COUNTED = 8  # columns; what guests use is in those of their host already
_OWN = slice(11, 15)  # of the fields after a process's name: user, system, and both of its children that have ended


class ForeignLoad:
    """
    Counts from now on: all that the machine did, without this process and all that came of it.
    """

    def __init__(self) -> None:
        self._foreign = _all_ticks() - _own_ticks()
        self._began = time.monotonic()

    def cores(self) -> float:
        """
        Return how many cores were used by others, on average.
        """
        seconds = (_all_ticks() - _own_ticks() - self._foreign) / _TICKS
        return max(0.0, seconds / (time.monotonic() - self._began))


def _all_ticks() -> int:
    first, *_ = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    columns = list(map(int, first.split()[1 : _COUNTED + 1]))
    return sum(columns) - sum(columns[number] for number in _IDLE)


def _own_ticks() -> int:
    """
    Return the ticks of this process, its descendants, and those of them that have ended.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[_OWN]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total
