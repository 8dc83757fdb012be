"""
Hypothesis strategies for the values of a timeline, awkward ones included.

They are made once: to make a strategy costs more than to draw from it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import hypothesis.strategies as st

from timeline_trio.model import (
    Actor,
    Document,
    Finish,
    Stage,
    Start,
    Status,
    Update,
    encode_attributes,
    merge,
)

EARLIEST: Final = -62_135_596_800 * 10**9
LATEST: Final = 253_402_300_800 * 10**9 - 1
TERMINAL: Final = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)

_AWKWARD: Final = ("", "\0", " ", '"', "\\", "%s", "'; --", "e\u0301", "\xe9", "\u2028", "\N{GRINNING FACE}")

texts: Final = st.sampled_from(_AWKWARD) | st.text(max_size=6)
"""Text that JSON can hold."""

names: Final = texts.map(lambda text: text or "work")
"""Text that is not empty."""

opids: Final = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=191).filter(
    lambda opid: opid == opid.strip()
)
"""What an operation may be called."""

times: Final = st.integers(EARLIEST + 1, LATEST) | st.integers(0, 5).map(lambda second: second * 10**9)
"""Instants in nanoseconds; the earliest of all is how older writers spelled "none"."""

numbers: Final = st.one_of(
    st.integers(),
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(lambda digits, places: Decimal(digits).scaleb(places), st.integers(), st.integers(-40, 40)),
)
"""Numbers that JSON can hold, also beyond 64 bits."""

json_values: Final = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
"""Values that JSON can hold."""

attributes: Final = st.dictionaries(texts, json_values, max_size=3)
"""Attributes as a caller gives them."""

attribute_texts: Final = st.just("") | st.dictionaries(texts, numbers | texts, max_size=2).map(encode_attributes)
"""Attributes as records hold them."""

extras: Final = st.sampled_from(("", "", '{"x-new":{"a":[1,1.0,1.10]}}', '{"\\u0000":null,"x":1}'))
"""Members that a newer version wrote."""

actors: Final = st.builds(Actor, st.sampled_from(("", "1", "2")), st.sampled_from(("", "1", "\xe9"))) | st.builds(
    Actor, texts, texts
)
"""Actors, often equal or nearly so."""


@st.composite
def _stages(draw: st.DrawFn) -> Stage:
    stage_id = draw(_stage_ids)
    finished_at = draw(_optional_times)
    parent_id = draw(texts)
    return Stage(
        id=stage_id,
        name=draw(names),
        started_at=draw(times),
        finished_at=finished_at,
        status=Status.RUNNING if finished_at is None else draw(_results),
        parent_id="" if parent_id == stage_id else parent_id,
        actor=draw(actors),
        error=draw(texts),
        code=draw(texts),
        elapsed_ns=draw(_optional_lengths),
        attributes_json=draw(attribute_texts),
        extra_json=draw(extras),
    )


_stage_ids: Final = st.sampled_from("abcd") | names
_results: Final = st.sampled_from(TERMINAL)
_optional_times: Final = st.none() | times
_optional_lengths: Final = st.none() | st.integers(0, 2**63 - 1)

stages: Final = _stages()
"""Stages in any state."""

starts: Final = st.builds(Start, name=names, at=times, attributes_json=attribute_texts, live=st.booleans())
"""Starts of operations."""

finishes: Final = st.builds(Finish, at=times, status=_results, error=texts, live=st.booleans())
"""Finishes of operations."""

updates: Final = st.builds(
    lambda start, finish, items: Update(start=start, finish=finish, stages=tuple(items)),
    st.none() | starts,
    st.none() | finishes,
    st.lists(stages, max_size=3, unique_by=lambda stage: stage.key),
)
"""Valid updates."""


def _merged(opid: str, extra_json: str, accepted: list[Update]) -> Document:
    document = Document(opid=opid, extra_json=extra_json)
    for update in accepted:
        document, _ = merge(document, update)
    return document


documents: Final = st.builds(_merged, st.just("op") | opids, extras, st.lists(updates, max_size=2))
"""Documents as merges make them."""
