"""
Rules for text: what may be an opid, and what may be text at all.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final
from unicodedata import category

from .._errors import InvalidValue

MAX_OPID_LENGTH = 191  # the longest utf8mb4 key column that every MySQL row format can index

# Controls, what splits lines, and what turns the direction of writing: with these a text could pose as other lines.
_UNRULY: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def check_text(value: object, field: str) -> None:
    """
    Refuse what is not text that every database and JSON can hold.

    Raises:
        InvalidValue: not a `str`, or it holds a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidValue(field, f"expected text, got {type(value).__name__}")
    if type(value) is not str and not isinstance(value, Enum):  # JSON takes no other subclass
        raise InvalidValue(field, f"expected plain text, got {type(value).__name__}; give str() of it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue(field, f"a lone surrogate at position {error.start} is not text") from None


def check_opid(opid: object, field: str = "opid") -> None:
    """
    Refuse what databases would disagree on: a silent merge of two operations is worse than an error.

    Raises:
        InvalidValue: empty, over 191 characters, a control character, or a space at either end.
    """
    check_text(opid, field)
    assert isinstance(opid, str)
    if not 1 <= len(opid) <= MAX_OPID_LENGTH:
        raise InvalidValue(field, f"expected 1 to {MAX_OPID_LENGTH} characters, got {len(opid)}")
    if opid != opid.strip():
        raise InvalidValue(field, "expected no space at its start or end")
    if not opid.isprintable() and any(category(character) == "Cc" for character in opid):
        raise InvalidValue(field, "expected no control characters")


def printable_text(text: str, limit: int) -> str:
    """
    Make text that any store takes out of text that another program wrote: cut to length, surrogates escaped.
    """
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def one_line(text: str) -> str:
    """
    Show text within one line of a terminal: line breaks and control characters escaped as in a Python literal.
    """
    if text.isprintable():
        return text
    return _UNRULY.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
