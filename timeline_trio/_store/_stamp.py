"""
The update time of a row, by the writers' own clocks.
"""

from __future__ import annotations

MICROSECOND = 1_000


def next_stamp(now: int, previous: int, overlap: int) -> int:
    """
    Return the update time of a changed row, in nanoseconds since the epoch.

    It steps past the previous one by a microsecond where that is not past already, in the same microsecond or by
    another writer's clock that is a little ahead, so that pollers see the change; but not where that clock is off by
    more than the overlap: one host whose clock is a day ahead must not fill everybody's window for a day.
    """
    if previous <= now + overlap:
        return max(now, previous + MICROSECOND)
    return now
