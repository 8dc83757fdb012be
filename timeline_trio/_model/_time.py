"""
Instants as integers of nanoseconds since the epoch, UTC: exact, ordered, and free of time zones.

They are written as RFC 3339 in UTC with as many of nine decimals as are needed.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from .._errors import InvalidValue

SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = -62_135_596_800 * SECOND
_LATEST = 253_402_300_800 * SECOND - 1  # the last nanosecond of the year 9999
NO_TIME = _EARLIEST  # how older writers spelled "none"

_SECOND = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d", re.ASCII)
_LONGEST_FRACTION = len(".000000000Z")
_REST = re.compile(r"(?:\.(\d{1,9}))?(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII)


def to_ns(value: object, field: str) -> int:
    """
    Take an instant in either accepted form: nanoseconds since the epoch, or an aware `datetime`.

    Raises:
        InvalidValue: another type, a naive `datetime`, or outside of the years 1 to 9999.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidValue(field, "a datetime without time zone is ambiguous; use datetime.now(UTC)")
        delta = value - _EPOCH
        value = (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds * 1_000
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidValue(
            field, f"expected nanoseconds since the epoch or an aware datetime, got {type(value).__name__}"
        )
    if not _EARLIEST <= value <= _LATEST:
        raise InvalidValue(field, "expected an instant of the years 1 to 9999, in nanoseconds since the epoch")
    return int(value)


def to_datetime(ns: int) -> datetime:
    """
    Return the instant as an aware UTC `datetime`, cut to microseconds.
    """
    return _EPOCH + timedelta(microseconds=ns // 1_000)


@lru_cache(maxsize=4096)  # the stages of one operation share their seconds
def _format_second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


@lru_cache(maxsize=4096)
def _parse_second(text: str) -> int | None:
    """
    Read `2026-01-31T12:00:00` to seconds since the epoch; None if that is no such time.
    """
    if not _SECOND.fullmatch(text):
        return None
    try:
        delta = datetime.fromisoformat(f"{text[:10]}T{text[11:]}+00:00") - _EPOCH
    except ValueError:
        return None
    return delta.days * 86_400 + delta.seconds


def format_time(ns: int) -> str:
    """
    Write an instant as RFC 3339.
    """
    second, fraction = divmod(ns, SECOND)
    if not fraction:
        return f"{_format_second(second)}Z"
    return f"{_format_second(second)}.{fraction:09d}".rstrip("0") + "Z"


def parse_time(text: str, field: str) -> int:
    """
    Read RFC 3339, in any zone, to the nanosecond.

    Raises:
        InvalidValue: the text is not RFC 3339 with at most nine decimals.
    """
    second, rest = _parse_second(text[:19]), text[19:]
    if second is not None and rest[-1:] == "Z" and rest[:1] == "." and len(rest) <= _LONGEST_FRACTION:
        fraction = rest[1:-1]  # as we write it ourselves
        if fraction.isdigit() and fraction.isascii():
            return second * SECOND + int(fraction.ljust(9, "0"))
    match = None if second is None else _REST.fullmatch(text, 19)
    if second is None or match is None:
        raise InvalidValue(field, "expected an RFC 3339 time such as 2026-01-31T12:00:00.5Z")
    fraction, sign, hours, minutes = match.groups()
    ns = second * SECOND + int(fraction.ljust(9, "0")) if fraction else second * SECOND
    if not sign:
        return ns
    offset = (int(hours) * 60 + int(minutes)) * 60 * SECOND
    return to_ns(ns - offset if sign == "+" else ns + offset, field)


def format_duration(ns: int) -> str:
    """
    Write a length of time for people: at most four figures, from nanoseconds to days.
    """
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    if ns < SECOND:
        for unit, size in (("ms", 1_000_000), ("µs", 1_000)):
            if ns >= size:
                return f"{sign}{ns / size:.3g}{unit}"
        return f"{sign}{ns}ns" if ns else "0s"
    if ns < 60 * SECOND:
        return f"{sign}{ns / SECOND:.2f}".rstrip("0").rstrip(".") + "s"
    minutes, seconds = divmod(ns // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d{hours:02d}h"
    return f"{sign}{hours}h{minutes:02d}m" if hours else f"{sign}{minutes}m{seconds:02d}s"
