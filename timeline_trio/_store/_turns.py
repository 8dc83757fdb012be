"""
Lets merges into one operation, of one store, take turns.

Against each other they would only lose races, each at the cost of a connection and a round trip. In a line, each one
builds on what the one before it wrote, and whoever merges into other operations has the connections meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio.lowlevel

if TYPE_CHECKING:
    from ._contract import Known


@final
class _Line:
    """
    Those who wait for one operation, first come, first served, and what the one before them wrote.
    """

    def __init__(self) -> None:
        self.lot = trio.lowlevel.ParkingLot()
        self.known: Known | None = None


@final
class Turns:
    """
    The lines of one store. An operation that nobody waits for, as nearly all, has none, and costs a look into a dict.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line | None] = {}  # of each operation that is being merged into

    def take(self, opid: str) -> bool:
        """
        Take the turn if it is free; otherwise `wait` for it.
        """
        if opid in self._lines:
            return False
        self._lines[opid] = None
        return True

    async def wait(self, opid: str) -> None:
        """
        Wait for the turn. Cancelled, it has not been taken.
        """
        line = self._lines[opid]
        if line is None:
            line = self._lines[opid] = _Line()
        await line.lot.park()

    def base(self, opid: str, known: Known | None) -> Known | None:
        """
        Return what the caller knows, or what the one before it wrote if that is not older.
        """
        line = self._lines[opid]
        if line is None or line.known is None:
            return known
        if known is not None and line.known.revision.is_older_than(known.revision):
            return known
        return line.known

    def leave(self, opid: str, known: Known | None) -> None:
        """
        Pass the turn on to the next one in line, with what was written.
        """
        line = self._lines[opid]
        if line is None or not line.lot:
            del self._lines[opid]
            return
        line.known = known
        line.lot.unpark()
