"""
How changes are told: a notification for each operation, after the commit, in a transaction of its own.

PostgreSQL lets transactions that notify commit one after the other, each with its wait for the disk, so that to notify
in the merge's own transaction would cost most of what several writers gain by committing together. A transaction
that only notifies waits for no disk. And if it fails, the merge is done nevertheless: a change is a hint.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

import trio

from timeline_trio.store import Change, Revision, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

_NOTIFY: Final = b"SELECT pg_catalog.pg_notify(%s, change) FROM pg_catalog.unnest(%s::text[]) AS change"
_MOST: Final = 1024


def tell(connection: Connection, channel: str, changes: Sequence[Change]) -> None:
    """
    Tell of what was committed.

    Raises:
        psycopg.Error: nobody was told.
    """
    connection.execute(_NOTIFY, (channel, [_encode(change) for change in changes]))


def decode(payload: bytes) -> Change | None:
    """
    Return the change that was told, or nothing if the notification was somebody else's.
    """
    try:
        incarnation, version, opid = payload.decode().split(" ", 2)
        return Change(opid, Revision(int(incarnation), int(version)))
    except ValueError:
        return None


def _encode(change: Change) -> str:
    return f"{change.revision.incarnation} {change.revision.version} {change.opid}"


@final
class Feed:
    """
    The changes that one reader has still to see: the latest of each operation, the oldest dropped if he is slow.

    Args:
        name: what messages call the database.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changes: OrderedDict[str, Change] = OrderedDict()
        self._moved = trio.Event()
        self._failure: Exception | None = None
        self._ended = False

    def offer(self, change: Change) -> None:
        """
        Add a change.
        """
        self._changes[change.opid] = change
        if len(self._changes) > _MOST:
            self._changes.popitem(last=False)
        self._wake()

    def fail(self, failure: Exception) -> None:
        """
        Tell the reader, once he has seen what there is, that nothing more will come.
        """
        self._failure = failure
        self._wake()

    def end(self) -> None:
        """
        Tell the reader that the block is over.
        """
        self._ended = True
        self._wake()

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> Change:
        """
        Return the next change. Cancelled, it loses none.

        Raises:
            StoreUnavailable: the connection was lost, and nothing more is told.
        """
        await trio.lowlevel.checkpoint()
        while not self._ended:
            if self._changes:
                _, change = self._changes.popitem(last=False)
                return change
            if self._failure is not None:
                raise StoreUnavailable("", f"{self._name} tells of no more changes") from self._failure
            await self._moved.wait()
        raise StopAsyncIteration

    def _wake(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
