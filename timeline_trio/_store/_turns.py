"""
Lets merges into one operation, of one store, take turns.

Against each other they would only lose races, each at the cost of a connection and a round trip. In a line, each one
builds on what the one before it wrote, and whoever merges into other operations has the connections meanwhile.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, final

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from ._contract import Known


class _Line:
    def __init__(self) -> None:
        self.lock = trio.Lock()  # first come, first served
        self.length = 0  # with the one whose turn it is
        self.known: Known | None = None


@final
class Turn:
    """
    The turn of one call, in all the lines that it stood in.
    """

    def __init__(self, lines: Mapping[str, _Line]) -> None:
        self._lines = lines

    def base(self, opid: str, known: Known | None) -> Known | None:
        """
        Return what the caller knows, or what the one before it wrote if that is not older.
        """
        left = self._lines[opid].known
        if left is None or (known is not None and left.revision.is_older_than(known.revision)):
            return known
        return left

    def leave(self, opid: str, known: Known | None) -> None:
        """
        Leave behind what was written, for the next one in line.
        """
        line = self._lines[opid]
        line.known = known if line.length > 1 else None


@final
class Turns:
    """
    The lines of one store, one an operation that is being merged into.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def take(self, opids: Iterable[str]) -> AsyncGenerator[Turn]:
        """
        Wait for the turn in all lines. It passes no checkpoint if it is first in all of them.
        """
        lines: dict[str, _Line] = {}
        reached: list[_Line] = []
        try:
            # In one order, so that no two calls wait for each other.
            for opid in sorted(set(opids)):
                line = lines[opid] = self._lines.setdefault(opid, _Line())
                line.length += 1
                if line.length == 1:
                    line.lock.acquire_nowait()
                else:
                    await line.lock.acquire()
                reached.append(line)
            yield Turn(lines)
        finally:
            for line in reached:
                line.lock.release()
            for opid, line in lines.items():
                line.length -= 1
                if not line.length:
                    del self._lines[opid]
