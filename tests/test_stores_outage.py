"""
Tests of a server that stands still and is killed while managers record: what is lost is what was said to be lost.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import Actor, BufferFull, Config, Manager, open_manager
from timeline_trio.store import Found, open_store
from timeline_trio.testing.servers import start_redis

from .servers import servers_parent, shared
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timeline_trio.store import Store
    from timeline_trio.testing.servers import Server

PAUSE = 0.002  # seconds between two recordings of one manager
STALL = {"mysql": 2.0, "postgres": 2.0, "redis": 10.0}  # the others stand still for 10 s in tests of their own


@pytest.fixture(params=STALL)
def kind(request: pytest.FixtureRequest) -> str:
    """
    Which server.
    """
    return str(request.param)


@pytest.fixture
def served(kind: str, request: pytest.FixtureRequest) -> Iterator[tuple[Server, str]]:
    """
    A server that keeps what it said it has, and the URL of an empty store on it.
    """
    if kind == "redis":
        options = ["--appendonly", "yes", "--appendfsync", "always"]
        with shared(start_redis(options=options, parent=servers_parent())) as server:
            yield server, server.url
    else:
        name = {"mysql": "mysql_server", "postgres": "postgres"}[kind]
        yield request.getfixturevalue(name), request.getfixturevalue(f"{kind}_url")


class Writer:
    """
    Records one finished stage after the other, and counts what was refused.
    """

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.recorded = 0
        self.refused = 0

    async def run(self) -> None:
        while True:
            try:
                handle = self.manager.begin(f"op-{self.recorded % 4}", "work", stage_id=str(self.recorded))
            except BufferFull:
                self.refused += 1
            else:
                handle.end()
                self.recorded += 1
            await trio.sleep(PAUSE)

    async def wait_recorded(self, more: int) -> None:
        """
        Wait until it was able to record so many more stages.
        """
        count = self.recorded + more
        while self.recorded < count:  # noqa: ASYNC110 - it sets no event
            await trio.sleep(PAUSE)


def sockets() -> int:
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(each.readlink()).startswith("socket:")
    return count


async def test_what_an_outage_costs_is_what_was_refused(kind: str, served: tuple[Server, str]) -> None:
    server, url = served
    async with open_store(url):
        pass  # what is opened once and stays, such as the sockets of an event loop, is there from now on
    before = sockets()
    async with open_store(url) as store:
        roomy, tight = configure("roomy", max_pending_updates=1_000_000), configure("tight", max_pending_updates=20)
        async with (
            open_manager(store, config=roomy, drain_timeout=60) as first,
            open_manager(store, config=tight, drain_timeout=60) as second,
            trio.open_nursery() as nursery,
        ):
            writers = [Writer(first), Writer(second)]
            for writer in writers:
                nursery.start_soon(writer.run)
            await writers[0].wait_recorded(100)
            server.freeze()
            await trio.sleep(STALL[kind])  # it is the outage
            server.thaw()
            await writers[1].wait_recorded(50)
            server.kill()
            await writers[0].wait_recorded(300)
            await trio.to_thread.run_sync(server.restart)
            await writers[1].wait_recorded(50)
            nursery.cancel_scope.cancel()
        for writer in writers:
            assert_counters_add_up(writer.manager)
            statistics = writer.manager.statistics()
            assert (statistics.dropped_updates, statistics.rejected_updates, statistics.pending_updates) == (0, 0, 0)
            assert statistics.refused_updates == writer.refused
            assert statistics.accepted_updates == 2 * writer.recorded
        assert writers[0].refused == 0
        assert writers[1].refused > 0, "the outage was longer than its bounds"
        for actor, writer in (("roomy", writers[0]), ("tight", writers[1])):
            assert await stages_of(store, actor) == set(map(str, range(writer.recorded)))
    assert sockets() == before


def configure(actor: str, *, max_pending_updates: int) -> Config:
    return Config(
        actor=Actor(actor),
        flush_interval=0.1,
        load_interval=0.5,
        export_timeout=1.0,
        max_pending_updates=max_pending_updates,
    )


async def stages_of(store: Store, actor: str) -> set[str]:
    found: set[str] = set()
    for number in range(4):
        answer = await store.read(f"op-{number}")
        assert isinstance(answer, Found)
        stages = answer.document.stages.values()
        found |= {stage.id for stage in stages if stage.actor.id == actor and stage.finished_at is not None}
    return found
