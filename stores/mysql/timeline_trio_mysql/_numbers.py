"""
Which numbers MySQL's binary JSON keeps: integers of 64 bits, and what a double holds.
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import isfinite
from typing import Final

# Text is matched first, so that no digits are looked for inside of it.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(-?\d+)((?:\.\d+)?(?:[eE][+-]?\d+)?)', re.DOTALL)
_SMALLEST_INTEGER: Final = -(2**63)
_GREATEST_INTEGER: Final = 2**64 - 1
_SAFE_DIGITS: Final = 18  # fewer than any 64-bit limit has


def find_bent_number(payload: str) -> str:
    """
    Tell of the first number of a JSON text that a column of MySQL's type JSON would change; "" if there is none.

    A number that only comes back in other words, 1.10 as 1.1, is not changed.
    """
    for match in _TOKEN.finditer(payload):
        digits, rest = match.groups()
        if rest and not _keeps_fraction(match.group()):
            return "a decimal that no double equals"
        if digits and not rest and not _keeps_integer(digits):
            return "an integer beyond 64 bits"
    return ""


def _keeps_integer(digits: str) -> bool:
    return len(digits) <= _SAFE_DIGITS or _SMALLEST_INTEGER <= Decimal(digits) <= _GREATEST_INTEGER


def _keeps_fraction(token: str) -> bool:
    near = float(token)
    return isfinite(near) and Decimal(repr(near)) == Decimal(token)
