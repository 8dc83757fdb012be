"""
Tests of instants and lengths of time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline_trio.model import InvalidValue, format_duration, format_time, parse_time, to_datetime, to_ns

from . import strategies


@given(strategies.times)
def test_time_comes_back_to_the_nanosecond(ns: int) -> None:
    text = format_time(ns)
    assert parse_time(text, "x") == ns
    assert text.endswith("Z")
    assert to_ns(ns, "x") == ns


@given(st.datetimes(datetime(2, 1, 1), datetime(9999, 1, 1), timezones=st.timezones()))  # noqa: DTZ001
def test_datetime_is_taken_by_its_instant(value: datetime) -> None:
    assert to_datetime(to_ns(value, "x")) == value.astimezone(UTC)
    assert parse_time(value.astimezone(UTC).isoformat(), "x") == to_ns(value, "x")


def test_datetime_outside_of_the_years_in_utc_is_refused() -> None:
    with pytest.raises(InvalidValue, match="years 1 to 9999"):
        to_ns(datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "x")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00.5z", 500_000_000),
        ("1970-01-01 02:00:00.000000001+02:00", 1),
        ("1969-12-31T19:00:00-05:00", 0),
        ("1970-01-01T23:59:00+23:59", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("0001-01-01T00:00:00Z", strategies.EARLIEST),
        ("9999-12-31T23:59:59.999999999Z", strategies.LATEST),
    ],
)
def test_rfc_3339_is_read(text: str, ns: int) -> None:
    assert parse_time(text, "x") == ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00.1234567891Z",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00-00:60",
        "\u0661\u0669\u0667\u0660-01-01T00:00:00Z",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_time(text, "the field")
    assert caught.value.field == "the field"


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001 - the very point
        True,
        1.0,
        "2026-01-01T00:00:00Z",
        None,
        strategies.EARLIEST - 1,
        strategies.LATEST + 1,
    ],
)
def test_what_is_no_instant_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="the field"):
        to_ns(value, "the field")


def test_datetime_of_any_zone_is_the_same_instant() -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    assert to_ns(datetime(2026, 1, 1, 5, 30, tzinfo=zone), "x") == to_ns(datetime(2026, 1, 1, tzinfo=UTC), "x")
    assert to_datetime(1_999) == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (999_999, "1e+03µs"),
        (2_000_000, "2ms"),
        (1_000_000_000, "1s"),
        (1_250_000_000, "1.25s"),
        (-1_250_000_000, "-1.25s"),
        (59_994_000_000, "59.99s"),
        (60 * 10**9, "1m00s"),
        (3_661 * 10**9, "1h01m"),
        (90_000 * 10**9, "1d01h"),
    ],
)
def test_duration_is_written_for_people(ns: int, text: str) -> None:
    assert format_duration(ns) == text
