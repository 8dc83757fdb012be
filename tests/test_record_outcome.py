"""
Tests of what an error says about the result.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno

import pytest
import trio

from timeline_trio import Canceled, InvalidValue, Status, outcome_of


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_nothing_stands_for_success() -> None:
    assert outcome_of(None) == (Status.SUCCEEDED, "")


def test_text_stands_for_a_failure_and_is_kept_as_given() -> None:
    assert outcome_of("disk\nfull") == (Status.FAILED, "disk\nfull")
    assert outcome_of("x" * 20_000) == (Status.FAILED, "x" * 20_000)
    assert outcome_of("") == (Status.FAILED, "")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (trio.TooSlowError(), "TooSlowError"),
        (asyncio.CancelledError(), "CancelledError"),
        (concurrent.futures.CancelledError(), "CancelledError"),
        (TimeoutError("late"), "TimeoutError: late"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (Canceled("not needed"), "not needed"),
        (Canceled(), ""),
    ],
)
def test_cancellations_and_deadlines_stand_for_canceled(error: BaseException, text: str) -> None:
    assert outcome_of(error) == (Status.CANCELED, text)


async def test_a_cancellation_of_trio_stands_for_canceled() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            status, text = outcome_of(error)
            assert status is Status.CANCELED
            assert text.startswith("Cancelled")
            raise


def test_a_timeout_with_an_errno_is_the_networks_and_has_failed() -> None:
    error = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
    assert outcome_of(error) == (Status.FAILED, f"TimeoutError: [Errno {errno.ETIMEDOUT}] Connection timed out")


def test_leaving_the_program_with_zero_or_nothing_is_a_success() -> None:
    assert outcome_of(SystemExit(0)) == (Status.SUCCEEDED, "")
    assert outcome_of(SystemExit()) == (Status.SUCCEEDED, "")


def test_leaving_the_program_with_anything_else_is_a_failure() -> None:
    assert outcome_of(SystemExit(2)) == (Status.FAILED, "SystemExit: 2")
    assert outcome_of(SystemExit("no input")) == (Status.FAILED, "SystemExit: no input")
    assert outcome_of(SystemExit(["no", "input"])) == (Status.FAILED, "SystemExit: ['no', 'input']")


def test_an_exception_is_printed_as_python_does_with_its_type() -> None:
    assert outcome_of(ValueError("bad")) == (Status.FAILED, "ValueError: bad")
    assert outcome_of(ValueError()) == (Status.FAILED, "ValueError")


def test_an_exception_that_cannot_print_itself_is_named() -> None:
    assert outcome_of(Unprintable()) == (Status.FAILED, "Unprintable")


def test_a_very_long_exception_is_cut() -> None:
    _, text = outcome_of(ValueError("x" * 10_000))
    assert text.startswith("ValueError: xxx")
    assert text.endswith("… (1820 more characters)")


def test_a_lone_surrogate_of_an_exception_is_escaped_and_one_of_text_refused() -> None:
    assert outcome_of(ValueError("a\udc80")) == (Status.FAILED, "ValueError: a\\udc80")
    for bad in ("a\udc80", Canceled("a\udc80")):
        with pytest.raises(InvalidValue) as caught:
            outcome_of(bad)
        assert caught.value.field == "error"


def test_a_group_of_nothing_but_cancellations_is_canceled() -> None:
    group = BaseExceptionGroup("g", [KeyboardInterrupt(), ExceptionGroup("h", [trio.TooSlowError(), Canceled("x")])])
    assert outcome_of(group) == (Status.CANCELED, "KeyboardInterrupt; TooSlowError; x")


def test_a_group_with_one_failure_has_failed_with_a_line_of_its_leaves() -> None:
    group = ExceptionGroup("g", [trio.TooSlowError(), ExceptionGroup("h", [ValueError("bad"), OSError("y" * 300)])])
    status, text = outcome_of(group)
    assert status is Status.FAILED
    assert text.startswith("TooSlowError; ValueError: bad; OSError: yyy")
    assert len(text) < 300


def test_anything_else_is_refused() -> None:
    with pytest.raises(InvalidValue, match="error: expected an exception, text, Canceled or None, got int"):
        outcome_of(5)  # type: ignore[arg-type]
