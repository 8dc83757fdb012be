"""
The statements of the MySQL store, sent by asyncmy on plain asyncio: prepared, on a connection a worker.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncmy
from merge_rows import OVERLAP, RowWriter, now_us

from timeline_trio_mysql._statements import REPLACE_UNFOLDED, select_rows
from timeline_trio_mysql._timestamps import stamp_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from loads import Step


class _AsyncmyWriter(RowWriter[str]):
    def __init__(self, connection: asyncmy.Connection, opid: str, *, reads: bool) -> None:
        super().__init__(opid, reads=reads)
        self._connection = connection

    async def open(self) -> None:
        self._select = await self._connection.prepare(select_rows(1, folds=True))
        self._replace = await self._connection.prepare(REPLACE_UNFOLDED)
        await self._read()

    async def merge(self) -> None:
        if self.reads:
            await self._read()
        payload, now = self.next_payload(), now_us()
        stamp, ahead = stamp_of(now), stamp_of(now + OVERLAP)
        arguments = (payload, stamp, ahead, stamp, self.opid, self.created_at, self.version)
        self.note((await self._replace.execute(arguments)).affected_rows)

    async def _read(self) -> None:
        ((_, version, created_at, _, _, payload),) = (await self._select.execute((self.opid,))).rows
        self.load(version, created_at, payload)


@asynccontextmanager
async def open_asyncmy(url: str, opids: Sequence[str], *, reads: bool) -> AsyncGenerator[list[Step]]:
    """
    Connect a worker for each operation, and yield what each does for one merge.
    """
    parts = urlsplit(url)
    async with AsyncExitStack() as stack:
        steps: list[Step] = []
        for opid in opids:
            connection = await asyncmy.connect(
                host=parts.hostname,
                port=parts.port,
                user=parts.username,
                db=parts.path.removeprefix("/"),
                autocommit=True,
            )
            stack.push_async_callback(connection.ensure_closed)
            writer = _AsyncmyWriter(connection, opid, reads=reads)
            await writer.open()
            steps.append(writer.merge)
        yield steps
