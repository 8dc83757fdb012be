"""
What an error that is handed to an end or a finish says about the result.

This stands above the model, since it knows the cancellations of Trio, asyncio and concurrent.futures.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Final, cast, final

import trio

from .._errors import InvalidValue
from .._model._text import check_text, printable_text
from .._model._values import Status

MAX_ERROR_LENGTH: Final = 8_192  # of an exception's text, which may hold a whole document; given text is not cut
_SUMMARY_LENGTH: Final = 200  # of each leaf of an exception group

_SUCCESS: Final = (Status.SUCCEEDED, "")
_CANCELLATIONS: Final = (
    trio.Cancelled,
    trio.TooSlowError,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    KeyboardInterrupt,
    GeneratorExit,
)


@final
class Canceled(Exception):
    """
    An outcome to hand to an end or a finish: it was canceled, with this text.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text


def outcome_of(error: BaseException | str | None) -> tuple[Status, str]:
    """
    Return the status and the error text that an error stands for.

    None stands for success, and so does `SystemExit(0)`. A cancellation or an expired deadline, of Trio, asyncio,
    concurrent.futures or `Canceled`, stands for canceled, and so does an exception group of nothing else. All else
    has failed: text is kept as given, an exception as Python prints it in one line, a group as a line with its
    leaves. A `TimeoutError` with an errno is the network's, and no deadline.

    Raises:
        InvalidValue: not text, an exception or None; or text with a lone surrogate.
    """
    if error is None:
        return _SUCCESS
    if isinstance(error, str):
        check_text(error, "error")
        return Status.FAILED, error
    if isinstance(error, Canceled):
        check_text(error.text, "error")
        return Status.CANCELED, error.text
    if not isinstance(error, BaseException):
        raise InvalidValue("error", f"expected an exception, text, Canceled or None, got {type(error).__name__}")
    if isinstance(error, SystemExit) and error.code in (0, None):  # which may be anything, a list too
        return Status.SUCCEEDED, ""
    if isinstance(error, BaseExceptionGroup):
        leaves = _leaves(cast("BaseExceptionGroup[BaseException]", error))
        status = Status.CANCELED if all(_is_cancellation(leaf) for leaf in leaves) else Status.FAILED
        text = "; ".join(_one_line(leaf, _SUMMARY_LENGTH) for leaf in leaves)
        return status, printable_text(text, MAX_ERROR_LENGTH)
    return Status.CANCELED if _is_cancellation(error) else Status.FAILED, _one_line(error, MAX_ERROR_LENGTH)


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, TimeoutError) and error.errno is None:
        return True
    return isinstance(error, (*_CANCELLATIONS, Canceled))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            leaves += _leaves(cast("BaseExceptionGroup[BaseException]", error))
        else:
            leaves.append(error)
    return leaves


def _one_line(error: BaseException, limit: int) -> str:
    name = type(error).__name__
    if isinstance(error, Canceled):
        return error.text or name
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - somebody's __str__ must not cost the record its end
        text = ""
    return printable_text(f"{name}: {text}" if text else name, limit)
