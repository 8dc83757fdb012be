"""
Tests of periods, and of the delays after failures.
"""

from __future__ import annotations

from random import Random

from timeline_trio._manager._backoff import Backoff, Period


def test_a_streak_grows_its_delays_up_to_thirty_seconds() -> None:
    backoff = Backoff(1.0, Random(7))  # noqa: S311 - spreads periods
    assert not backoff.succeeded()
    delays = []
    for _ in range(60):
        backoff.failed(0.0)
        delays.append(backoff.until)
    assert delays[:3] == [1.0, 1.0, 1.0]
    assert 1.5 <= delays[3] <= 2.0
    assert all(22.5 <= delay <= 30 for delay in delays[10:])
    assert backoff.succeeded()
    assert backoff.until == float("-inf")


def test_only_the_first_long_work_of_an_interval_puts_off_what_is_due() -> None:
    period = Period(1.0, Random(7))  # noqa: S311 - spreads periods
    period.begin(0.0)
    period.note_stall(0.0, 5.0)
    due_at = period.due_at
    assert 5.0 <= due_at <= 6.0
    period.note_stall(5.0, 10.0)
    assert period.due_at == due_at
    period.begin(10.0)
    period.note_stall(10.0, 15.0)
    assert 15.0 <= period.due_at <= 16.0
