"""
The statements of the SQLite store, sent by the standard library in plain threads, on a connection a worker.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from merge_rows import OVERLAP, RowWriter, now_us

from timeline_trio_sqlite._dialect import _HEAD, _STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

_BUSY_TIMEOUT = 5.0  # seconds
_SELECT = f"SELECT {_HEAD}, folded, payload FROM timelines WHERE id IN (?)"  # noqa: S608 - the store's own parts
_REPLACE = f"UPDATE timelines SET payload = ?, {_STEP} AND folded IS NULL"  # noqa: S608


class _SQLiteWriter(RowWriter[int]):
    def __init__(self, connection: sqlite3.Connection, opid: str, *, reads: bool) -> None:
        super().__init__(opid, reads=reads)
        self._connection = connection
        self._read()

    def merge(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        if self.reads:
            self._read()
        payload, now = self.next_payload(), now_us()
        arguments = (payload, now, now + OVERLAP, now, self.opid, self.created_at, self.version)
        self.note(self._connection.execute(_REPLACE, arguments).rowcount)
        self._connection.execute("COMMIT")

    def _read(self) -> None:
        ((_, version, created_at, _, _, payload),) = self._connection.execute(_SELECT, (self.opid,))
        self.load(version, created_at, payload)


@contextmanager
def open_sqlite3(url: str, opids: Sequence[str], *, reads: bool) -> Generator[list[Callable[[], None]]]:
    """
    Connect a worker for each operation, and yield what each does for one merge, blocking.
    """
    with ExitStack() as stack:
        steps: list[Callable[[], None]] = []
        for opid in opids:
            connection = sqlite3.connect(
                url.removeprefix("sqlite:///"), timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
            )
            stack.enter_context(closing(connection))
            connection.execute("PRAGMA synchronous = normal")
            steps.append(_SQLiteWriter(connection, opid, reads=reads).merge)
        yield steps
