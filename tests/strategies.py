"""
Hypothesis strategies for the values of a timeline, awkward ones included.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import msgspec

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

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EARLIEST = -62_135_596_800 * 10**9
LATEST = 253_402_300_800 * 10**9 - 1
TERMINAL = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)

_AWKWARD = ("\0", " ", '"', "\\", "%s", "'; --", "e\u0301", "\xe9", "\u2028", "\N{GRINNING FACE}", "\U0010ffff")


def texts(*, min_size: int = 0) -> SearchStrategy[str]:
    """
    Return text that JSON can hold.
    """
    return st.text(min_size=min_size, max_size=8) | st.sampled_from(_AWKWARD)


def opids() -> SearchStrategy[str]:
    """
    Return ids that an operation may have.
    """
    alphabet = st.characters(exclude_categories=("Cc", "Cs"))
    return st.text(alphabet, min_size=1, max_size=191).filter(lambda opid: opid == opid.strip())


def times() -> SearchStrategy[int]:
    """
    Return instants of the years 1 to 9999, in nanoseconds.
    """
    return st.integers(EARLIEST + 1, LATEST) | st.integers(0, 5).map(lambda second: second * 10**9)


def numbers() -> SearchStrategy[int | float | Decimal]:
    """
    Return numbers that JSON can hold, beyond those of 64 bits too.
    """
    decimals = st.builds(
        lambda digits, places: Decimal(digits).scaleb(-places), st.integers(), st.integers(-40, 40)
    )
    return st.integers() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False) | decimals


def json_values() -> SearchStrategy[object]:
    """
    Return values that JSON can hold.
    """
    return st.recursive(
        st.none() | st.booleans() | numbers() | texts(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
        max_leaves=6,
    )


def attributes() -> SearchStrategy[dict[str, object]]:
    """
    Return attributes as a caller gives them.
    """
    return st.dictionaries(texts(), json_values(), max_size=3)


def attribute_texts() -> SearchStrategy[str]:
    """
    Return attributes as records hold them.
    """
    return st.just("") | attributes().map(encode_attributes)


def actors() -> SearchStrategy[Actor]:
    """
    Return actors, often equal or nearly so.
    """
    few = st.sampled_from(("", "1", "2"))
    return st.builds(Actor, few, few) | st.builds(Actor, texts(), texts())


def extras() -> SearchStrategy[str]:
    """
    Return members that a newer version wrote.
    """
    names = texts().map(lambda name: f"x-{name}")
    return st.just("") | st.dictionaries(names, json_values(), max_size=2).map(encode_attributes)


@st.composite
def stages(draw: st.DrawFn, *, ids: SearchStrategy[str] | None = None) -> Stage:
    """
    Return a stage in any state.
    """
    stage_id = draw(ids or st.sampled_from(("a", "b", "c", "d")) | texts(min_size=1))
    finished_at = draw(st.none() | times())
    status = Status.RUNNING if finished_at is None else draw(st.sampled_from(TERMINAL))
    return Stage(
        id=stage_id,
        name=draw(texts(min_size=1)),
        started_at=draw(times()),
        finished_at=finished_at,
        status=status,
        parent_id=draw(texts().filter(lambda parent: parent != stage_id)),
        actor=draw(actors()),
        error=draw(texts()),
        code=draw(texts()),
        elapsed_ns=draw(st.none() | st.integers(0, 2**63 - 1)),
        attributes_json=draw(attribute_texts()),
        extra_json=draw(extras()),
    )


def starts(*, live: SearchStrategy[bool] | None = None) -> SearchStrategy[Start]:
    """
    Return an operation's start.
    """
    return st.builds(
        Start, name=texts(min_size=1), at=times(), attributes_json=attribute_texts(), live=live or st.booleans()
    )


def finishes(*, live: SearchStrategy[bool] | None = None) -> SearchStrategy[Finish]:
    """
    Return an operation's finish.
    """
    return st.builds(
        Finish,
        at=times().filter(lambda at: at != EARLIEST),
        status=st.sampled_from(TERMINAL),
        error=texts(),
        live=live or st.booleans(),
    )


@st.composite
def updates(draw: st.DrawFn) -> Update:
    """
    Return a valid update.
    """
    by_key = {stage.key: stage for stage in draw(st.lists(stages(), max_size=4))}
    return Update(
        start=draw(st.none() | starts()), finish=draw(st.none() | finishes()), stages=tuple(by_key.values())
    )


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """
    Return a document as merges make it.
    """
    document = Document(opid=draw(st.just("op") | opids()), extra_json=draw(extras()))
    for update in draw(st.lists(updates(), max_size=3)):
        own = {stage.id for stage in update.stages}
        if document.root_id not in own:
            document, _ = merge(document, update)
    return document


def copy(document: Document) -> Document:
    """
    Return an equal document that shares no mapping with it.
    """
    return msgspec.structs.replace(document, stages=dict(document.stages))
