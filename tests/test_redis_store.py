"""
Tests of the Redis store: the contract, the layout, the cost of a save, and what it decides.
"""

from __future__ import annotations

from binascii import crc32
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio.model import Actor, Finish, InvalidValue, Start, Status, Update
from timeline_trio.store import (
    Changes,
    CorruptEntry,
    Found,
    Known,
    Merged,
    MergeRequest,
    MergesMany,
    NotFound,
    Revision,
    StoreRejected,
    StoreUnavailable,
    Unchanged,
    Unreadable,
    WatchesChanges,
)
from timeline_trio.testing import FaultyStore, ManualClock, check_store
from timeline_trio_redis import RedisStatistics, open_redis

from .redis_support import SECOND, command_calls, input_bytes, known, opening, raw_client, stage, stages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from timeline_trio.store import Store
    from timeline_trio.testing.servers import RedisServer

HOSTILE = (
    ("a", "", "id:b"),
    ("a\0", "b", ""),
    ('a","id:b', "", ""),
    ("[", "]", ""),
    ("start", "", ""),
    ("v", "", ""),
    ("\N{GRINNING FACE}", "\u2028", "\xe9"),
    ("a", "b", "c"),
    ("a", "", "b"),
)
TAG = "{timeline:b43}"  # of "op": crc32 modulo 64 is the stored format and must never change


async def test_store_on_one_server_keeps_the_contract(redis_url: str) -> None:
    clock = ManualClock()
    await check_store(opening(redis_url, clock), clock=clock)


async def test_store_on_a_cluster_keeps_the_contract(redis_cluster_url: str) -> None:
    clock = ManualClock()
    await check_store(opening(redis_cluster_url, clock), clock=clock)


@pytest.mark.parametrize("hide_merge_many", [False, True])
async def test_store_behind_faults_keeps_the_contract(redis_url: str, hide_merge_many: bool) -> None:  # noqa: FBT001
    clock = ManualClock()
    open_one = opening(redis_url, clock)

    @asynccontextmanager
    async def open_faulty() -> AsyncGenerator[Store, None]:
        async with open_one() as store:
            yield FaultyStore(store, hide_merge_many=hide_merge_many)

    await check_store(open_faulty, clock=clock)


