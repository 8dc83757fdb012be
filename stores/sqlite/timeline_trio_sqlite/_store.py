"""
The store: rows in one SQLite file, one writer at a time and readers beside it.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, final

import msgspec
import trio

from timeline_trio import WrongProcess
from timeline_trio.store import RowHead, RowStore, Script, run_script

from ._bell import open_bell
from ._dialect import SQLiteDialect, decode_text
from ._failures import is_busy
from ._pool import CLOSE_TIMEOUT, Pool
from ._schema import check_collation, create_table, keeps_changes
from ._watcher import MOST_HEADS, Watcher

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from pathlib import Path

    from timeline_trio.store import Change

    from ._bell import Bell
    from ._options import Options

T = TypeVar("T")

_READERS: Final = 4
_BUSY_TIMEOUT: Final = 0.05  # seconds
_logger: Final = logging.getLogger("timeline_trio_sqlite")


class SQLiteStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a store is doing.

    Attributes:
        merges: how many merges were asked for.
        attempts: how many times these tried to write a row: again for each race that was lost.
        busy_retries: how many transactions were tried anew because another connection held a lock.
        idle_connections: connections that are open and not in use.
        running_threads: transactions that run, with those whose caller was cancelled and left.
        watchers: how many are told of changes now.
        asks: how many times these asked what has changed. It rests while nobody writes to the file.
    """

    merges: int
    attempts: int
    busy_retries: int
    idle_connections: int
    running_threads: int
    watchers: int
    asks: int


@final
class SQLiteStore(RowStore):
    """
    Keeps one row an operation in an SQLite file, which any number of processes of one machine share.

    Opened by `open_sqlite`, or by `timeline_trio.store.open_store` and a URL.
    """

    def __init__(
        self,
        options: Options,
        *,
        clock: Callable[[], int] = time.time_ns,
        overlap: float = 1.0,
        open_bell: Callable[[Path], Bell] = open_bell,
    ) -> None:
        super().__init__(clock=clock, overlap=overlap)
        self._options = options
        self._keeps_changes = False  # nobody has looked yet
        self._has_warned = False
        self._wall_clock = clock
        self._watch_overlap = int(overlap * 1e6)  # microseconds
        self._open_bell = open_bell
        self._watchers: set[Watcher] = set()
        self._asks = 0
        # Immediate: a transaction that reads first and asks for the write lock later fails at once, without
        # waiting.
        self._writer = Pool(options.path, self._connect_writer, begin="BEGIN IMMEDIATE", size=1)
        self._readers = Pool(options.path, self._connect, begin="BEGIN", size=_READERS)

    def __repr__(self) -> str:
        state = "closed" if self._writer.closed else "open"
        return f"<SQLiteStore {str(self._options.path)!r} {state}, {self.statistics()}>"

    @property
    def path(self) -> Path:
        """
        The file.
        """
        return self._options.path

    @property
    def keeps_changes(self) -> bool:
        """
        Whether the file has the table and the column for changes beside rows.
        """
        return self._keeps_changes

    async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
        """
        Run a script in one transaction, in a thread; it costs no more than to do without.

        Cancelled, it may have been done; it never overwrites what is written afterwards.

        Raises:
            StoreUnavailable: the file cannot be used; the message says what to do.
        """
        del transaction
        pool = self._writer if writes else self._readers
        result = await pool.run(partial(self._run, begin))
        if writes and not self._keeps_changes and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s has no place for the changes of large operations: each save writes its operation anew. Call "
                "create_schema().",
                self._options.path,
            )
        return result

    async def create_schema(self) -> None:
        """
        Create what is missing of the tables. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: the file cannot be used; the message says what to do.
        """
        await self._writer.run(create_table)

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Change]]:
        """
        Hear of changes until the end of the block: of those that are committed, by any process, once it is entered.

        Some may never come: more than a thousand operations that change at once, and those of a writer whose clock
        differs from this one's by more than `overlap`. One who comes late for the next change is told of each operation
        once.

        Cancelled, a step of the iterator loses nothing.

        Raises:
            StoreUnavailable: on entering, or at any step; the file is gone, or cannot be read or watched, or the store
                was closed. The message says what to do.
            WrongProcess: this process was forked from the one that opened the store.
        """
        if self._readers.foreign:
            raise WrongProcess("store")
        watcher = Watcher(
            self._options.path,
            open_bell=self._open_bell,
            fetch=self._fetch_changed_heads,
            clock=self._wall_clock,
            overlap=self._watch_overlap,
        )
        self._watchers.add(watcher)
        try:
            await watcher.open()
            yield watcher
        finally:
            self._watchers.discard(watcher)
            watcher.close()

    async def aclose(self) -> None:
        """
        Close all connections, and end whatever watches. Again, it does nothing more; cancelled, it still closes them.

        A transaction that runs closes its own when it ends, which is waited for, for 2 seconds at most. In a forked
        child it does nothing: the connections are the parent's.
        """
        if self._writer.foreign:
            await trio.lowlevel.checkpoint()
            return
        for watcher in self._watchers:
            watcher.end()
        # Shielded, since connections left open are open files, and bounded, since a disk may hang: the thread
        # then goes on by itself.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * CLOSE_TIMEOUT):
            await trio.to_thread.run_sync(self._close, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
        await trio.lowlevel.checkpoint()

    def statistics(self) -> SQLiteStatistics:
        """
        Return how the store is doing now.
        """
        pools = (self._writer, self._readers)
        return SQLiteStatistics(
            merges=self.merges,
            attempts=self.attempts,
            busy_retries=sum(pool.busy for pool in pools),
            idle_connections=sum(pool.idle for pool in pools),
            running_threads=sum(pool.running for pool in pools),
            watchers=len(self._watchers),
            asks=self._asks,
        )

    async def _fetch_changed_heads(self, after: int, until: int) -> list[RowHead]:
        self._asks += 1
        return await self._readers.run(
            lambda connection: SQLiteDialect(connection, keeps_changes=False).fetch_changed_heads(
                after, until, MOST_HEADS
            )
        )

    def _run(self, begin: Callable[[], Script[T]], connection: sqlite3.Connection) -> T:
        if not self._keeps_changes:  # a migration may be made while we run
            self._keeps_changes = keeps_changes(connection)
        return run_script(begin(), SQLiteDialect(connection, keeps_changes=self._keeps_changes))

    def _close(self) -> None:
        self._readers.close()
        self._writer.close()

    def _connect(self, mode: str = "rw") -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._options.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = decode_text
        return connection

    def _connect_writer(self) -> sqlite3.Connection:
        connection = self._connect("rwc" if self._options.create else "rw")
        try:
            check_collation(connection)
            self._set_journal(connection)
            connection.execute(f"PRAGMA synchronous = {self._options.synchronous}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_journal(self, connection: sqlite3.Connection) -> None:
        wanted = self._options.journal
        ((current,),) = connection.execute("PRAGMA journal_mode")
        if current != wanted:
            try:
                connection.execute(f"PRAGMA journal_mode = {wanted}")
            except sqlite3.OperationalError as error:
                # Others may use the file in WAL mode for ever; both modes work, so nobody waits for them to
                # leave.
                if wanted == "wal" or not is_busy(error):
                    raise
