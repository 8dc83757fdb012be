"""
Tests of what a MySQL store does not trust: an application's sessions, foreign indexes, and answers that are none.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from timeline_trio.store import Merged, MergeRequest, StoreRejected, StoreUnavailable
from timeline_trio.testing import ManualClock
from timeline_trio_mysql import open_mysql, open_mysql_on

from .mysql_support import address_of, application_pool, ask, event_loop, opening, stored, update

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from timeline_trio.testing.servers import MySQLServer

SECOND = 10**9  # nanoseconds
GARBAGE = [b"", b"\0" * 200, b"\5\0\0\0\x09abcd", b"\5\0\0\0\x0a5.5\0", b"-ERR unknown command\r\n", b"SSH-2.0-x\r\n"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"charset": "latin1"}, r'character set latin1, .*charset="utf8mb4"'),
        ({"charset": "utf8"}, r'character set utf8\w*, .*charset="utf8mb4"'),
        ({"charset": "latin1", "init_command": "SET NAMES utf8mb4"}, "character set latin1"),
        ({"init_command": "SET NAMES latin1"}, "character set latin1"),
        ({"init_command": "SET SESSION character_set_results = latin1"}, "character set latin1"),
        ({"init_command": "SET SESSION sql_mode = ''"}, "not strict, .*init_command="),
        (
            {"init_command": "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"},
            "READ UNCOMMITTED, .*init_command=",
        ),
    ],
)
@pytest.mark.parametrize("autocommit", [1, 0])
async def test_sessions_of_the_application_that_would_ruin_documents_are_refused_with_what_to_do(
    mysql_url: str, options: dict[str, Any], problem: str, autocommit: int
) -> None:
    async with application_pool(mysql_url, autocommit=bool(autocommit), **options) as pool:
        async with open_mysql_on(pool, create=False) as store:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=problem):
                    await store.merge("op", update())
        assert pool.freesize == pool.size == 1
        connection = await trio_result(pool.acquire)
        assert connection.get_autocommit() is bool(autocommit)
        pool.release(connection)


async def trio_result(function: Any) -> Any:
    async with event_loop() as run:
        return await run(function)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_other_isolation_levels_of_the_application_are_served(mysql_url: str, level: str) -> None:
    command = f"SET SESSION TRANSACTION ISOLATION LEVEL {level}"
    async with application_pool(mysql_url, init_command=command) as pool, open_mysql_on(pool) as store:
        await store.merge("op", update("\U0001f600"))
        assert set((await stored(store)).stages) == {("\U0001f600", "")}


async def test_pool_that_was_closed_by_the_application_is_told_of(mysql_url: str) -> None:
    async with application_pool(mysql_url) as pool, open_mysql_on(pool) as store:
        await store.merge("op", update())
        pool.close()
        with pytest.raises(StoreUnavailable, match="was closed by the application; close it after the store"):
            await store.merge("op", update("b"))


async def test_event_loop_that_the_application_has_ended_is_told_of(mysql_url: str) -> None:
    opened = application_pool(mysql_url)
    async with open_mysql_on(await opened.__aenter__()) as store:
        await store.merge("op", update())
        await opened.__aexit__(None, None, None)
        with pytest.raises(StoreUnavailable, match="event loop that has ended; keep the loop open"):
            await store.merge("op", update("b"))


@pytest.mark.parametrize("greeting", GARBAGE)
async def test_server_that_speaks_another_protocol_is_told_of(greeting: bytes) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(greeting)
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        address = address_of(f"mysql://me@127.0.0.1:{listener.socket.getsockname()[1]}/ops")
        with pytest.raises(StoreUnavailable, match=r"check |closed the connection") as caught:
            async with open_mysql(address):
                pass
        assert caught.value.__cause__ is not None
        nursery.cancel_scope.cancel()


class Interposed:
    """
    What stands between a store and its server, and may put something else in the place of an answer.
    """

    url: str

    def __init__(self, url: str) -> None:
        self._address = address_of(url)
        self.instead = b""  # of the next answer

    async def serve(self, stream: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream(self._address.host, self._address.port)
        async with stream, server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_on, stream, server, nursery)
            async for data in server:
                given, self.instead = self.instead or data, b""
                await stream.send_all(given)
            nursery.cancel_scope.cancel()

    async def _pass_on(self, stream: trio.SocketStream, server: trio.SocketStream, nursery: trio.Nursery) -> None:
        async for data in stream:
            await server.send_all(data)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def interposed(url: str) -> AsyncGenerator[Interposed, None]:
    between = Interposed(url)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, between.serve, 0, host="127.0.0.1"))
        between.url = url.replace(str(address_of(url).port), str(listener.socket.getsockname()[1]))
        yield between
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("whose", ["ours", "the application's"])
async def test_answer_that_the_driver_fails_at_costs_its_connection_and_no_other_call(
    mysql_url: str, whose: str
) -> None:
    async def check(store: Any) -> None:
        await store.merge("op", update("a"))
        for number, call in enumerate((partial(store.merge, "op", update("b")), partial(store.read, "op")), 1):
            between.instead = b"\1\0\0\1\xfb"  # a request for a file that nobody named
            with (
                trio.fail_after(5),
                pytest.raises(StoreUnavailable, match="gave what the driver does not understand") as caught,
            ):
                await call()
            assert isinstance(caught.value.__cause__, TypeError)
            assert store.statistics().connections.discarded == number
            await store.merge("op", update(f"after-{number}"))
        assert len((await stored(store)).stages) >= 3

    async with interposed(mysql_url) as between:
        if whose == "ours":
            async with opening(between.url, pool_size=1) as store:
                await check(store)
        else:
            async with application_pool(between.url, maxsize=1, autocommit=True) as pool, open_mysql_on(pool) as store:
                await check(store)


async def test_unique_index_made_meanwhile_refuses_its_operations_and_stops_nobody(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    clock = ManualClock(1_700_000_000 * SECOND)
    async with opening(mysql_url, clock=clock) as store:
        await store.merge("a", update())
        clock.advance(1)
        await store.merge("b", update())
        await ask(mysql_server, "ALTER TABLE timelines ADD UNIQUE once (updated_at)", mysql_url)
        with trio.fail_after(5):
            with pytest.raises(StoreRejected, match="unique index 'once' of the table, which is not ours"):
                await store.merge("new", update())
            with pytest.raises(StoreRejected, match="'once'"):
                await store.merge("a", update("again"))
            answers = await store.merge_many([MergeRequest(opid, update("t")) for opid in ("a", "new")])
            assert [type(answer) for answer in answers] == [StoreRejected, StoreRejected]
            clock.advance(1)
            assert isinstance(await store.merge("a", update("again")), Merged)
