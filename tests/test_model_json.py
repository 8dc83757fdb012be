"""
Tests of attributes as JSON text: exact, canonical, and refused where JSON cannot hold them.
"""

from __future__ import annotations

import enum
import json
from collections import ChainMap
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from timeline_trio._model._json import canonical_object, contains_object, decode_json, merge_objects
from timeline_trio.model import InvalidAttribute, InvalidValue, decode_attributes, encode_attributes

from . import strategies

if TYPE_CHECKING:
    from collections.abc import Mapping


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@given(strategies.attributes)
def test_attributes_come_back_and_their_text_is_canonical(attributes: dict[str, object]) -> None:
    text = encode_attributes(attributes)
    decoded = decode_attributes(text)
    assert encode_attributes(decoded) == text
    assert encode_attributes(dict(reversed(attributes.items()))) == text
    assert decoded.keys() == attributes.keys()
    if text:
        assert canonical_object(text, "x") == text
        json.loads(text)


@given(strategies.attributes, strategies.attributes)
def test_merged_attributes_contain_what_was_laid_over(under: dict[str, object], over: dict[str, object]) -> None:
    merged = merge_objects(encode_attributes(under), encode_attributes(over))
    assert merged == encode_attributes({**under, **over})
    assert contains_object(merged, encode_attributes(over))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**53 + 1, "9007199254740993"),
        (2**63 - 1, "9223372036854775807"),
        (2**64 - 1, "18446744073709551615"),
        (2**64 + 1, "18446744073709551617"),
        (-(10**30), "-1000000000000000000000000000000"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (Decimal("1.10"), "1.10"),
        (Decimal("1.1"), "1.1"),
        (Decimal("0.1000000000000000055511151231257827"), "0.1000000000000000055511151231257827"),
        (Decimal("1E+400"), "1E+400"),
        (True, "true"),
        (None, "null"),
        (Colour.RED, '"red"'),
        (Level.HIGH, "3"),
        ((1, [2, ()]), "[1,[2,[]]]"),
        (ChainMap[str, object]({"b": 1}, {"a": "\0"}), '{"a":"\\u0000","b":1}'),
        ("\u6570", '"\u6570"'),
    ],
)
def test_value_is_kept_digit_by_digit(value: object, text: str) -> None:
    encoded = encode_attributes({"a": value})
    assert encoded == f'{{"a":{text}}}'
    assert encode_attributes(decode_attributes(encoded)) == encoded


def test_no_attributes_are_no_text() -> None:
    assert encode_attributes(None) == encode_attributes({}) == canonical_object("{ }", "x") == ""
    assert decode_attributes("") == {}


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        Decimal("NaN"),
        Decimal("Infinity"),
        b"bytes",
        Fraction(1, 2),
        {1, 2},
        object(),
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        [{"deep": {"er": float("inf")}}],
        pytest.param(10**5000, id="an integer of 5001 digits"),
        nested(25),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidAttribute) as caught:
        encode_attributes({"good": 1, "the key": value})
    assert caught.value.key == "the key"
    assert caught.value.field == "attributes['the key']"


def test_bad_key_is_named_in_printable_form() -> None:
    with pytest.raises(InvalidAttribute) as caught:
        encode_attributes({"\ud800": 1})
    assert caught.value.key == "\\ud800"
    with pytest.raises(InvalidAttribute, match="names that are text"):
        encode_attributes({1: 2})  # type: ignore[dict-item]


def test_subclass_of_text_is_a_key_like_any_other() -> None:
    assert encode_attributes({Colour.RED: 1}) == '{"red":1}'


def test_other_mappings_are_taken_too() -> None:
    assert encode_attributes(ChainMap({"b": 1}, {"a": 2})) == '{"a":2,"b":1}'


def test_only_a_mapping_has_attributes() -> None:
    with pytest.raises(InvalidValue, match="mapping"):
        encode_attributes([("a", 1)])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, [], "", False])
def test_what_is_empty_and_no_mapping_is_refused_too(value: Any) -> None:
    with pytest.raises(InvalidValue, match="expected a mapping"):
        encode_attributes(value)


def test_nesting_up_to_the_limit_is_accepted() -> None:
    text = encode_attributes({"a": nested(24)})
    assert canonical_object(text, "x", depth=24) == text
    with pytest.raises(InvalidAttribute, match="nested"):
        canonical_object('{"a":' + "[" * 25 + "]" * 25 + "}", "x", depth=24)


def test_later_changes_of_the_caller_are_not_seen() -> None:
    inner = [1]
    text = encode_attributes({"a": inner})
    inner.append(2)
    assert text == '{"a":[1]}'


@pytest.mark.parametrize("text", ["", "[]", "1", "{", '{"a":01}', '{"a":NaN}', '{"a":1e9999999999999999999}'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        canonical_object(text, "the field")
    assert caught.value.field == "the field"


def test_nesting_beyond_the_stack_is_an_ordinary_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_json("[" * 200_000 + "]" * 200_000)


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        ({"a": 1}, {}, True),
        ({}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"b": 2}, True),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": {"b": 1}}, {"a": {}}, False),
    ],
)
def test_object_contains_members_with_the_same_value(
    text: Mapping[str, object],
    part: Mapping[str, object],
    expected: bool,  # noqa: FBT001
) -> None:
    assert contains_object(encode_attributes(text), encode_attributes(part)) is expected
