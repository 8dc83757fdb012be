"""
Wakes a Trio task from any thread, and from signal handlers and destructors on its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import final

import trio


@final
class Signal:
    """
    Remembers that something changed, until the one task that waits for it has seen it.
    """

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()

    def notify(self) -> None:
        """
        Wake the waiting task, or let its next wait return at once.
        """
        # Never at once: this may be a signal handler, half-way through the event's own wait.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._set, idempotent=True)

    def _set(self) -> None:
        # Looks the event up only now: the one of the time of `notify` may have been waited for already.
        self._event.set()

    async def wait(self) -> None:
        """
        Wait until `notify` is called, or was called since the last wait. Cancelled, the notice stays.
        """
        await self._event.wait()
        self._event = trio.Event()
