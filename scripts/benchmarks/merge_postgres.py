"""
The statements of the PostgreSQL store, sent by psycopg in plain threads and by asyncpg on asyncio.

They are prepared, and each worker has a connection.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import asyncpg
import psycopg
from merge_rows import OVERLAP, RowWriter, now_us

from timeline_trio_postgres._dialect import Statements

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence

    from loads import Step

_STATEMENTS = Statements.of("")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _stamps() -> tuple[datetime, datetime, datetime]:
    now = _EPOCH + timedelta(microseconds=now_us())
    return now, now + timedelta(microseconds=OVERLAP), now


class _PsycopgWriter(RowWriter[datetime]):
    def __init__(self, connection: psycopg.Connection, opid: str, *, reads: bool) -> None:
        super().__init__(opid, reads=reads)
        self._cursor = connection.cursor(binary=True)
        self._read()

    def merge(self) -> None:
        if self.reads:
            self._read()
        arguments = (self.next_payload(), *_stamps(), self.opid, self.created_at, self.version)
        self.note(self._cursor.execute(_STATEMENTS.replace, arguments).rowcount)

    def _read(self) -> None:
        ((_, version, created_at, _, _, payload),) = self._cursor.execute(_STATEMENTS.rows, ([self.opid],))
        self.load(version, created_at, payload)


@contextmanager
def open_psycopg(url: str, opids: Sequence[str], *, reads: bool) -> Generator[list[Callable[[], None]]]:
    """
    Connect a worker for each operation, and yield what each does for one merge, blocking.
    """
    with ExitStack() as stack:
        steps: list[Callable[[], None]] = []
        for opid in opids:
            connection = stack.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=0))
            steps.append(_PsycopgWriter(connection, opid, reads=reads).merge)
        yield steps


class _AsyncpgWriter(RowWriter[datetime]):
    def __init__(self, connection: asyncpg.Connection, opid: str, *, reads: bool) -> None:
        super().__init__(opid, reads=reads)
        self._connection = connection

    async def open(self) -> None:
        self._select = await self._connection.prepare(_numbered(_STATEMENTS.rows))
        self._replace = _numbered(_STATEMENTS.replace)
        await self._read()

    async def merge(self) -> None:
        if self.reads:
            await self._read()
        arguments = (self.next_payload(), *_stamps(), self.opid, self.created_at, self.version)
        # asyncpg keeps what it has prepared, and tells how many rows were written in no other way.
        status = await self._connection.execute(self._replace, *arguments)
        self.note(int(status.rpartition(" ")[2]))

    async def _read(self) -> None:
        ((_, version, created_at, _, _, payload),) = await self._select.fetch([self.opid])
        self.load(version, created_at, payload)


@asynccontextmanager
async def open_asyncpg(url: str, opids: Sequence[str], *, reads: bool) -> AsyncGenerator[list[Step]]:
    """
    Connect a worker for each operation, and yield what each does for one merge.
    """
    async with AsyncExitStack() as stack:
        steps: list[Step] = []
        for opid in opids:
            connection = await asyncpg.connect(url)
            stack.push_async_callback(connection.close)
            writer = _AsyncpgWriter(connection, opid, reads=reads)
            await writer.open()
            steps.append(writer.merge)
        yield steps


def _numbered(statement: bytes) -> str:
    """
    Write a statement's parameters as PostgreSQL does.
    """
    first, *rest = statement.decode().split("%s")
    return first + "".join(f"${number}{part}" for number, part in zip(count(1), rest, strict=False))
