"""
The subjects that can be measured; each is a module with a `measure` of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import record
import shared_stores

if TYPE_CHECKING:
    from harness import Report


class Measure(Protocol):
    """
    Measures one subject.
    """

    def __call__(self, *, quick: bool) -> Report:
        """
        Return what was found; `quick` asks for an answer within a minute.
        """
        ...


class Subject(NamedTuple):
    """
    One subject.
    """

    about: str
    measure: Measure


SUBJECTS = {
    "record": Subject("what it costs to record", record.measure),
    "stores": Subject("what the stores do beside their drivers and their servers' load tools", shared_stores.measure),
}
