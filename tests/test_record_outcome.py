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


async def test_a_cancellation_of_trio_stands_for_canceled_and_names_its_source() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled) as caught:
            await trio.lowlevel.checkpoint()
    error = caught.value
    assert outcome_of(error) == (Status.CANCELED, "Cancelled: explicit")
    assert outcome_of(BaseExceptionGroup("g", [error, ValueError()])) == (
        Status.FAILED,
        "Cancelled: explicit; ValueError",
    )
    error.source = "unknown"
    assert outcome_of(error) == (Status.CANCELED, "Cancelled")


def test_a_timeout_with_an_errno_is_the_networks_and_has_failed() -> None:
    error = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
    assert outcome_of(error) == (Status.FAILED, f"TimeoutError: [Errno {errno.ETIMEDOUT}] Connection timed out")


def test_leaving_the_program_with_zero_or_nothing_is_a_success() -> None:
    assert outcome_of(SystemExit(0)) == (Status.SUCCEEDED, "")
    assert outcome_of(SystemExit()) == (Status.SUCCEEDED, "")


def test_a_code_that_compares_with_nothing_is_a_failure() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError

        __hash__ = None  # type: ignore[assignment]

        def __str__(self) -> str:
            return "odd"

    assert outcome_of(SystemExit(Odd())) == (Status.FAILED, "SystemExit: odd")


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


def test_the_text_of_a_raised_cancellation_is_escaped_and_cut_like_that_of_any_exception() -> None:
    for text, recorded in (("a\udc80", "a\\udc80"), ("", ""), ("a\nb", "a\nb"), (5, "5")):
        with pytest.raises(Canceled) as caught:
            raise Canceled(text)  # type: ignore[arg-type]
        assert outcome_of(caught.value) == (Status.CANCELED, recorded)
    assert outcome_of(ExceptionGroup("g", [Canceled("x" * 300), Canceled()]))[1].endswith("more characters); Canceled")


def test_a_group_nested_beyond_the_stack_has_its_leaf() -> None:
    group: Exception = ValueError("deep")
    for _ in range(5_000):
        group = ExceptionGroup("g", [group])
    assert outcome_of(group) == (Status.FAILED, "ValueError: deep")


def test_the_leaves_of_a_group_make_one_line() -> None:
    group = ExceptionGroup("g", [ValueError("a\nb"), Canceled("c\x1b")])
    assert outcome_of(group) == (Status.FAILED, r"ValueError: a\nb; c\x1b")


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
