"""
Tests of facts as text: they come back as they were, and join as they would merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from timeline_trio._model._facts import decode_facts, encode_facts, join_facts
from timeline_trio.model import Document, InvalidValue, Update, merge

from .strategies import documents

if TYPE_CHECKING:
    from collections.abc import Sequence


def facts_of(document: Document) -> Update:
    return Update(start=document.start, finish=document.finish, stages=tuple(document.stages.values()))


def lay_over(document: Document, updates: Sequence[Update]) -> Document:
    for update in updates:
        document, _ = merge(document, update)
    return document


@given(documents)
def test_facts_come_back_as_they_were(document: Document) -> None:
    facts = facts_of(document)
    assert decode_facts(encode_facts(facts), document.opid) == facts


@given(documents, documents, documents)
def test_joined_facts_say_what_they_say_one_after_the_other(first: Document, second: Document, third: Document) -> None:
    updates = [facts_of(second), facts_of(third)]
    texts = [encode_facts(update) for update in updates]
    joined = decode_facts(join_facts(texts), first.opid)
    assert lay_over(first, [joined]) == lay_over(first, updates)
    assert join_facts([join_facts(texts)]) == join_facts(texts)


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("", "facts"),
        ("[]", "facts"),
        ('{"a":', "facts"),
        ('{"start":1}', "start"),
        ('{"start":{"operation":"x"}}', "started_at"),
        ('{"finish":{"finished_at":"2026-01-01T00:00:00Z","status":"running"}}', "status"),
        ('{"[\\"s\\",\\"\\"]":{"id":"s"}}', "stage"),
    ],
)
def test_damaged_facts_are_refused_whole_and_named(text: str, slot: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_facts(text, "op")
    assert caught.value.field == slot