async def test_store_has_its_capabilities(redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        assert isinstance(store, MergesMany)
        assert isinstance(store, WatchesChanges)


async def test_keys_and_fields_are_those_of_the_documentation(redis_server: RedisServer, redis_url: str) -> None:
    clock = ManualClock(1_700_000_000_123_456_789)
    update = Update(
        start=Start(name="deploy", at=SECOND + 1, attributes_json='{"n":9007199254740993}'),
        finish=Finish(at=2 * SECOND, status=Status.FAILED, error="no"),
        stages=(stage("s", actor=Actor("h", "host")),),
        writer="w:1",
        sequence=7,
    )
    async with open_redis(redis_url, clock=clock, expire_after=100) as store:
        await store.merge("op", update)
    tag = TAG.encode()
    async with raw_client(redis_server) as client:
        assert await client.keys("*") == {
            *(tag + rest for rest in (b":op:op", b":versions:op", b":index", b":due", b":incarnation")),
            tag + b":sequence:3:w:1:op",
        }
        assert await client.hgetall(tag + b":op:op") == {
            b"v": b"1",
            b"c": b"1700000000123456",
            b"u": b"1700000000123456",
            b"n": b"3",
            b"start": b'{"operation":"deploy","started_at":"1970-01-01T00:00:01.000000001Z",'
            b'"attributes":{"n":9007199254740993}}',
            b"finish": b'{"finished_at":"1970-01-01T00:00:02Z","status":"failed","error":"no"}',
            b'["s","id:h"]': b'{"id":"s","parent_id":"","actor":{"id":"h","name":"host"},"name":"work",'
            b'"started_at":"1970-01-01T00:00:00Z","finished_at":"1970-01-01T00:00:01Z","status":"succeeded"}',
        }
        versions = await client.zrange(tag + b":versions:op", 0, -1, withscores=True)
        assert {(member.member, member.score) for member in versions} == {
            (b"start", 1.0),
            (b"finish", 1.0),
            (b'["s","id:h"]', 1.0),
        }
        (indexed,) = await client.zrange(tag + b":index", 0, -1, withscores=True)
        assert (indexed.member, indexed.score) == (b"op", 1700000000123456.0)
        assert await client.get(tag + b":incarnation") == b"1700000000123456"
        assert await client.get(tag + b":sequence:3:w:1:op") == b"7"


async def test_hostile_ids_of_stages_and_actors_are_fields_of_their_own(redis_url: str) -> None:
    facts = [stage(stage_id, actor=Actor(i, n)) for stage_id, i, n in HOSTILE]
    async with open_redis(redis_url) as store:
        for fact in facts:
            await store.merge("op", stages(fact))
        held = await known(store)
    assert held.document.stages == {fact.key: fact for fact in facts}
    assert held.revision.version == len(facts)


async def test_save_costs_its_changes_whatever_the_size(redis_server: RedisServer, redis_url: str) -> None:
    costs: list[tuple[dict[str, int], int]] = []
    async with open_redis(redis_url) as store:
        for size in (10, 5_000):
            opid = f"{size:05d}"
            await store.merge(opid, stages(*(stage(f"s{number}") for number in range(size))))
            held = await known(store, opid)
            redis_server.execute("CONFIG", "RESETSTAT")
            before = input_bytes(redis_server)
            await store.merge(opid, stages(stage("s1", 1)), held)
            received = input_bytes(redis_server) - before
            calls = command_calls(redis_server)
            costs.append(({name: calls[name] for name in calls if name not in {"info", "quit"}}, received))
    (few, few_bytes), (many, many_bytes) = costs
    assert few == many
    assert few["evalsha"] == 1
    assert few["hset"] == 2
    assert not {"hgetall", "hvals"} & few.keys()
    # Of a document of some hundred thousand bytes. What asking the server itself takes is among it, now and then late.
    assert max(few_bytes, many_bytes) < 1_000


async def test_equal_state_writes_nothing(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        first = await store.merge("op", stages(stage("a"), stage("b")))
        redis_server.execute("CONFIG", "RESETSTAT")
        again = await store.merge("op", stages(stage("a")))
    assert again == Merged(revision=first.revision, changed=False)
    assert not {"hset", "zadd", "publish"} & command_calls(redis_server).keys()


async def test_unknown_script_is_sent_again(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        redis_server.execute("SCRIPT", "FLUSH")
        answers = await store.merge_many([MergeRequest(f"op-{number}", stages(stage("b"))) for number in range(9)])
        assert all(isinstance(answer, Merged) and answer.changed for answer in answers)
        redis_server.execute("SCRIPT", "FLUSH")
        assert len(await store.mget(["op", "op-1"])) == 2


async def test_live_start_on_another_assumption_is_decided_anew(redis_url: str) -> None:
    first = Start(name="deploy", at=SECOND, attributes_json='{"a":1,"b":2}', live=True)
    async with open_redis(redis_url) as store:
        await store.merge("op", Update(start=first))
        stale = await known(store)
        sent = store.statistics().attempts
        repeat = Update(start=Start(name="deploy", at=5 * SECOND, attributes_json='{"a":1}', live=True))
        assert not (await store.merge("op", repeat, stale)).changed
        assert store.statistics().attempts == sent + 1
        assert not (await store.merge("op", repeat)).changed
        assert store.statistics().attempts == sent + 3
        await store.merge("op", Update(start=Start(name="other", at=7 * SECOND)))
        again = await store.merge("op", Update(start=first), stale)
        assert again.changed
        document = (await known(store)).document
    assert document.start == Start(name="deploy", at=SECOND, attributes_json='{"a":1,"b":2}')


async def test_live_boundaries_of_a_race_keep_one_time(redis_url: str) -> None:
    async def begin_and_end(second: int) -> None:
        update = Update(
            start=Start(name="deploy", at=second * SECOND, live=True),
            finish=Finish(at=second * SECOND, status=Status.SUCCEEDED, live=True),
        )
        answers.append(await store.merge("op", update))

    answers: list[Merged] = []
    async with open_redis(redis_url) as store:
        async with trio.open_nursery() as nursery:
            for second in range(30):
                nursery.start_soon(begin_and_end, second)
        held = await known(store)
    assert sum(answer.changed for answer in answers) == 1
    assert held.revision.version == 1
    assert held.document.start is not None
    assert held.document.finish is not None
    assert held.document.start.at == held.document.finish.at


async def test_late_call_does_not_undo_what_its_writer_saved_since(redis_url: str) -> None:
    def update(sequence: int, writer: str = "w") -> Update:
        return Update(stages=(stage("s", sequence),), writer=writer, sequence=sequence)

    async with open_redis(redis_url) as store:
        await store.merge("op", update(1))
        saved = await store.merge("op", update(2))
        late = await store.merge("op", update(1))
        assert late == Merged(revision=saved.revision, changed=False)
        assert (await known(store)).document.stages["s", ""] == stage("s", 2)
        other = await store.merge("op", update(1, "v"))
        assert other.changed
        repeat = await store.merge("op", update(2))
        assert repeat.changed
        assert (await known(store)).document.stages["s", ""] == stage("s", 2)


async def test_reader_is_told_the_changes_alone(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(*(stage(f"s{number}") for number in range(2_000))))
        old = await known(store)
        await store.merge("op", Update(start=Start(name="n", at=1), stages=(stage("s7", 3),)))
        await store.merge("op", stages(stage("new")))
        redis_server.execute("CONFIG", "RESETSTAT")
        answer = await store.read("op", old)
        assert isinstance(answer, Changes)
        assert "hgetall" not in command_calls(redis_server)
        assert (answer.since, answer.revision) == (old.revision, Revision(old.revision.incarnation, 3))
        assert answer.update.start == Start(name="n", at=1)
        assert {item.id for item in answer.update.stages} == {"s7", "new"}
        new = await known(store)
        assert await store.read("op", new) == Unchanged(opid="op", revision=new.revision)


async def test_incomplete_versions_are_not_relied_on(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(*(stage(f"s{number}") for number in range(9))))
        old = await known(store)
        await store.merge("op", stages(stage("s1", 1)))
        redis_server.execute("DEL", f"{TAG}:versions:op")  # as eviction would
        await store.merge("op", stages(stage("s2", 1)))
        answer = await store.read("op", old)
        assert isinstance(answer, Found)
        assert answer.document.stages["s1", ""] == stage("s1", 1)


async def test_reader_of_a_later_version_than_the_stored_one_gets_the_document(redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        held = await known(store)
        ahead = Known(Revision(held.revision.incarnation, 99), held.document)
        assert isinstance(await store.read("op", ahead), Found)


@pytest.mark.parametrize(
    "damage",
    [
        ("SET", "text"),
        ("HSET", "v", "many"),
        ("HSET", "v", "1e3"),
        ("HDEL", "c"),
        ("HSET", '["a",""]', "{"),
        ("HSET", '["a",""]', '{"id":"b","name":"w","started_at":"2026-01-01T00:00:00Z","status":"running"}'),
        ("HSET", '["b",""]', "\udcff"),
        ("HSET", "start", "[]"),
        ("HSET", "start", '{"operation":"n"}'),
        ("HSET", "finish", '{"finished_at":"0001-01-01T00:00:00Z","status":"failed"}'),
    ],
)
async def test_damaged_operation_is_told_and_others_are_read(
    redis_server: RedisServer, redis_url: str, damage: tuple[str, ...]
) -> None:
    command, *words = damage
    key = f"{TAG}:op:op"
    async with open_redis(redis_url) as store:
        for opid in ("op", "other"):
            await store.merge(opid, stages(stage("a")))
        async with raw_client(redis_server) as client:
            if command == "HSET":
                await client.hset(key, {words[0]: words[1].encode(errors="surrogateescape")})
            elif command == "HDEL":
                await client.hdel(key, words)
            else:
                await client.set(key, words[0])
        with pytest.raises(CorruptEntry) as caught:
            await store.read("op")
        assert caught.value.opid == "op"
        for answers in (await store.mget(["op", "other"]), await store.latest(0, 9)):
            kinds = {answer.opid: type(answer) for answer in answers}
            assert kinds == {"op": Unreadable, "other": Found}


async def test_foreign_key_of_an_operation_makes_it_unreadable(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        redis_server.execute("LPUSH", f"{TAG}:op:op", "mine")
        requests = [MergeRequest("op", stages(stage("b"))), MergeRequest("other", stages(stage("b")))]
        answers = await store.merge_many(requests)
        assert isinstance(answers[0], CorruptEntry)
        assert isinstance(answers[1], Merged)
        (answer,) = await store.mget(["op"])
        assert isinstance(answer, Unreadable)


@pytest.mark.parametrize("junk", [("LPUSH", "mine"), ("SET", "mine")])
@pytest.mark.parametrize("key", ["versions:op", "index", "due", "incarnation", "sequence:1:w:op"])
@pytest.mark.parametrize("expire_after", [None, 1000])
async def test_foreign_key_beside_an_operation_is_named_and_nothing_is_lost(
    redis_server: RedisServer, redis_url: str, key: str, junk: tuple[str, str], expire_after: float | None
) -> None:
    command, value = junk
    async with open_redis(redis_url, expire_after=expire_after) as store:
        await store.merge("op", stages(stage("a")))
        held = await known(store)
        if key == "incarnation":
            await store.delete("op")  # it is looked at for a new operation only
        redis_server.execute("DEL", f"{TAG}:{key}")
        redis_server.execute(command, f"{TAG}:{key}", value)
        update = Update(stages=(stage("b"),), writer="w", sequence=1)
        answers = await store.merge_many([MergeRequest("op", update), MergeRequest("other", stages(stage("b")))])
        assert type(answers[0]) is StoreUnavailable
        assert f"{TAG}:{key}" in str(answers[0])
        assert isinstance(answers[1], Merged)
        for answer in await store.mget(["op"], {"op": held}):
            assert isinstance(answer, Unchanged)
        redis_server.execute("DEL", f"{TAG}:{key}")
        assert (await store.merge("op", update)).changed


async def test_foreign_versions_are_not_relied_on(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(*(stage(f"s{number}") for number in range(9))))
        old = await known(store)
        await store.merge("op", stages(stage("s1", 1)))
        redis_server.execute("DEL", f"{TAG}:versions:op")
        redis_server.execute("SET", f"{TAG}:versions:op", "mine")
        answer = await store.read("op", old)
        assert isinstance(answer, Found)
        assert answer.document.stages["s1", ""] == stage("s1", 1)


@pytest.mark.parametrize("key", ["index", "due"])
async def test_foreign_index_is_named_by_who_deletes(redis_server: RedisServer, redis_url: str, key: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        redis_server.execute("SET", f"{TAG}:{key}", "mine")
        with pytest.raises(StoreUnavailable, match=f"{TAG}:{key}"):
            await store.delete("op")
        assert await store.mget(["op"]) == []


async def test_unknown_fields_of_a_newer_version_are_passed_over(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        redis_server.execute("HSET", f"{TAG}:op:op", "later", "whatever")
        assert set((await known(store)).document.stages) == {("a", "")}


async def test_foreign_member_of_the_index_is_unreadable(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        redis_server.execute("ZADD", "{timeline:b00}:index", str(2**52), " no id ")
        answers = await store.latest(0, 9)
    assert [(answer.opid, type(answer)) for answer in answers] == [(" no id ", Unreadable), ("op", Found)]


async def test_foreign_index_is_named_since_it_hides_operations(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        await store.merge("other", stages(stage("a")))
        redis_server.execute("SET", f"{TAG}:index", "mine")
        with pytest.raises(StoreUnavailable, match=f"the key '{TAG}:index' holds what is not this store's"):
            await store.latest(0, 9)
        redis_server.execute("DEL", f"{TAG}:index")
        assert [answer.opid for answer in await store.latest(0, 9)] == ["other"]


@pytest.mark.parametrize("limit", [2**31, 2**63 - 1, 2**63, 2**70])
async def test_limit_may_be_any_number(redis_url: str, limit: int) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        assert [answer.opid for answer in await store.latest(0, limit)] == ["op"]


@pytest.mark.parametrize("limit", [1, 3, 10])
async def test_latest_is_full_whatever_has_gone_before(redis_server: RedisServer, redis_url: str, limit: int) -> None:
    clock = ManualClock()
    async with open_redis(redis_url, clock=clock) as store:
        for opid in ["a", "b", "c", *(f"gone-{number}" for number in range(40)), "d", "e"]:
            clock.advance(1)
            await store.merge(opid, stages(stage("s")))
        for key in redis_server.execute("KEYS", "*:op:gone-*").split("\r\n")[2::2]:
            redis_server.execute("DEL", key)
        expected = ["e", "d", "c", "b", "a"][:limit]
        assert [answer.opid for answer in await store.latest(0, limit)] == expected
        assert [answer.opid for answer in await store.latest(0, limit)] == expected


async def test_latest_ends_where_what_is_gone_stays_in_a_foreign_bucket(
    redis_server: RedisServer, redis_url: str
) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        for number in range(5):  # none of these is of this bucket, so nobody looks for them there
            redis_server.execute("ZADD", "{timeline:b43}:index", str(2**52), f"gone-{number}")
        for _ in range(2):
            assert [answer.opid for answer in await store.latest(0, 1)] == ["op"]


async def test_deleted_operation_is_forgotten(redis_server: RedisServer, redis_url: str) -> None:
    clock = ManualClock()
    async with open_redis(redis_url, clock=clock) as store:
        first = await store.merge("op", stages(stage("a")))
        await store.delete("op")
        await store.delete("op")
        await store.delete(" no id ")
        with pytest.raises(NotFound):
            await store.read("op")
        assert await store.latest(0, 9) == []
        clock.advance(-100)
        anew = await store.merge("op", stages(stage("a")))
    assert first.revision is not None
    assert anew.revision is not None
    assert anew.revision.incarnation > first.revision.incarnation
    assert anew.revision.version == 1
    assert redis_server.execute("DBSIZE") == "4"


async def test_operation_that_another_removed_leaves_the_index(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        redis_server.execute("DEL", f"{TAG}:op:op")
        assert await store.latest(0, 9) == []
    assert redis_server.execute("KEYS", "*").count("$") == 1  # the last incarnation


async def test_operation_expires_after_its_last_change(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url, expire_after=1000) as store, open_redis(redis_url) as keeping:
        await store.merge("op", stages(stage("a")))
        for key in ("op", "versions"):
            assert 999_000 < int(redis_server.execute("PTTL", f"{TAG}:{key}:op")) <= 1_000_000
            redis_server.execute("PEXPIRE", f"{TAG}:{key}:op", "500000")
        await store.merge("op", stages(stage("a")))
        assert int(redis_server.execute("PTTL", f"{TAG}:op:op")) <= 500_000  # nothing changed
        await store.merge("op", stages(stage("b")))
        assert int(redis_server.execute("PTTL", f"{TAG}:op:op")) > 999_000
        await keeping.merge("op", stages(stage("c")))
        for key in ("op", "versions"):
            assert redis_server.execute("PTTL", f"{TAG}:{key}:op") == "-1"
        assert redis_server.execute("EXISTS", f"{TAG}:due") == "0"


async def test_expired_operations_leave_the_indexes(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url, expire_after=0.05) as store:
        first = await store.merge("op", stages(stage("a")))
        await trio.sleep(0.1)  # by the clock of the server
        with pytest.raises(NotFound):
            await store.read("op")
        assert redis_server.execute("ZCARD", f"{TAG}:index") == "1"
        async with open_redis(redis_url, expire_after=1000) as other:
            neighbour = next(f"n{number}" for number in range(1000) if crc32(f"n{number}".encode()) % 64 == 43)
            await other.merge(neighbour, stages(stage("a")))
        assert redis_server.execute("ZCARD", f"{TAG}:index") == "1"
        assert redis_server.execute("ZCARD", f"{TAG}:due") == "1"
        anew = await store.merge("op", stages(stage("a")))
    assert first.revision is not None
    assert anew.revision is not None
    assert anew.revision.incarnation != first.revision.incarnation


async def test_update_time_follows_the_clock_that_is_right(redis_url: str) -> None:
    clock = ManualClock()
    async with open_redis(redis_url, clock=clock) as store:
        clock.advance(86_400)
        await store.merge("op", stages(stage("a")))
        clock.advance(-86_400)
        await store.merge("op", stages(stage("a", 1)))
        assert await store.latest(clock(), 9) == []
        assert len(await store.latest(clock() - 1_000, 9)) == 1


async def test_statistics_tell_merges_and_attempts(redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        await store.merge_many([MergeRequest("a", Update()), MergeRequest("", Update())])
        assert store.statistics() == RedisStatistics(merges=2, attempts=2, connections=1)
        assert "open" in repr(store)
    assert "closed" in repr(store)


async def test_many_tasks_merge_into_one_operation_once_each(redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        async with trio.open_nursery() as nursery:
            for number in range(40):
                fact = stages(stage("s", actor=Actor(str(number))))
                nursery.start_soon(store.merge, "op", fact)
        held = await known(store)
        statistics = store.statistics()
    assert len(held.document.stages) == held.revision.version == 40
    assert statistics.attempts == statistics.merges == 40
    assert statistics.connections == 1


async def test_rejected_update_says_what_is_wrong_with_it(redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        with pytest.raises(StoreRejected, match="name") as caught:
            await store.merge("op", Update(start=Start(name="", at=0)))
    assert isinstance(caught.value.__cause__, InvalidValue)
