"""
How the Store does, as this manager sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class Health:
    """
    Remembers successes and failures, in wall time.

    Args:
        clock: returns nanoseconds since the epoch.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.changing_merges: int = 0
        self.hints_dropped: int = 0
        self.changes_heard: int = 0
        self.listening: bool = False
        self.last_save_at: int | None = None
        self.last_load_at: int | None = None
        self._saves_failing_since: int | None = None
        self._loads_failing_since: int | None = None

    @property
    def failing_since(self) -> int | None:
        """
        Since when saves or loads have failed, whichever began earlier; None while both succeed.
        """
        return min(
            (since for since in (self._saves_failing_since, self._loads_failing_since) if since is not None),
            default=None,
        )

    def saved(self, *, changed: bool) -> None:
        """
        Note a successful save.
        """
        self.changing_merges += changed
        self.last_save_at = self._clock()
        self._saves_failing_since = None

    def loaded(self) -> None:
        """
        Note a successful load.
        """
        self.last_load_at = self._clock()
        self._loads_failing_since = None

    def save_failed(self) -> None:
        """
        Note that the Store did not save.
        """
        if self._saves_failing_since is None:
            self._saves_failing_since = self._clock()

    def load_failed(self) -> None:
        """
        Note that the Store did not answer a read.
        """
        if self._loads_failing_since is None:
            self._loads_failing_since = self._clock()
