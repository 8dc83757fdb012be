"""
Tests of `FaultyStore`: each fault cuts a call where it was asked to.
"""

from __future__ import annotations

import pytest
import trio

from timeline_trio.model import Stage, Update
from timeline_trio.store import MemoryStore, MergeRequest, MergesMany, StoreRejected, StoreUnavailable
from timeline_trio.testing import FaultyStore, StoreCall

UPDATE = Update(stages=(Stage(id="s", name="n", started_at=0),))


async def test_nth_call_from_now_fails_and_the_others_do_not() -> None:
    store = FaultyStore(MemoryStore())
    await store.merge("op", UPDATE)
    store.fail("read", StoreRejected("op", "no"), nth=2)
    await store.read("op")
    await store.mget(["op"])
    with pytest.raises(StoreRejected):
        await store.read("op")
    await store.read("op")


async def test_each_call_fails_until_the_fault_is_released() -> None:
    store = FaultyStore(MemoryStore())
    fault = store.fail("mget", nth=None)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.mget([])
    await fault.wait_reached()
    fault.release()
    assert await store.mget([]) == []


async def test_outage_lasts_while_it_is_set() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    store.outage = StoreUnavailable("", "down")
    with pytest.raises(StoreUnavailable, match="down"):
        await store.merge("op", UPDATE)
    assert await inner.mget(["op"]) == []
    store.outage = None
    assert (await store.merge("op", UPDATE)).changed


async def test_lost_reply_comes_after_the_commit() -> None:
    store = FaultyStore(MemoryStore())
    store.lose_reply()
    with pytest.raises(StoreUnavailable, match="reply"):
        await store.merge("op", UPDATE)
    assert not (await store.merge("op", UPDATE)).changed


@pytest.mark.parametrize("after", [False, True])
async def test_call_hangs_before_or_after_its_work(after: bool) -> None:  # noqa: FBT001
    inner = MemoryStore()
    store = FaultyStore(inner)
    fault = store.hang("merge", after=after)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.merge, "op", UPDATE)
        await fault.wait_reached()
        await trio.testing.wait_all_tasks_blocked()
        assert len(await inner.mget(["op"])) == after
        fault.release()
    assert len(await inner.mget(["op"])) == 1


async def test_hanging_call_can_be_cancelled() -> None:
    store = FaultyStore(MemoryStore())
    fault = store.hang("latest")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.latest, 0, 9)
        await fault.wait_reached()
        nursery.cancel_scope.cancel()
    assert await store.latest(0, 9) == []


async def test_documents_are_stripped_from_answers_to_merges() -> None:
    store = FaultyStore(MemoryStore())
    store.strip_documents = True
    assert (await store.merge("op", UPDATE)).document is None
    requests = [MergeRequest("a", UPDATE), MergeRequest("", UPDATE)]
    merged, refused = await store.merge_many(requests)
    assert not isinstance(merged, StoreRejected)
    assert isinstance(refused, StoreRejected)
    store.strip_documents = False
    assert (await store.merge("op", UPDATE)).document is not None


async def test_calls_are_recorded_in_order() -> None:
    store = FaultyStore(MemoryStore())
    await store.merge("a", UPDATE)
    await store.merge_many([MergeRequest("b", UPDATE)])
    await store.mget(["a", "b"])
    await store.latest(0, 9)
    await store.read("a")
    assert store.calls == [
        StoreCall("merge", ("a",), (UPDATE,)),
        StoreCall("merge_many", ("b",), (UPDATE,)),
        StoreCall("mget", ("a", "b")),
        StoreCall("latest"),
        StoreCall("read", ("a",)),
    ]
    assert store.count("merge") == 1
    assert "5 calls" in repr(store)


def test_capability_is_that_of_the_other_store_and_can_be_hidden() -> None:
    assert isinstance(FaultyStore(MemoryStore()), MergesMany)
    hidden = FaultyStore(MemoryStore(), hide_merge_many=True)
    assert not isinstance(hidden, MergesMany)
    assert not isinstance(FaultyStore(hidden), MergesMany)
