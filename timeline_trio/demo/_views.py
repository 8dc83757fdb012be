"""
How a growing timeline is shown: redrawn in place on a terminal, else a line for each thing that happened.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from typing import TYPE_CHECKING, Protocol, TextIO, final

from timeline_trio.demo._drawing import Style, draw_timeline
from timeline_trio.model import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timeline_trio import Snapshot
    from timeline_trio.model import Stage


class View(Protocol):
    """
    Shows an operation.
    """

    @property
    def interval(self) -> float:
        """
        After how many seconds it wants to be refreshed, again and again.
        """
        ...

    def show(self, snapshot: Snapshot) -> None:
        """
        Show what is known now.
        """
        ...

    def refresh(self) -> None:
        """
        Show that time has passed.
        """
        ...


@final
class Silent:
    """
    Shows nothing.
    """

    interval = math.inf

    def show(self, snapshot: Snapshot) -> None:
        """
        Do nothing.
        """

    def refresh(self) -> None:
        """
        Do nothing.
        """


@final
class Lines:
    """
    Writes a line for each thing that happened, for pipes and files.
    """

    interval = math.inf

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._seen: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """
        Write what has happened since the last time.
        """
        first = snapshot.started_at or snapshot.captured_at
        events = [event for stage in snapshot.stages for event in self._of_stage(stage)]
        for at, text in sorted([*events, *self._of_operation(snapshot)]):
            self._output.write(f"{(at - first) / 1e9:+7.2f}s  {text}\n")
        self._output.flush()
        self._seen = snapshot

    def refresh(self) -> None:
        """
        Do nothing: time by itself is no event.
        """

    def _of_stage(self, stage: Stage) -> Iterator[tuple[int, str]]:
        known = self._seen.stage(*stage.key) if self._seen else None
        subject = f"{stage.actor.name:6} {stage.name}"
        if known is None:
            yield stage.started_at, f"{subject}: begun"
        if stage.finished_at is not None and (known is None or known.finished_at is None):
            yield stage.finished_at, _end(subject, stage.status, stage.duration(stage.finished_at), stage.error)

    def _of_operation(self, snapshot: Snapshot) -> Iterator[tuple[int, str]]:
        known = self._seen
        if known is None and snapshot.started_at is not None:
            yield snapshot.started_at, f"{snapshot.name}: begun, as {snapshot.opid}"
        if snapshot.finished_at is not None and (known is None or known.finished_at is None):
            yield snapshot.finished_at, _end(snapshot.name, snapshot.status, snapshot.duration, snapshot.error)


def _end(subject: str, status: str, duration: int, error: str) -> str:
    text = f"{subject}: {status} in {format_duration(duration)}"
    return f"{text}: {error}" if error else text


@final
class Terminal:
    """
    Draws in place. Nothing of the terminal's state is changed for longer than one write, so nothing is to restore.
    """

    interval = 0.1

    def __init__(self, output: TextIO, style: Style) -> None:
        self._output = output
        self._style = style
        self._snapshot: Snapshot | None = None
        self._height = 0

    def show(self, snapshot: Snapshot) -> None:
        """
        Draw the operation over what was drawn before.
        """
        self._snapshot = snapshot
        self.refresh()

    def refresh(self) -> None:
        """
        Draw again, up to now.
        """
        if self._snapshot is None:
            return
        size = shutil.get_terminal_size()
        lines = draw_timeline(self._snapshot, time.time_ns(), size.columns, self._style)
        # What does not fit would scroll away and could not be drawn over: the header stays, and the latest rows.
        lines = lines[:1] + lines[1:][-max(size.lines - 2, 1) :]
        up = f"\x1b[{self._height}F" if self._height else ""
        self._output.write(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._output.flush()
        self._height = len(lines)


def choose_style(output: TextIO) -> Style:
    """
    Return what an output can show.
    """
    try:
        "▶✔✖■█▒▚░".encode(output.encoding)
    except UnicodeEncodeError:
        unicode = False
    else:
        unicode = True
    return Style(unicode=unicode, colour=is_live(output) and not os.environ.get("NO_COLOR"))


def is_live(output: TextIO) -> bool:
    """
    Tell whether an output is a terminal that can be drawn on.
    """
    return output.isatty() and os.environ.get("TERM") != "dumb"


def choose_view(output: TextIO) -> View:
    """
    Return the view that suits an output.
    """
    return Terminal(output, choose_style(output)) if is_live(output) else Lines(output)
