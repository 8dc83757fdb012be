"""
What became of recorded facts, in numbers that only grow.

At any moment: accepted = saved + superseded + rejected + dropped + pending. The first is not counted, but reckoned from
the others.
"""

from __future__ import annotations

from typing import final


@final
class Counters:
    """
    Counts facts, here called updates: each is one stage state or one boundary.

    Attributes:
        saved: acknowledged by the Store.
        superseded: replaced by a later fact of the same key before they were saved.
        rejected: refused by the Store for good.
        dropped: lost after they were accepted: a final save failed, or the manager closed too early.
        refused: not taken in: over a bound, or after the manager closed.
    """

    __slots__ = ("dropped", "refused", "rejected", "saved", "superseded")

    def __init__(self) -> None:
        self.saved: int = 0
        self.superseded: int = 0
        self.rejected: int = 0
        self.dropped: int = 0
        self.refused: int = 0

    def accepted(self, pending: int) -> int:
        """
        Return how many were taken in, of which so many are pending.
        """
        return self.saved + self.superseded + self.rejected + self.dropped + pending
