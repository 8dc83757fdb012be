"""
Tests of the Redis store when callers leave, connections break, and the server is killed or frozen.
"""

from __future__ import annotations

import logging
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import coredis
import pytest
import trio
import trio.testing

from timeline_trio import Config, Stage, open_manager
from timeline_trio.model import Update
from timeline_trio.store import Found, Known, Merged, MergeRequest, NotFound, StoreUnavailable
from timeline_trio.testing.servers import start_redis
from timeline_trio_redis import open_redis

from .case_support import Failures
from .redis_support import PATIENCE, SECOND, known, stage, stages, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from timeline_trio.store import Revision
    from timeline_trio.testing.servers import RedisCluster, RedisServer
    from timeline_trio_redis import RedisStore

PROGRAM = Path(__file__).with_name("redis_program.py")


@pytest.fixture(scope="module")
def durable_server() -> Iterator[RedisServer]:
    """
    A server that keeps each command over a SIGKILL.
    """
    with start_redis(options=["--appendonly", "yes", "--appendfsync", "always"]) as server:
        yield server


@pytest.fixture
def durable_url(durable_server: RedisServer) -> str:
    if not durable_server.is_running:
        durable_server.restart()
    durable_server.thaw()
    durable_server.flush()
    return durable_server.url


async def test_no_answer_goes_to_another_caller_when_callers_leave(redis_url: str) -> None:
    chance = random.Random(1)  # noqa: S311 - no secret
    right = cancelled = 0

    async def call_on(store: RedisStore, opid: str) -> None:
        nonlocal right, cancelled
        version = 0
        held: Known | None = None
        for number in range(60):
            with trio.move_on_after(chance.choice((0, 0.0002, 0.0005, 0.001, 0.002, 1))) as scope:
                match chance.randrange(4):
                    case 0:
                        merged = await store.merge(opid, stages(stage(opid, number)), held)
                        assert merged.revision is not None
                        assert merged.revision.version > version
                        version = merged.revision.version
                    case 1:
                        with suppress(NotFound):
                            answer = await store.read(opid)
                            assert answer.opid == opid
                            assert isinstance(answer, Found)
                            assert set(answer.document.stages) == {(opid, "")}
                            held = Known(answer.revision, answer.document)
                    case 2:
                        answers = await store.mget([opid, "missing", "shared"])
                        assert {answer.opid for answer in answers} <= {opid, "shared"}
                    case _:
                        requests = [MergeRequest(opid, stages(stage(opid, number))), MergeRequest("", Update())]
                        said = await store.merge_many(requests)
                        assert isinstance(said[0], Merged)
                        assert not isinstance(said[1], Merged)
                right += 1
            cancelled += scope.cancelled_caught

    async with open_redis(redis_url) as store:
        await store.merge("shared", stages(stage("s")))
        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(call_on, store, f"op-{number}")
        assert store.statistics().connections == 1
        assert len(await store.mget([f"op-{number}" for number in range(24)])) == 24
    assert cancelled > 200
    assert right > 200


async def test_cancelled_calls_disturb_nobody_else(redis_server: RedisServer, redis_url: str) -> None:
    async def come_and_go(store: RedisStore) -> None:
        while not done.is_set():
            with trio.move_on_after(0.0005):
                await store.mget(["a"] * 50)
                await store.latest(0, 50)
            await trio.sleep(0.001)  # what is left behind is done all the same, and the server must keep up with it

    done = trio.Event()
    async with open_redis(redis_url) as store:
        accepted = _accepted_connections(redis_server)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(come_and_go, store)
            for number in range(300):
                assert (await store.merge("a", stages(stage("s", number)))).changed
            done.set()
        assert _accepted_connections(redis_server) - accepted == 1  # the one that asks for this number


def _accepted_connections(server: RedisServer) -> int:
    lines = server.execute("INFO", "stats").split("\r\n")
    return next(int(line.partition(":")[2]) for line in lines if line.startswith("total_connections_received:"))


