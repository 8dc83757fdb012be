"""
Tests of the Redis store on a cluster whose nodes fail and whose slots move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio.store import Merged, MergeRequest, StoreUnavailable
from timeline_trio_redis import open_redis

from .redis_support import PATIENCE, known, stage, stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timeline_trio.testing.servers import RedisCluster, RedisServer
    from timeline_trio_redis import RedisStore

OPIDS = [f"op-{number}" for number in range(50)]
MOVING = "op"
TAG = "{timeline:b43}"  # of MOVING


@pytest.fixture
def url(redis_cluster_url: str) -> str:
    return redis_cluster_url


async def test_operations_of_all_slots_are_read_together(redis_cluster: RedisCluster, url: str) -> None:
    async with open_redis(url) as store:
        await store.merge_many([MergeRequest(opid, stages(stage(opid))) for opid in OPIDS])
        assert sorted(answer.opid for answer in await store.mget([*OPIDS, "missing"])) == sorted(OPIDS)
        assert {answer.opid for answer in await store.latest(0, 100)} == set(OPIDS)
        assert store.statistics().connections == 3
    assert all(int(node.execute("DBSIZE")) > 0 for node in redis_cluster.nodes)


async def test_cancelled_calls_leave_the_cluster_usable(url: str) -> None:
    async with open_redis(url) as store:
        for number in range(100):
            with trio.move_on_after(0.0002 * (number % 10)):
                await store.merge_many([MergeRequest(opid, stages(stage(opid, number))) for opid in OPIDS])
        await store.merge_many([MergeRequest(opid, stages(stage(opid, 999))) for opid in OPIDS])
        for answer in await store.mget(OPIDS):
            assert (await known(store, answer.opid)).document.stages == {(answer.opid, ""): stage(answer.opid, 999)}


@pytest.fixture
def partial_cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    """
    A cluster that serves the slots that it can.
    """
    for node in redis_cluster.nodes:
        node.execute("CONFIG", "SET", "cluster-require-full-coverage", "no")
    yield redis_cluster
    if not redis_cluster.nodes[1].is_running:
        redis_cluster.nodes[1].restart()
    redis_cluster.wait_whole()
    for node in redis_cluster.nodes:
        node.execute("CONFIG", "SET", "cluster-require-full-coverage", "yes")


async def test_dead_node_fails_its_own_operations_alone(partial_cluster: RedisCluster, url: str) -> None:
    requests = [MergeRequest(opid, stages(stage(opid))) for opid in OPIDS]
    dead = partial_cluster.nodes[1]
    async with open_redis(url, timeout=1) as store:
        await store.merge_many(requests)
        await trio.to_thread.run_sync(dead.kill)
        for number in range(3):
            again = [MergeRequest(opid, stages(stage(opid, number + 1))) for opid in OPIDS]
            kinds = {type(answer) for answer in await store.merge_many(again)}
            assert kinds == {Merged, StoreUnavailable}
            with pytest.raises(StoreUnavailable):
                await store.latest(0, 9)
        await trio.to_thread.run_sync(dead.restart)
        await trio.to_thread.run_sync(partial_cluster.wait_whole)
        with trio.fail_after(PATIENCE):
            while any(isinstance(answer, StoreUnavailable) for answer in await store.merge_many(requests)):
                pass
        assert len(await store.mget(OPIDS)) == len(OPIDS)


async def test_dead_cluster_is_told_and_used_again(redis_cluster: RedisCluster, url: str) -> None:
    async with open_redis(url, timeout=1) as store:
        await store.merge("op", stages(stage("a")))
        await trio.to_thread.run_sync(redis_cluster.kill)
        for call in (store.merge("op", stages(stage("b"))), store.latest(0, 9)):
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await call
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            async with store.watch():
                pass
        await trio.to_thread.run_sync(redis_cluster.restart)
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    await store.merge("op", stages(stage("b")))
                    break
                except StoreUnavailable:
                    await trio.sleep(0.05)


async def test_callers_behind_a_frozen_cluster_are_answered_together(redis_cluster: RedisCluster, url: str) -> None:
    took: list[float] = []

    async def call(store: RedisStore, opid: str) -> None:
        with pytest.raises(StoreUnavailable, match=r"in time|cannot be reached"):
            await store.merge(opid, stages(stage("b")))
        took.append(trio.current_time() - began)

    async with open_redis(url, timeout=0.5) as store:
        await store.merge_many([MergeRequest(opid, stages(stage(opid))) for opid in OPIDS])
        try:
            redis_cluster.freeze()
            for _ in range(2):
                began = trio.current_time()
                async with trio.open_nursery() as nursery:
                    for opid in OPIDS[:16]:
                        nursery.start_soon(call, store, opid)
        finally:
            redis_cluster.thaw()
        assert len(took) == 32
        assert max(took) < 3


async def test_failure_names_the_node_and_the_cluster(partial_cluster: RedisCluster, url: str) -> None:
    dead = partial_cluster.nodes[1]
    async with open_redis(url, timeout=1) as store:
        await store.merge_many([MergeRequest(opid, stages(stage(opid))) for opid in OPIDS])
        await trio.to_thread.run_sync(dead.kill)
        answers = await store.merge_many([MergeRequest(opid, stages(stage(opid, 1))) for opid in OPIDS])
    failures = {str(answer) for answer in answers if isinstance(answer, StoreUnavailable)}
    cluster = partial_cluster.url.removesuffix("/0?cluster=true")
    assert len(failures) == 1
    assert f"the Redis server {dead.host}:{dead.port} of the cluster {cluster} cannot be reached" in failures.pop()


def owner_of(cluster: RedisCluster, slot: str) -> RedisServer:
    for node in cluster.nodes:
        if not node.execute("CLUSTER", "COUNTKEYSINSLOT", slot).startswith("0"):
            return node
    raise AssertionError("no node has keys in that slot")


async def test_moving_slot_loses_nothing(redis_cluster: RedisCluster, url: str) -> None:
    async with open_redis(url) as store:
        await store.merge(MOVING, stages(stage("first")))
        slot = redis_cluster.nodes[0].execute("CLUSTER", "KEYSLOT", f"{TAG}:index")
        source = owner_of(redis_cluster, slot)
        target = next(node for node in redis_cluster.nodes if node is not source)
        names = {node: node.execute("CLUSTER", "MYID") for node in redis_cluster.nodes}
        target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
        source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
        try:
            # Redis refuses a script while some of its keys may be here and some there.
            with pytest.raises(StoreUnavailable, match="moving this slot"):
                await store.merge(MOVING, stages(stage("while it moves")))
            assert set((await known(store, MOVING)).document.stages) == {("first", "")}
            for key in (f"op:{MOVING}", f"versions:{MOVING}", "index", "incarnation"):
                source.execute("MIGRATE", target.host, str(target.port), f"{TAG}:{key}", "0", "5000")
            assert set((await known(store, MOVING)).document.stages) == {("first", "")}  # behind a redirection
        finally:
            for node in (target, source):
                node.execute("CLUSTER", "SETSLOT", slot, "NODE", names[target])
        await store.merge(MOVING, stages(stage("at its new place")))
        held = await known(store, MOVING)
        assert {key[0] for key in held.document.stages} == {"first", "at its new place"}
        assert held.revision.version == 2
