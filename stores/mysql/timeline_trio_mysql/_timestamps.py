"""
DATETIME(6) is wall time without a zone: here it is always UTC, and converted by us, whatever zone the session has.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a zone would be dropped by the driver, unread
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds_of(stamp: datetime) -> int:
    """
    Return microseconds since the epoch.
    """
    return (stamp - _EPOCH) // _MICROSECOND


EARLIEST: Final = microseconds_of(datetime(1000, 1, 1))  # noqa: DTZ001 - as is the next, of what MySQL supports
LATEST: Final = microseconds_of(datetime.max)  # noqa: DTZ901 - likewise


def read_time(text: object) -> int | None:
    """
    Return microseconds since the epoch by the text of a column; None for what is no time, or none that one compares to.
    """
    try:
        microseconds = microseconds_of(datetime.fromisoformat(text)) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if microseconds is None or microseconds < EARLIEST else microseconds


def stamp_of(microseconds: int) -> datetime:
    """
    Return the time that a column can hold which is nearest.
    """
    return _EPOCH + min(max(microseconds, EARLIEST), LATEST) * _MICROSECOND
