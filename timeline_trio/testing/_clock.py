"""
A wall clock for tests.
"""

from __future__ import annotations

from typing import final

_NEW_YEAR_2026 = 1_767_225_600 * 1_000_000_000


@final
class ManualClock:
    """
    Tells nanoseconds since the epoch, and moves only when told to.

    Args:
        now: the first time it tells.
    """

    def __init__(self, now: int = _NEW_YEAR_2026) -> None:
        self.now: int = now

    def __call__(self) -> int:
        """
        Return nanoseconds since the epoch.
        """
        return self.now

    def advance(self, seconds: float) -> None:
        """
        Move by that many seconds, to whole nanoseconds; backwards if negative.
        """
        self.now += round(seconds * 1e9)

    def __repr__(self) -> str:
        return f"ManualClock({self.now})"
