"""
Tests of change notification through Redis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import Config, Stage, open_manager
from timeline_trio.store import Change, StoreUnavailable
from timeline_trio_redis import open_redis

from .redis_support import SECOND, stage, stages

if TYPE_CHECKING:
    from timeline_trio.testing.servers import RedisCluster, RedisServer


async def test_commits_of_another_client_are_heard(redis_url: str) -> None:
    async with open_redis(redis_url) as store, open_redis(redis_url) as other, store.watch() as changes:
        for number in range(20):
            merged = await other.merge(f"op:{number}", stages(stage("s")))
            assert merged.revision is not None
            with trio.fail_after(5):
                assert await anext(changes) == Change(f"op:{number}", merged.revision)


async def test_what_is_committed_once_the_block_is_entered_is_heard(redis_url: str) -> None:
    async with open_redis(redis_url) as store, open_redis(redis_url) as other:
        for number in range(20):
            async with store.watch() as changes:
                await other.merge("op", stages(stage("s", number)))
                with trio.fail_after(5):
                    assert (await anext(changes)).revision.version == number + 1


async def test_other_prefixes_are_not_heard(redis_url: str) -> None:
    async with open_redis(redis_url) as store, open_redis(redis_url, prefix="other") as other, store.watch() as changes:
        await other.merge("theirs", stages(stage("s")))
        await store.merge("ours", stages(stage("s")))
        with trio.fail_after(5):
            assert (await anext(changes)).opid == "ours"


@pytest.mark.parametrize("message", ["", "1", "a:b:c", "1:2", "::"])
async def test_what_others_publish_is_passed_over(redis_server: RedisServer, redis_url: str, message: str) -> None:
    async with open_redis(redis_url) as store, store.watch() as changes:
        redis_server.execute("PUBLISH", "timeline:changes", message)
        await store.merge("op", stages(stage("s")))
        with trio.fail_after(5):
            while (await anext(changes)).opid != "op":
                assert message == "1:2"


async def test_slow_reader_loses_changes_and_goes_on(redis_url: str) -> None:
    async with open_redis(redis_url) as store, store.watch() as changes:
        for number in range(3_000):
            await store.merge("op", stages(stage("s", number)))
        heard = 0
        while True:
            with trio.move_on_after(0.5) as scope:
                await anext(changes)
                heard += 1
            if scope.cancelled_caught:
                break
        assert 1_000 <= heard < 3_000
        await store.merge("late", stages(stage("s")))
        with trio.fail_after(5):
            assert (await anext(changes)).opid == "late"


async def test_killed_server_ends_the_watch_and_a_new_one_hears_again(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with open_redis(redis_url) as store:
        async with store.watch() as changes:
            await trio.to_thread.run_sync(redis_server.kill)
            for _ in range(2):
                with trio.fail_after(5), pytest.raises(StoreUnavailable, match="connection was lost") as caught:
                    await anext(changes)
                assert caught.value.__cause__ is not None
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            async with store.watch():
                pass
        await trio.to_thread.run_sync(redis_server.restart)
        async with store.watch() as changes:
            await store.merge("op", stages(stage("s")))
            with trio.fail_after(5):
                assert (await anext(changes)).opid == "op"


async def test_lost_connection_ends_the_watch(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store, store.watch() as changes:
        redis_server.execute("CLIENT", "KILL", "TYPE", "pubsub")
        with trio.fail_after(5), pytest.raises(StoreUnavailable):
            await anext(changes)


async def test_frozen_server_ends_the_watch(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url, timeout=0.3) as store, store.watch() as changes:
        redis_server.freeze()
        with trio.fail_after(5), pytest.raises(StoreUnavailable, match="did not answer in time"):
            await anext(changes)
        redis_server.thaw()


async def test_quiet_watch_stays(redis_url: str) -> None:
    async with open_redis(redis_url, timeout=0.1) as store, store.watch() as changes:
        with trio.move_on_after(1) as scope:  # several pings
            await anext(changes)
        assert scope.cancelled_caught
        await store.merge("op", stages(stage("s")))
        with trio.fail_after(5):
            assert (await anext(changes)).opid == "op"


async def test_error_in_a_watching_block_leaves_it_as_it_is(redis_url: str) -> None:
    error = ValueError()

    async def watch_and_fail() -> None:
        async with open_redis(redis_url) as store, store.watch():
            raise error

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it is compared
        await watch_and_fail()
    assert caught.value is error


async def test_watch_hears_of_all_nodes_of_a_cluster(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    opids = {f"op-{number}" for number in range(60)}
    async with open_redis(redis_cluster_url) as store, store.watch() as changes:
        for opid in opids:
            await store.merge(opid, stages(stage("s")))
        heard: set[str] = set()
        with trio.fail_after(5):
            while heard != opids:
                heard.add((await anext(changes)).opid)
    for node in redis_cluster.nodes:
        assert int(node.execute("DBSIZE")) > 0


async def test_manager_sees_what_another_saved_long_before_its_next_load(redis_url: str) -> None:
    config = Config(load_interval=60, flush_interval=60)
    async with (
        open_redis(redis_url) as store,
        open_redis(redis_url) as other_store,
        open_manager(store, config=config) as manager,
        open_manager(other_store, config=config) as other,
    ):
        other.record("op", Stage.completed("work", 0, SECOND, id="first"))
        await other.flush("op")
        await manager.read("op")
        with trio.fail_after(10):
            while not manager.statistics().listening:  # noqa: ASYNC110 - nothing tells it
                await trio.sleep(0.01)
        async with manager.watch("op") as snapshots:
            await anext(snapshots)
            other.record("op", Stage.completed("work", 0, SECOND, id="second"))
            await other.flush("op")
            with trio.fail_after(5):
                while len((await anext(snapshots)).stages) < 2:
                    pass
