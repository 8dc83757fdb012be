"""
JSON values kept as text, so that integers of any size and long decimals keep their digits.

All text that leaves this module is canonical: members sorted, no spaces, one spelling for each number. So two
values are equal exactly if their texts are, and comparing facts is comparing fields. msgspec alone is used, since
it keeps large integers, where orjson turns them into floats; it writes NaN as null, so NaN is refused first.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import cast

import msgspec

from .._errors import InvalidAttribute, InvalidValue

JSONValue = str | int | float | Decimal | bool | None | list["JSONValue"] | dict[str, "JSONValue"]
"""A JSON value as Python reads it; a number that a float would bend is a `Decimal`."""

MAX_DEPTH = 24  # MariaDB's JSON check stops at 31 levels, of which a document takes a few around each value

_encoder = msgspec.json.Encoder(order="sorted", decimal_format="number")
encode_json = _encoder.encode


def _exact_number(token: str) -> int | float | Decimal:
    """
    Read a number: as a float where that writes the same digits again.

    1.10 and 1.1 are different digits, so the first stays a Decimal.
    """
    exact = Decimal(token)
    if token.lstrip("-").isdigit():
        return int(exact)
    near = float(token)
    if isfinite(near) and Decimal(encode_json(near).decode()).as_tuple() == exact.as_tuple():
        return near
    return exact


_decoder = msgspec.json.Decoder(float_hook=_exact_number)


def decode_json(text: str | bytes) -> JSONValue:
    """
    Read JSON with every digit kept.

    Raises:
        ValueError: not JSON, or a number beyond what Python reads (4,300 digits).
    """
    try:
        return cast("JSONValue", _decoder.decode(text))
    except (msgspec.MsgspecError, InvalidOperation, RecursionError) as error:
        raise ValueError(str(error)) from error


_PLAIN = frozenset((str, int, bool, type(None)))


def encode_attributes(attributes: Mapping[str, object] | None) -> str:
    """
    Encode attributes as one canonical JSON object, "" if there are none. Nothing of the argument is kept.

    Integers of any size, `float`, `Decimal`, text, booleans, None, lists, tuples and mappings of these are taken;
    their subclasses, such as enumerations of text, as the plain value.

    Raises:
        InvalidAttribute: naming the first key whose value JSON cannot hold exactly, or that nests beyond 24 levels.
        InvalidValue: not a mapping.
    """
    if attributes is None:
        return ""
    kind = type(attributes)
    if kind is not dict and not isinstance(attributes, Mapping):  # in this order: the second is slow
        raise InvalidValue("attributes", f"expected a mapping of names to values, got {type(attributes).__name__}")
    # A copy, so that what is checked is what is encoded, whatever another thread does meanwhile.
    plain = dict(attributes)
    for key, value in plain.items():
        if type(key) is not str or type(value) not in _PLAIN:
            plain = _plain_object(plain)
            break
    if not plain:
        return ""
    try:
        return encode_json(plain).decode()
    except (ValueError, OverflowError):  # a lone surrogate, or an integer of over 4,300 digits
        raise _name_culprit(plain) from None


def _plain_object(attributes: dict[str, object]) -> dict[str, object]:
    plain: dict[str, object] = {}
    for key, value in attributes.items():
        name = key if type(key) is str else _plain_key(key, repr(key))
        plain[name] = _plain_value(value, name, MAX_DEPTH)
    return plain


def _plain_key(key: object, attribute: str) -> str:
    if not isinstance(key, str):
        raise InvalidAttribute(attribute, f"expected names that are text, got {type(key).__name__}")
    return str.__str__(key)


def _plain_value(value: object, key: str, depth: int) -> object:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | Decimal):
        if not (isfinite(value) if isinstance(value, float) else value.is_finite()):
            raise InvalidAttribute(key, "NaN and infinities are no JSON numbers")
        return float(value) if isinstance(value, float) else _exact_number(str(value))
    if not isinstance(value, list | tuple | Mapping):
        raise InvalidAttribute(
            key, f"JSON cannot hold {type(value).__name__}; give text, a number, a list or a mapping"
        )
    if depth == 0:
        raise InvalidAttribute(key, f"nested beyond {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {_plain_key(k, key): _plain_value(v, key, depth - 1) for k, v in members.items()}
    return [_plain_value(item, key, depth - 1) for item in cast("list[object]", value)]


def _name_culprit(attributes: dict[str, object]) -> InvalidAttribute:
    for key, value in attributes.items():
        try:
            encode_json({key: value})
        except UnicodeEncodeError:
            return InvalidAttribute(ascii(key)[1:-1], "a lone surrogate is not text")
        except (ValueError, OverflowError):
            return InvalidAttribute(key, "an integer of more than 4300 digits")
    raise AssertionError("only together could they not be encoded")


def canonical_object(text: str | bytes, field: str, *, depth: int | None = None) -> str:
    """
    Bring the text of a JSON object into its canonical form; an empty object becomes "".

    Raises:
        InvalidValue: not the text of a JSON object.
        InvalidAttribute: with `depth`, a value that nests deeper.
    """
    try:
        value = decode_json(text)
        if not isinstance(value, dict):
            raise InvalidValue(field, "expected a JSON object")
        if depth is not None:
            for key, member in value.items():
                _plain_value(member, key, depth)
        return encode_json(value).decode() if value else ""
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(field, "expected the text of a JSON object") from error


def decode_object(text: str) -> dict[str, JSONValue]:
    """
    Read canonical text back into a new dict.
    """
    return cast("dict[str, JSONValue]", decode_json(text)) if text else {}


def merge_objects(text: str, over: str) -> str:
    """
    Lay the members of one canonical object over those of another.
    """
    if not text or not over:
        return over or text
    return encode_json(decode_object(text) | decode_object(over)).decode()


def contains_object(text: str, part: str) -> bool:
    """
    Tell whether the object has every member of `part`, with the same value.
    """
    if not part or text == part:
        return True
    return bool(text) and merge_objects(text, part) == text
