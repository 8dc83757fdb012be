"""
What the tests of the Redis store share.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

import coredis
import trio

from timeline_trio.model import NO_ACTOR, Stage, Status, Update
from timeline_trio.store import Found, Known
from timeline_trio_redis import open_redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from timeline_trio.model import Actor
    from timeline_trio.store import Store
    from timeline_trio.testing import ManualClock
    from timeline_trio.testing.servers import RedisServer
    from timeline_trio_redis import RedisStore

SECOND = 10**9
PATIENCE = 20.0  # seconds


def stage(stage_id: str, at: int = 0, *, actor: Actor = NO_ACTOR, error: str = "") -> Stage:
    """
    Return a stage that began at that second and ended a second later.
    """
    return Stage(
        id=stage_id,
        name="work",
        started_at=at * SECOND,
        finished_at=(at + 1) * SECOND,
        status=Status.FAILED if error else Status.SUCCEEDED,
        actor=actor,
        error=error,
    )


def stages(*items: Stage) -> Update:
    """
    Return an update of stages.
    """
    return Update(stages=items)


async def known(store: Store, opid: str = "op") -> Known:
    """
    Return an operation as it is stored.
    """
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return Known(answer.revision, answer.document)


async def wait_until(condition: Callable[[], object]) -> None:
    """
    Wait for what gives no signal.
    """
    with trio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


def opening(url: str, clock: ManualClock) -> Callable[[], AbstractAsyncContextManager[RedisStore]]:
    """
    Return what opens a fresh, empty store each time.
    """
    numbers = count()
    return lambda: open_redis(url, prefix=f"fresh-{next(numbers)}", clock=clock)


@asynccontextmanager
async def raw_client(server: RedisServer) -> AsyncIterator[coredis.Redis[bytes]]:
    """
    Look at a server without the store.
    """
    async with coredis.Redis(server.host, server.port) as client:
        yield client


def command_calls(server: RedisServer) -> dict[str, int]:
    """
    Return how many times each command was called, by scripts too, since the last CONFIG RESETSTAT.
    """
    lines = server.execute("INFO", "commandstats").split("\r\n")
    pairs = [line.removeprefix("cmdstat_").split(":calls=") for line in lines if line.startswith("cmdstat_")]
    return {name: int(rest.split(",")[0]) for name, rest in pairs}


def input_bytes(server: RedisServer) -> int:
    """
    Return how many bytes the server has received.
    """
    for line in server.execute("INFO", "stats").split("\r\n"):
        if line.startswith("total_net_input_bytes:"):
            return int(line.partition(":")[2])
    raise AssertionError("the server does not count")