async def test_connection_lost_while_idle_is_not_noticed(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        for number in range(20):
            assert (await store.merge("op", stages(stage("s", number)))).changed
            redis_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def test_killed_server_is_told_and_used_again_after_its_restart(
    durable_server: RedisServer, durable_url: str
) -> None:
    async with open_redis(durable_url) as store:
        await store.merge("op", stages(stage("a")))
        await trio.to_thread.run_sync(durable_server.kill)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
                await store.merge("op", stages(stage("b")))
            assert caught.value.__cause__ is not None
        for call in (store.read("op"), store.mget(["op"]), store.latest(0, 9), store.delete("op")):
            with pytest.raises(StoreUnavailable):
                await call
        with pytest.raises(StoreUnavailable):
            await store.merge_many([MergeRequest("op", Update()), MergeRequest("", Update())][:1])
        await trio.to_thread.run_sync(durable_server.restart)
        assert (await store.merge("op", stages(stage("b")))).changed
        assert (await known(store)).revision.version == 2


async def test_frozen_server_is_left_by_the_callers_own_scope(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        redis_server.freeze()
        for _ in range(3):
            began = trio.current_time()
            with trio.move_on_after(0.2) as scope:
                await store.merge("op", stages(stage("b")))
            assert scope.cancelled_caught
            assert trio.current_time() - began < 1
        redis_server.thaw()
        assert set((await known(store)).document.stages) <= {("a", ""), ("b", "")}
        await store.merge("op", stages(stage("b")))


async def test_frozen_server_is_given_up_by_the_timeout(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url, timeout=0.5) as store:
        await store.merge("op", stages(stage("a")))
        redis_server.freeze()
        for _ in range(2):
            began = trio.current_time()
            with pytest.raises(StoreUnavailable, match=r"did not answer in time|cannot be reached"):
                await store.mget([f"op-{number}" for number in range(50)])
            assert trio.current_time() - began < 3
        redis_server.thaw()
        assert (await known(store)).revision.version == 1


async def test_silent_connection_is_given_up_with_its_caller(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        redis_server.freeze()
        with trio.move_on_after(1.3):
            await store.merge("op", stages(stage("b")))
        await wait_until(lambda: store.statistics().connections == 0)
        redis_server.thaw()
        await store.merge("op", stages(stage("b")))
        assert store.statistics().connections == 1


async def merge_one(store: RedisStore) -> None:
    await store.merge("op", stages(stage("b")))


async def ask_latest(store: RedisStore) -> None:
    await store.latest(0, 9)


async def hear_one(store: RedisStore) -> None:
    async with store.watch() as changes:
        await anext(changes)


@pytest.mark.parametrize("call", [merge_one, ask_latest, hear_one])
@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("cluster", [True, False])
async def test_call_under_way_when_the_store_is_closed_says_so(
    redis_server: RedisServer,
    redis_url: str,
    redis_cluster: RedisCluster,
    redis_cluster_url: str,
    call: Callable[[RedisStore], Awaitable[None]],
    connected: bool,  # noqa: FBT001
    cluster: bool,  # noqa: FBT001
) -> None:
    async def call_and_fail() -> None:
        with pytest.raises(StoreUnavailable, match=r"^the store of redis://127.0.0.1:[0-9]+ is closed$") as caught:
            await call(store)
        failures.append(caught.value)

    failures: list[StoreUnavailable] = []
    servers = redis_cluster if cluster else redis_server
    url = redis_cluster_url if cluster else redis_url
    try:
        async with trio.open_nursery() as nursery:
            async with open_redis(url) as store:
                await store.merge("op", stages(stage("a")))
                if not connected:
                    for node in redis_cluster.nodes if cluster else [redis_server]:
                        node.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                    await wait_until(lambda: store.statistics().connections == 0)
                servers.freeze()
                nursery.start_soon(call_and_fail)
                await trio.testing.wait_all_tasks_blocked()
            closed_at = trio.current_time()
        assert trio.current_time() - closed_at < 1
    finally:
        servers.thaw()
    assert len(failures) == 1


async def test_own_connections_leave_the_log_of_the_driver_to_the_application(
    durable_server: RedisServer, durable_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "coredis")
    filters = list(logging.getLogger("coredis").filters)
    async with open_redis(durable_url, timeout=0.3) as store:
        await store.merge("op", stages(stage("a")))
        durable_server.freeze()
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await store.merge("op", stages(stage("b")))
            with pytest.raises(StoreUnavailable):
                async with store.watch():
                    pass
        durable_server.thaw()
        await store.merge("op", stages(stage("b")))
        async with store.watch() as changes:
            await trio.to_thread.run_sync(durable_server.kill)
            with pytest.raises(StoreUnavailable):
                await anext(changes)
        with pytest.raises(StoreUnavailable):
            await store.merge("op", stages(stage("b")))
        assert [record for record in caplog.records if record.name == "coredis"] == []
        await trio.to_thread.run_sync(durable_server.restart)
        async with (
            coredis.Redis(durable_server.host, durable_server.port) as client,
            coredis.Redis(durable_server.host, durable_server.port) as other,
        ):
            await store.merge("op", stages(stage("b")))
            await client.ping()
            await other.ping()
            await trio.to_thread.run_sync(durable_server.kill)
            await wait_until(lambda: store.statistics().connections == 0)
            await wait_until(lambda: len([r for r in caplog.records if r.name == "coredis"]) == 2)
        await trio.to_thread.run_sync(durable_server.restart)
    assert logging.getLogger("coredis").filters == filters


async def test_call_that_comes_late_after_a_freeze_undoes_nothing(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("s", 0)))
        for sequence in range(1, 6):
            redis_server.freeze()
            with trio.move_on_after(0.05):
                await store.merge("op", Update(stages=(stage("s", 2 * sequence),), writer="w", sequence=2 * sequence))
            redis_server.thaw()
            last = stage("s", 2 * sequence + 1)
            await store.merge("op", Update(stages=(last,), writer="w", sequence=2 * sequence + 1))
            assert (await known(store)).document.stages["s", ""] == last


async def record_through(store: RedisStore, failures: Failures, during: trio.Event) -> dict[str, int]:
    """
    Have a manager record into ten operations until an event, and drain; return how many stages each has.
    """
    recorded: dict[str, int] = {}
    config = Config(flush_interval=0.05, load_interval=0.05, export_timeout=0.5, on_error=failures)
    async with open_manager(store, config=config, drain_timeout=PATIENCE) as manager:
        number = 0
        while not during.is_set():
            opid = f"op-{number % 10}"
            manager.record(opid, Stage.completed("work", 0, SECOND, id=f"s{number}"))
            recorded[opid] = recorded.get(opid, 0) + 1
            number += 1
            await trio.sleep(0.002)
        statistics = manager.statistics()
        assert statistics.dropped_updates == statistics.rejected_updates == 0
    return recorded


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_manager_loses_nothing_while_the_server_is_away(
    durable_server: RedisServer, durable_url: str, fault: str
) -> None:
    failures = Failures()
    during = trio.Event()

    async def trouble() -> None:
        await trio.sleep(0.3)
        if fault == "kill":
            await trio.to_thread.run_sync(durable_server.kill)
            await trio.sleep(0.7)
            await trio.to_thread.run_sync(durable_server.restart)
        else:
            durable_server.freeze()
            await trio.sleep(2)
            durable_server.thaw()
        await trio.sleep(0.3)
        during.set()

    async with open_redis(durable_url) as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            recorded = await record_through(store, failures, during)
        for opid, count in recorded.items():
            assert len((await known(store, opid)).document.stages) == count
        assert store.statistics().connections == 1
    assert failures.all
    assert all(isinstance(error, StoreUnavailable) for _, error in failures.all)


async def test_many_managers_share_one_hot_operation(redis_url: str) -> None:
    revisions: list[Revision | None] = []
    async with open_redis(redis_url) as store:

        async def add(manager_number: int) -> None:
            for number in range(20):
                merged = await store.merge("op", stages(stage(f"{manager_number}-{number}")))
                revisions.append(merged.revision)

        async with trio.open_nursery() as nursery:
            for manager_number in range(50):
                nursery.start_soon(add, manager_number)
        held = await known(store)
        assert store.statistics().attempts == 1_000
    assert len(held.document.stages) == held.revision.version == 1_000
    assert len(set(revisions)) == 1_000


def interrupted(url: str, where: str, delay: float) -> tuple[str, int]:
    """
    Run the program until Ctrl-C; return what left its block, and how many stages it has recorded.
    """
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, PROGRAM, url, "op", where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if where == "program":
            time.sleep(delay)  # whatever it is doing then
            process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=PATIENCE)
    assert complaints == ""
    name, recorded = said.split()
    return name, int(recorded)


@pytest.mark.parametrize(("where", "delay"), [("driver", 0), *(("program", 0.02 + 0.0037 * n) for n in range(10))])
def test_ctrl_c_leaves_the_block_as_it_is_and_loses_nothing(
    redis_server: RedisServer, redis_url: str, where: str, delay: float
) -> None:
    name, recorded = interrupted(redis_url, where, delay)
    assert name == "KeyboardInterrupt"
    facts = int(redis_server.execute("HGET", "{timeline:b43}:op:op", "n"))
    assert facts in {recorded, recorded + 1}  # it may have come between record and the count
