"""
What is said at the end of the play.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from timeline_trio.demo._drawing import draw_timeline
from timeline_trio.demo._views import choose_style, is_live
from timeline_trio.model import Status

if TYPE_CHECKING:
    from timeline_trio.demo._observer import Played


def report(played: Played, url: str) -> str:
    """
    Return the summary and what happened; before it the drawing, unless a terminal shows it already.
    """
    final, statistics = played.final, played.statistics
    drawing = []
    if not is_live(sys.stdout):
        width = shutil.get_terminal_size((100, 24)).columns
        drawing = ["", *draw_timeline(final, final.captured_at, width, choose_style(sys.stdout))]
    lines = [*drawing, "", final.summary(), "", "what happened:"]
    lines += [
        f"  {stage.actor.name} was killed during {stage.name!r}; the stage is still running in the timeline"
        for stage in final.running_stages()
        if stage.actor.name == played.killed
    ]
    lines += [
        f"  {stage.actor.name} failed at {stage.name!r}" for stage in final.stages if stage.status is Status.FAILED
    ]
    lost = statistics.rejected_updates + statistics.dropped_updates
    found = played.flushed - len(played.missing)
    lines += [
        f"  {found} of {played.flushed} stages that the workers had saved are in the final read",
        f"  the observer recorded {statistics.accepted_updates} updates: {statistics.saved_updates} saved, {lost} lost",
        f"  operation: {final.opid}",
        f"  store: {without_password(url)}",
    ]
    return "\n".join(lines)


def without_password(url: str) -> str:
    """
    Return a URL that may be shown.
    """
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@", 1) if password else url
