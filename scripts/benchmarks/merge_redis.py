"""
The script calls of the Redis store, sent by coredis on asyncio through its own pool.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coredis import Redis
from documents import Writer

from timeline_trio.store import MergeRequest
from timeline_trio_redis._layout import Layout
from timeline_trio_redis._merging import Merging, Times
from timeline_trio_redis._options import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from loads import Step

    from timeline_trio.model import Update
    from timeline_trio_redis._scripts import ScriptCall

_LAYOUT = Layout(DEFAULT_PREFIX)
_OVERLAP = 1_000_000_000  # nanoseconds


def begin(opid: str, update: Update) -> tuple[Merging, ScriptCall]:
    """
    Return a merge, and the script call that it sends.
    """
    merging = Merging(_LAYOUT, MergeRequest(opid, update))
    return merging, merging.call(Times(time.time_ns(), _OVERLAP, None))


class _CoredisWriter(Writer):
    def __init__(self, client: Redis[bytes], opid: str) -> None:
        super().__init__(opid)
        self._client = client

    async def merge(self) -> None:
        merging, call = begin(self.opid, self.update())
        reply = await self._client.evalsha(call.script.digest, keys=call.keys, args=call.arguments)
        answer = merging.accept(reply)
        assert answer is not None
        assert answer.changed


@asynccontextmanager
async def open_coredis(url: str, opids: Sequence[str], *, reads: bool) -> AsyncGenerator[list[Step]]:
    """
    Open a client, and yield what each worker does for one merge. It never reads.
    """
    del reads
    parts = urlsplit(url)
    async with Redis(parts.hostname, parts.port) as client:
        yield [_CoredisWriter(client, opid).merge for opid in opids]
