"""
Tests of hearing what others commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
import trio

from timeline_trio import Config, open_manager
from timeline_trio.store import (
    Change,
    Known,
    MergeRequest,
    MergesMany,
    Revision,
    StoreUnavailable,
    WatchesChanges,
)
from timeline_trio_postgres import PostgresStore, open_postgres
from timeline_trio_postgres._changes import Feed
from timeline_trio_postgres._listener import listening
from timeline_trio_postgres._options import parse_url

from .case_support import interval
from .postgres_support import connected, execute, nothing_left, rows, sessions, update, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from timeline_trio.testing.servers import PostgresServer


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with open_postgres(postgres_url) as opened:
        yield opened


async def take(changes: AsyncIterator[Change], how_many: int) -> list[Change]:
    heard: list[Change] = []
    while len(heard) < how_many:
        with trio.fail_after(10):
            heard.append(await anext(changes))
    return heard


async def test_commits_of_everybody_are_heard_with_their_revisions(store: PostgresStore, postgres_url: str) -> None:
    assert isinstance(store, WatchesChanges)
    async with open_postgres(postgres_url) as other, store.watch() as changes:
        expected: list[Change] = []
        for number, writer in enumerate((store, other, store)):
            merged = await writer.merge("op \U0001f600" * 20, update(str(number)))
            assert merged.revision is not None
            expected += [Change("op \U0001f600" * 20, merged.revision)]
            assert await take(changes, 1) == expected[-1:]
        assert [change.revision.version for change in expected] == [1, 2, 3]
        assert store.statistics().watching == 1
        assert other.statistics().watching == 0
    assert store.statistics().watching == 0


async def test_only_what_changed_is_told_once_for_each_operation_of_a_round(store: PostgresStore) -> None:
    await store.merge("old", update())
    async with store.watch() as changes:
        assert not (await store.merge("old", update())).changed
        await store.merge_many([MergeRequest(opid, update()) for opid in ("c", "old", "a", "b")])
        heard = await take(changes, 3)
        assert sorted(change.opid for change in heard) == ["a", "b", "c"]
        await store.merge("old", update("t"))
        assert [change.opid for change in await take(changes, 1)] == ["old"]


async def test_merge_with_the_right_base_is_told(store: PostgresStore) -> None:
    merged = await store.merge("op", update())
    assert merged.revision is not None
    assert merged.document is not None
    async with store.watch() as changes:
        await store.merge("op", update("t"), Known(merged.revision, merged.document))
        assert await take(changes, 1) == [Change("op", Revision(merged.revision.incarnation, 2))]


async def test_nothing_is_told_without_the_option_and_the_store_has_no_watch(postgres_url: str) -> None:
    async with open_postgres(postgres_url) as hearing, open_postgres(postgres_url, notify=False) as silent:
        assert not isinstance(silent, WatchesChanges)
        assert isinstance(silent, MergesMany)
        assert isinstance(hearing, WatchesChanges)
        async with hearing.watch() as changes:
            await silent.merge("op", update())
            await hearing.merge("other", update())
            assert [change.opid for change in await take(changes, 1)] == ["other"]


async def test_tables_of_two_schemas_do_not_mix(postgres_url: str) -> None:
    long = "l" * 63
    execute(postgres_url, "CREATE SCHEMA one", f"CREATE SCHEMA {long}")
    async with (
        open_postgres(postgres_url, schema="one") as one,
        open_postgres(postgres_url, schema=long) as two,
        one.watch() as first,
        two.watch() as second,
    ):
        await two.merge("two", update())
        await one.merge("one", update())
        assert [change.opid for change in await take(first, 1)] == ["one"]
        assert [change.opid for change in await take(second, 1)] == ["two"]


async def test_notifications_of_others_on_the_channel_are_passed_over(store: PostgresStore, postgres_url: str) -> None:
    async with store.watch() as changes:
        for payload in ("", "hello", "1 2", "x y z", "\U0001f600"):
            rows(postgres_url, "SELECT pg_notify('timelines:public', %s)", payload)
        await store.merge("op", update())
        assert [change.opid for change in await take(changes, 1)] == ["op"]


async def test_notification_that_fails_does_not_fail_the_merge(store: PostgresStore, postgres_url: str) -> None:
    execute(
        postgres_url,
        "CREATE ROLE quiet LOGIN",
        "GRANT ALL ON timelines TO quiet",
        "REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC",
    )
    try:
        async with open_postgres(postgres_url.replace("postgres@", "quiet@")) as muted, store.watch() as changes:
            await muted.merge("op", update())
            await muted.merge("op", update("t"))
            assert muted.statistics().pool.discarded == 0
            await store.merge("marker", update())
            assert [change.opid for change in await take(changes, 1)] == ["marker"]
    finally:
        execute(postgres_url, "DROP OWNED BY quiet", "DROP ROLE quiet")
    assert len(await store.mget(["op"])) == 1


async def test_cancelled_step_loses_nothing(store: PostgresStore) -> None:
    async with store.watch() as changes:
        with trio.move_on_after(0.01) as scope:
            await anext(changes)
        assert scope.cancelled_caught
        await store.merge("a", update())
        await store.merge("b", update())
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(changes)
        assert scope.cancelled_caught
        assert [change.opid for change in await take(changes, 2)] == ["a", "b"]


async def test_slow_reader_is_told_the_latest_of_each_operation_and_the_oldest_are_dropped() -> None:
    feed = Feed("db")
    for number in range(3_000):
        feed.offer(Change(str(number), Revision(1, 1)))
    feed.offer(Change("2999", Revision(1, 2)))
    feed.end()
    assert [change async for change in feed] == []
    feed = Feed("db")
    for number in range(3_000):
        feed.offer(Change(str(number), Revision(1, 1)))
        feed.offer(Change(str(number), Revision(1, 2)))
    heard = await take(feed, 1_024)
    assert heard[0].opid == str(3_000 - 1_024)
    assert heard[-1] == Change("2999", Revision(1, 2))


async def test_reader_who_is_away_holds_up_nobody(store: PostgresStore, postgres_url: str) -> None:
    async with store.watch() as changes:
        requests = [MergeRequest(f"op-{number}", update()) for number in range(2_000)]
        for start in range(0, 2_000, 500):
            await store.merge_many(requests[start : start + 500])
        await wait_until(lambda: rows(postgres_url, "SELECT pg_notification_queue_usage() < 0.0001") == [(True,)])
        assert (await take(changes, 1))[0].opid != "op-0"


async def test_block_is_transparent_for_what_its_body_raises(store: PostgresStore) -> None:
    for error in (KeyError("x"), ExceptionGroup("g", [ValueError()]), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            async with store.watch():
                raise error
        assert caught.value is error
    with trio.CancelScope() as scope:
        async with store.watch() as changes:
            scope.cancel()
            await anext(changes)
    assert scope.cancelled_caught
    assert store.statistics().watching == 0


async def test_iterator_ends_with_the_block(store: PostgresStore) -> None:
    async with store.watch() as changes:
        await store.merge("op", update())
    assert [change async for change in changes] == []


async def test_reader_is_told_when_the_connection_is_lost_and_may_enter_anew(
    store: PostgresStore, postgres_url: str
) -> None:
    with connected(postgres_url) as connection:
        async with store.watch() as changes:
            listening_now = "query LIKE 'LISTEN%'"
            assert sessions(connection, listening_now) == 1
            await store.merge("op", update())
            (heard,) = await take(changes, 1)
            assert heard.opid == "op"
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
            for _ in range(2):
                with trio.fail_after(10), pytest.raises(StoreUnavailable, match="tells of no more changes") as caught:
                    await anext(changes)
                assert isinstance(caught.value.__cause__, psycopg.OperationalError)
        async with store.watch() as changes:
            await store.merge("op", update("t"))
            assert [change.revision.version for change in await take(changes, 1)] == [2]


async def test_reader_is_told_when_the_server_is_killed(store: PostgresStore, postgres: PostgresServer) -> None:
    async with store.watch() as changes:
        await trio.to_thread.run_sync(postgres.kill)
        with trio.fail_after(10), pytest.raises(StoreUnavailable):
            await anext(changes)
    with pytest.raises(StoreUnavailable):
        async with store.watch():
            pytest.fail("it opened")
    await trio.to_thread.run_sync(postgres.restart)
    async with store.watch() as changes:
        await store.merge("op", update())
        assert len(await take(changes, 1)) == 1


async def test_reader_is_told_when_a_silent_server_does_not_answer(postgres_url: str, postgres: PostgresServer) -> None:
    options = parse_url(f"{postgres_url}?connect_timeout=0.3")
    async with listening(options, "x", quiet=0.05) as changes:
        await trio.sleep(0.5)  # it is asked some times, and answers
        rows(postgres_url, "SELECT pg_notify('x', '1 2 op')")
        assert await take(changes, 1) == [Change("op", Revision(1, 2))]
        postgres.freeze()
        try:
            with trio.fail_after(10), pytest.raises(StoreUnavailable, match="no more changes") as caught:
                await anext(changes)
            assert isinstance(caught.value.__cause__, trio.TooSlowError)
            with pytest.raises(StoreUnavailable, match=r"within 0.3 s"):
                async with listening(options, "x"):
                    pytest.fail("it opened")
        finally:
            postgres.thaw()


async def test_watching_needs_a_table(postgres_url: str) -> None:
    async with open_postgres(postgres_url, create=False) as store:
        with pytest.raises(StoreUnavailable, match="no table 'timelines'"):
            async with store.watch():
                pytest.fail("it opened")


async def test_manager_hears_of_another_ones_save_without_polling(postgres_url: str) -> None:
    far = Config(flush_interval=3_600, load_interval=3_600)
    async with (
        open_postgres(postgres_url) as one,
        open_postgres(postgres_url) as two,
        open_manager(one, config=far) as writer,
        open_manager(two, config=far) as reader,
    ):
        writer.record("op", interval("a"))
        await writer.flush("op")
        assert len((await reader.read("op")).stages) == 1
        await wait_until(lambda: two.statistics().watching == 1)
        async with reader.watch("op") as snapshots:
            for count in range(2, 6):
                writer.record("op", interval(str(count)))
                await writer.flush("op")
                with trio.fail_after(10):
                    while len((await anext(snapshots)).stages) < count:
                        pass
