"""
What a manager tells about itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """
    Counters and health of a manager at one moment.

    Counters only grow, and at any moment accepted = saved + superseded + rejected + dropped + pending.

    Attributes:
        accepted_updates: updates taken in; each is one stage state or one boundary.
        saved_updates: acknowledged by the Store.
        superseded_updates: replaced by a later update of the same stage or boundary before they were saved.
        rejected_updates: refused by the Store for good.
        dropped_updates: lost after they were accepted, since a final save failed or the manager closed too early.
        pending_updates: neither saved nor lost yet.
        refused_updates: not taken in: a bound was reached, or the manager had closed.
        changing_merges: saves that changed a row, each by one version.
        cached_timelines: operations in memory.
        pending_timelines: operations with pending updates.
        oldest_pending: seconds for which the longest waiting update has waited; 0.0 if none is.
        last_save_at: of the last successful save, in nanoseconds since the epoch; None if there was none.
        last_load_at: of the last successful load, likewise.
        failing_since: of the first failure since a save last succeeded, or a load, whichever is earlier, likewise;
            None while both succeed.
        hints_dropped: wake-ups that found their queue full; the periods cover for them.
        listening: whether the Store tells of changes as they are committed; otherwise they are found by polling.
        changes_heard: how many it told of so far, our own included.
    """

    accepted_updates: int
    saved_updates: int
    superseded_updates: int
    rejected_updates: int
    dropped_updates: int
    pending_updates: int
    refused_updates: int
    changing_merges: int
    cached_timelines: int
    pending_timelines: int
    oldest_pending: float
    last_save_at: int | None
    last_load_at: int | None
    failing_since: int | None
    hints_dropped: int
    listening: bool
    changes_heard: int
