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
from .._model._text import check_text, one_line, printable_text
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
    An outcome to hand to an end or a finish: it was canceled, with this text. It may be raised in a block too.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text


def outcome_of(error: BaseException | str | None) -> tuple[Status, str]:
    """
    Return the status and the error text that an error stands for.

    None stands for success, and so does `SystemExit(0)`. A cancellation or an expired deadline, of Trio, asyncio,
    concurrent.futures or `Canceled`, stands for canceled, and so does an exception group of nothing else. All else
    has failed. A `TimeoutError` with an errno is the network's, and no deadline.

    Text is kept as given. Of an exception it is the type and what the exception says, of a group one line with its
    leaves; it is cut to length, and lone surrogates in it are escaped.

    Raises:
        InvalidValue: not text, an exception or None; or text with a lone surrogate, also of a `Canceled` that was
            never raised.
    """
    if error is None:
        return _SUCCESS
    if isinstance(error, str):
        check_text(error, "error")
        return Status.FAILED, error
    if isinstance(error, Canceled) and error.__traceback__ is None:
        check_text(error.text, "error")
        return Status.CANCELED, error.text
    if not isinstance(error, BaseException):
        raise InvalidValue("error", f"expected an exception, text, Canceled or None, got {type(error).__name__}")
    status, leaves = _status_of(error), _leaves(error)
    if isinstance(error, BaseExceptionGroup):
        text = "; ".join(one_line(printable_text(_text_of(leaf), _SUMMARY_LENGTH)) for leaf in leaves)
    else:
        text = _own_text(error) if isinstance(error, Canceled) else _text_of(error)
    return status, "" if status is Status.SUCCEEDED else printable_text(text, MAX_ERROR_LENGTH)


def without_text(error: BaseException) -> Canceled | str | None:
    """
    Return what stands for the status of an exception, and has no text that could be refused.
    """
    status = _status_of(error)
    if status is Status.CANCELED:
        return Canceled()
    return "" if status is Status.FAILED else None


def _status_of(error: BaseException) -> Status:
    if isinstance(error, SystemExit):  # its code may be anything, a list too
        code: object = error.code
        return Status.SUCCEEDED if code is None or (isinstance(code, int) and code == 0) else Status.FAILED
    return Status.CANCELED if all(map(_is_cancellation, _leaves(error))) else Status.FAILED


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, TimeoutError) and error.errno is None:
        return True
    return isinstance(error, (*_CANCELLATIONS, Canceled))


def _leaves(error: BaseException) -> list[BaseException]:
    leaves: list[BaseException] = []
    left = [error]
    while left:
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left += reversed(cast("BaseExceptionGroup[BaseException]", each).exceptions)
        else:
            leaves.append(each)
    return leaves


def _text_of(error: BaseException) -> str:
    name, text = type(error).__name__, _own_text(error)
    if isinstance(error, Canceled):
        return text or name
    return f"{name}: {text}" if text else name


def _own_text(error: BaseException) -> str:
    if isinstance(error, trio.Cancelled):  # its own text names tasks by their addresses
        source: object = getattr(error, "source", None)
        return source if isinstance(source, str) and source != "unknown" else ""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - somebody's __str__ must not cost the record its end
        return ""
