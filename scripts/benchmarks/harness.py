"""
What every subject needs: work measured in interleaved rounds, and a report of figures and of the bounds they must keep.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    Work = Callable[[], Awaitable[None]]

T = TypeVar("T")


class Case(NamedTuple):
    """
    One thing to measure.

    Attributes:
        name: what the report calls it.
        units: how many units of work one call does.
        prepare: sets one round up, outside of the measurement, and yields the call that is measured.
    """

    name: str
    units: int
    prepare: Callable[[], AbstractAsyncContextManager[Work]]


def in_turns(cases: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """
    Yield each case once a round, with the number of the round; each round begins with another case.

    A busy machine slows every case of a round alike, so figures of one call are worth comparing with each other, and
    with nothing else. There is a round 0 beside those asked for, to warm up.
    """
    for number in range(rounds + 1):
        first = number % len(cases)
        for case in (*cases[first:], *cases[:first]):
            yield number, case


async def interleave(
    cases: Sequence[Case], rounds: int, clock: Callable[[], int] = time.thread_time_ns
) -> dict[str, float]:
    """
    Measure all cases in turns, and return each one's median in seconds for one unit of work.

    Args:
        cases: what to measure.
        rounds: how often.
        clock: CPU time in nanoseconds: of this thread alone, unless work in other threads is part of the subject.
    """
    taken: dict[str, list[float]] = {case.name: [] for case in cases}
    for number, case in in_turns(cases, rounds):
        async with case.prepare() as work:
            gc.collect()  # nobody pays for the garbage of others; one's own is part of one's cost
            began = clock()
            await work()
            seconds = (clock() - began) / 1e9
        if number:
            taken[case.name].append(seconds / case.units)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


@dataclass(frozen=True)
class Table:
    """
    Figures: a row for each thing that was measured. What could not be measured is NaN.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]

    def __str__(self) -> str:
        lines = [(self.title, *self.columns)]
        lines += [(name, *map(_figure, values)) for name, values in self.rows.items()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) for cells in lines
        )


@dataclass(frozen=True)
class Bound:
    """
    A figure that must not be on the wrong side of `limit`. One that could not be measured keeps no bound.
    """

    name: str
    value: float
    limit: float
    kind: Literal["at most", "at least"] = "at most"

    @property
    def holds(self) -> bool:
        """
        Whether the bound is kept.
        """
        return self.value <= self.limit if self.kind == "at most" else self.value >= self.limit

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'FAILS'}  {self.name}: {self.value:.3f}, {self.kind} {self.limit}"


@dataclass(frozen=True)
class Report:
    """
    What one subject found.
    """

    tables: list[Table] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.tables), "\n".join(map(str, self.bounds))]).rstrip()

    def to_json(self) -> dict[str, object]:
        """
        Return the same for a machine.
        """
        return {
            "tables": {
                table.title: {
                    name: dict(zip(table.columns, map(_number, values), strict=True))
                    for name, values in table.rows.items()
                }
                for table in self.tables
            },
            "bounds": {
                bound.name: {
                    "value": _number(bound.value),
                    "kind": bound.kind,
                    "limit": bound.limit,
                    "holds": bound.holds,
                }
                for bound in self.bounds
            },
        }


def _number(value: float) -> float | None:
    return None if isnan(value) else value  # JSON has no NaN


def _figure(value: float) -> str:
    if isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three figures in either form
