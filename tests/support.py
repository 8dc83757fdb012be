"""
What tests of managers share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timeline_trio import Manager


def assert_counters_add_up(manager: Manager) -> None:
    """
    Assert that every accepted update is accounted for.
    """
    counters = manager.statistics()
    accounted = counters.saved_updates + counters.superseded_updates + counters.pending_updates
    accounted += counters.rejected_updates + counters.dropped_updates
    assert counters.accepted_updates == accounted, counters
