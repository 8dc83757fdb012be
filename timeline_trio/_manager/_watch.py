"""
Snapshots of one operation as its view changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from ._signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._cache._entry import Entry
    from .._model._snapshot import Snapshot

Until = Literal["finished", "settled"]


@final
class Snapshots:
    """
    An asynchronous iterator over one operation's snapshots. Made by `watch`.

    Each step waits for a change and returns the newest view: who is slow skips, and nothing queues up. It ends when
    the manager closes, or with the snapshot that `until` asks for.
    """

    def __init__(self, entry: Entry, capture: Callable[[Entry], Snapshot], until: Until | None) -> None:
        self._entry = entry
        self._capture = capture
        self._until = until
        self._signal = Signal()
        self._signal.notify()  # what is known already is the first change
        self._closed = False
        self._complete = False

    def notify(self) -> None:
        """
        Note a change of the view. From any thread.
        """
        self._signal.notify()

    def close(self) -> None:
        """
        Let the iteration end, once the last change was seen. On the Trio thread.
        """
        self._closed = True
        self._signal.notify()

    def __aiter__(self) -> Snapshots:
        return self

    async def __anext__(self) -> Snapshot:
        """
        Wait for the next change. Cancelled, it has missed nothing.
        """
        while not self._complete:
            await self._signal.wait()
            if self._closed:
                self._complete = True
            if not self._entry.is_empty:
                snapshot = self._capture(self._entry)
                self._complete = self._complete or self._is_last(snapshot)
                return snapshot
        raise StopAsyncIteration

    def _is_last(self, snapshot: Snapshot) -> bool:
        if self._until is None or snapshot.finished_at is None:
            return False
        return self._until == "finished" or not snapshot.running_stages()
