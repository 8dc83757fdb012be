"""
A timeline as lines of text: a bar for each stage, below its parent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from timeline_trio.model import Status, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from timeline_trio import Snapshot, StageNode
    from timeline_trio.model import Stage

_COLOURS: Final = {Status.RUNNING: "36", Status.SUCCEEDED: "32", Status.FAILED: "31", Status.CANCELED: "33"}
# Of a status: the mark in front of the name, and what the bar is made of.
_UNICODE: Final = {
    Status.RUNNING: ("▶", "▒"),
    Status.SUCCEEDED: ("✔", "█"),
    Status.FAILED: ("✖", "▚"),
    Status.CANCELED: ("■", "░"),
}
_ASCII: Final = {
    Status.RUNNING: (">", "-"),
    Status.SUCCEEDED: ("+", "="),
    Status.FAILED: ("x", "#"),
    Status.CANCELED: ("/", ":"),
}
_DURATION_WIDTH: Final = 7
_NARROWEST_BAR: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """
    What may be drawn with.

    Attributes:
        unicode: whether the output can show more than ASCII.
        colour: whether it is a terminal that should show colours.
    """

    unicode: bool
    colour: bool

    def paint(self, text: str, status: Status) -> str:
        """
        Return the text in the colour of a status.
        """
        return f"\x1b[{_COLOURS[status]}m{text}\x1b[0m" if self.colour else text


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    first: int
    last: int
    cells: int

    def bar(self, stage: Stage, fill: str) -> str:
        per_cell = max(self.last - self.first, 1) / self.cells
        finished_at = self.last if stage.finished_at is None else stage.finished_at
        # Another host's clock may be off: what lies outside is drawn at the edge.
        begin = min(max(int((stage.started_at - self.first) / per_cell), 0), self.cells - 1)
        end = min(max(math.ceil((finished_at - self.first) / per_cell), begin + 1), self.cells)
        return " " * begin + fill * (end - begin) + " " * (self.cells - end)


def draw_timeline(snapshot: Snapshot, now: int, width: int, style: Style) -> list[str]:
    """
    Draw an operation.

    Args:
        snapshot: the operation.
        now: up to when running stages are drawn, in nanoseconds since the epoch.
        width: cells in a line; none of the lines is wider.
        style: what to draw with.
    """
    rows = list(_rows(snapshot.tree(), 0))
    marks = _UNICODE if style.unicode else _ASCII
    last = now if snapshot.finished_at is None else snapshot.finished_at
    hosts = max((len(stage.actor.name) for _, stage in rows), default=0)
    names = max((2 * depth + len(stage.name) for depth, stage in rows), default=0)
    cells = width - 2 - hosts - 1 - names - 1 - 1 - _DURATION_WIDTH
    first = min([stage.started_at for _, stage in rows] + [snapshot.started_at or last])
    scale = _Scale(first=first, last=last, cells=max(cells, _NARROWEST_BAR))
    lines = [_header(snapshot, last)[:width]]
    for depth, stage in rows:
        mark, fill = marks[stage.status]
        name = "  " * depth + stage.name
        duration = f"{format_duration(stage.duration(last)):>{_DURATION_WIDTH}}"
        label = f"{mark} {stage.actor.name:{hosts}} {name:{names}}"
        if cells < _NARROWEST_BAR:
            lines.append(style.paint(f"{label} {duration}"[:width], stage.status))
        else:
            lines.append(f"{style.paint(f'{label} {scale.bar(stage, fill)}', stage.status)} {duration}")
    return lines


def _rows(nodes: Iterable[StageNode], depth: int) -> Iterable[tuple[int, Stage]]:
    for node in nodes:
        yield depth, node.stage
        yield from _rows(node.children, depth + 1)


def _header(snapshot: Snapshot, last: int) -> str:
    status = "under way" if snapshot.finished_at is None else snapshot.status
    elapsed = last - (snapshot.started_at or last)
    running = len(snapshot.running_stages())
    stages = snapshot.stages
    failed = sum(stage.status is Status.FAILED for stage in stages)
    return (
        f"{snapshot.name}: {status}, {format_duration(elapsed)}; "
        f"{len(stages)} stages, {running} running, {failed} failed"
    )
