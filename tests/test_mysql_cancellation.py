"""
Tests of cancelled calls on MySQL, and of closing: no answer goes to another caller, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import math
import random
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from timeline_trio import Config, WrongProcess, open_manager
from timeline_trio.store import Found, MergeRequest, NotFound, StoreUnavailable
from timeline_trio_mysql import open_mysql_on
from timeline_trio_mysql._bridge import open_bridge

from .case_support import interval
from .mysql_program import ENDS
from .mysql_support import (
    application_pool,
    eventually,
    locked,
    nursery_while_locked,
    opening,
    sessions,
    sockets_to,
    stored,
    update,
    waiting_for_lock,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from timeline_trio.model import Update
    from timeline_trio.testing.servers import MySQLServer
    from timeline_trio_mysql import MySQLStore

PROGRAM = Path(__file__).with_name("mysql_program.py")
PROMPT = 0.05  # seconds; with what a busy machine adds


@pytest.fixture
async def store(mysql_url: str) -> AsyncIterator[MySQLStore]:
    async with opening(mysql_url, pool_size=1) as opened:
        for opid in ("A", "B"):
            await opened.merge(opid, update(opid))
        yield opened


@pytest.mark.parametrize("owner", ["store", "application"])
async def test_cancelled_query_leaves_its_answer_to_nobody(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore, owner: str
) -> None:
    # C01
    async def check(tried: MySQLStore) -> None:
        await tried.read("A")
        with locked(mysql_server, mysql_url):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(tried.read, "A")
                    await waiting_for_lock(mysql_server, mysql_url, 1)
                    scope.cancel()
            assert tried.statistics().connections.discarded == 1
        document = await stored(tried, "B")
        assert (document.opid, set(document.stages)) == ("B", {("B", "")})
        statistics = tried.statistics().connections
        assert (statistics.open, statistics.idle, statistics.waiting) == (1, 1, 0)

    if owner == "store":
        await check(store)
    else:
        async with application_pool(mysql_url, maxsize=1) as pool, open_mysql_on(pool) as borrowing:
            await check(borrowing)


async def test_hundred_cancelled_reads_cost_the_pool_nothing(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore
) -> None:
    # C06
    chance = random.Random(6)  # noqa: S311 - no secret
    for _ in range(100):
        with trio.move_on_after(chance.uniform(0, 0.003)):
            await store.read("A")
    with trio.fail_after(1):
        assert (await stored(store, "B")).opid == "B"

    async def one_is_left() -> bool:
        return len(await sessions(mysql_server, mysql_url)) == 1

    await eventually(one_is_left)


class Fuzz:
    """
    Calls about a few operations, most of them cut short at random, whose answers are looked at.
    """

    def __init__(self, store: MySQLStore) -> None:
        self.opids = [f"op-{number}" for number in range(8)]
        self.right = 0
        self.cancelled = 0
        self._store = store

    async def run(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - no secret
        for _ in range(40):
            opid = chance.choice(self.opids)
            mine = update(opid, actor=str(seed), attributes_json=f'{{"n":{chance.randrange(99)}}}')
            call = chance.choice([self._read, self._mget, self._merge, self._merge_many])
            # One in five is left in peace: on a busy machine the others may all be cancelled.
            seconds = chance.uniform(0, 0.02) if chance.random() < 0.8 else math.inf
            with trio.move_on_after(seconds) as scope:
                await call(opid, mine)
                self.right += 1
            self.cancelled += scope.cancelled_caught

    async def _read(self, opid: str, _mine: Update) -> None:
        answer = await self._store.read(opid)
        assert isinstance(answer, Found)
        assert {key[0] for key in answer.document.stages} == {opid}

    async def _mget(self, opid: str, _mine: Update) -> None:
        answers = await self._store.mget([opid, "missing"])
        assert [answer.opid for answer in answers] == [opid]

    async def _merge(self, opid: str, mine: Update) -> None:
        merged = await self._store.merge(opid, mine)
        assert merged.document
        assert merged.document.opid == opid

    async def _merge_many(self, opid: str, mine: Update) -> None:
        answers = await self._store.merge_many([MergeRequest(opid, mine), MergeRequest(opid + "!", mine)])
        assert not any(isinstance(answer, Exception) for answer in answers)


@pytest.mark.parametrize("owner", ["store", "application"])
async def test_many_tasks_cancelled_anywhere_never_get_a_wrong_answer(
    mysql_server: MySQLServer, mysql_url: str, owner: str
) -> None:
    async def check(tried: MySQLStore) -> None:
        fuzz = Fuzz(tried)
        for opid in fuzz.opids:
            await tried.merge(opid, update(opid))
        async with trio.open_nursery() as nursery:
            for seed in range(24):
                nursery.start_soon(fuzz.run, seed)
        assert fuzz.cancelled > 100
        assert fuzz.right > 100
        for opid in fuzz.opids:
            assert {key[0] for key in (await stored(tried, opid)).stages} == {opid}

        async def no_more_than_the_pool() -> bool:
            return len(await sessions(mysql_server, mysql_url)) <= 4

        await eventually(no_more_than_the_pool)
        assert tried.statistics().connections.open <= 4
        assert tried.statistics().connections.waiting == 0

    if owner == "store":
        async with opening(mysql_url) as store:
            await check(store)
    else:
        async with application_pool(mysql_url) as pool, open_mysql_on(pool) as store:
            await check(store)

    async def all_gone() -> bool:
        return await sessions(mysql_server, mysql_url) == []

    await eventually(all_gone)
    assert sockets_to(mysql_server) == 0


async def test_calls_start_no_thread_and_are_left_at_once(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore
) -> None:
    # F12
    with locked(mysql_server, mysql_url):
        calls: list[Any] = [
            partial(store.read, "A"),
            partial(store.mget, ["A", "B"]),
            partial(store.latest, 0, 9),
            partial(store.merge, "A", update("c")),
            partial(store.merge_many, [MergeRequest("A", update("c")), MergeRequest("B", update("c"))]),
        ]
        threads = threading.enumerate()
        for call in calls:
            with trio.move_on_after(0.05) as scope:
                await call()
            assert scope.cancelled_caught
            assert trio.current_time() - scope.deadline < PROMPT
        with trio.move_on_after(0.05) as scope:  # in line for the only connection
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.read, "A")
                nursery.start_soon(store.read, "B")
        assert trio.current_time() - scope.deadline < PROMPT
        assert threading.enumerate() == threads


async def test_statement_that_was_not_sent_yet_when_its_caller_left_is_never_sent(
    mysql_server: MySQLServer, mysql_url: str, store: MySQLStore
) -> None:
    """
    A graceful close would keep megabytes for a server that does not read, and deliver them when it does.
    """
    mysql_server.freeze()
    try:
        with trio.move_on_after(0.3) as scope:
            await store.merge("A", update("late", error="x" * 12_000_000))
        assert scope.cancelled_caught
        assert trio.current_time() - scope.deadline < 0.5
        await wait_all_tasks_blocked()
        assert sockets_to(mysql_server) == 0
    finally:
        mysql_server.thaw()
    assert set((await stored(store, "A")).stages) == {("A", "")}

    async def one_is_left() -> bool:
        return len(await sessions(mysql_server, mysql_url)) == 1

    await eventually(one_is_left)
    assert set((await stored(store, "A")).stages) == {("A", "")}


async def test_connecting_to_a_frozen_server_ends_in_time(mysql_server: MySQLServer, mysql_url: str) -> None:
    """
    The kernel accepts the connection; it is the login that nobody answers.
    """
    mysql_server.freeze()
    try:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"did not accept a connection within 0\.2 s"):
            async with opening(mysql_url, connect_timeout=0.2):
                pass
        assert time.monotonic() - started < 1
        with trio.move_on_after(0.1) as scope:
            async with opening(mysql_url):
                pass
        assert scope.cancelled_caught
        assert sockets_to(mysql_server) == 0
    finally:
        mysql_server.thaw()


async def test_closing_under_cancellation_leaves_no_connection(mysql_server: MySQLServer, mysql_url: str) -> None:
    # C03
    async with opening(mysql_url) as store:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(store.create_schema)
        assert sockets_to(mysql_server) > 0
        mysql_server.freeze()
        try:
            with trio.move_on_after(0.1):
                await store.aclose()
            await store.aclose()
            await wait_all_tasks_blocked()
            assert sockets_to(mysql_server) == 0
        finally:
            mysql_server.thaw()


async def test_leaving_while_the_server_hangs_neither_waits_nor_complains(
    mysql_server: MySQLServer, mysql_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # B11
    async with opening(mysql_url):
        pass
    started = time.monotonic()
    with locked(mysql_server, mysql_url):
        with trio.move_on_after(1) as scope:
            async with opening(mysql_url) as store, open_manager(store, drain_timeout=0.1) as manager:
                manager.record("op", interval("s"))
                await manager.read("op", fresh=True)
        assert scope.cancelled_caught
        assert time.monotonic() - started < 2.5
    assert sockets_to(mysql_server) == 0
    assert capfd.readouterr().err == ""


async def test_call_that_outlives_its_store_is_told_so(mysql_server: MySQLServer, mysql_url: str) -> None:
    told: list[Exception] = []

    async def read(store: MySQLStore) -> None:
        try:
            await store.read("op")
        except StoreUnavailable as error:
            told.append(error)

    async with opening(mysql_url):
        pass
    async with nursery_while_locked(mysql_server, mysql_url) as outer:
        with trio.fail_after(2):
            async with opening(mysql_url, create=False, pool_size=2) as store:
                for _ in range(3):
                    outer.start_soon(read, store)  # noqa: ASYNC111 - that is the case
                await waiting_for_lock(mysql_server, mysql_url, 2)
        await wait_all_tasks_blocked()
        assert sockets_to(mysql_server) == 0
    assert len(told) == 3


async def test_forked_child_is_refused(mysql_url: str) -> None:
    import os  # noqa: PLC0415 - for this test alone

    async with opening(mysql_url) as store, application_pool(mysql_url) as pool, open_mysql_on(pool) as borrowing:
        for each in (store, borrowing):
            await each.merge("op", update())
            child = os.fork()
            if not child:
                code = 1
                try:
                    each.read("op").send(None)
                except WrongProcess:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 - it ends at once
            await each.read("op")


def test_program_leaves_no_word_behind_however_it_ends(mysql_url: str) -> None:
    # C05
    for _ in range(4):
        started = time.monotonic()
        programs = {
            end: subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-W", "error", PROGRAM, mysql_url, end],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for end in ENDS
        }
        for end, program in programs.items():
            printed, complaints = program.communicate(timeout=30)
            assert (end, program.returncode, printed, complaints) == (end, 0, "", "")
        assert time.monotonic() - started < 2 * len(ENDS)


async def test_missing_operation_costs_no_connection(store: MySQLStore) -> None:
    with pytest.raises(NotFound):
        await store.read("missing")
    assert store.statistics().connections.discarded == 0


async def test_manager_closes_in_time_when_the_server_hangs(mysql_server: MySQLServer, mysql_url: str) -> None:
    async with opening(mysql_url) as store:
        await store.merge("op", update())
        mysql_server.freeze()
        try:
            lost: list[Any] = []
            config = Config(export_timeout=0.3, on_error=lambda opid, error: lost.append((opid, error)))
            with trio.move_on_after(0.2) as scope:
                async with open_manager(store, config=config, drain_timeout=0.5) as manager:
                    manager.record("op", interval("a"))
                    await manager.flush("op")
            assert scope.cancelled_caught
        finally:
            mysql_server.thaw()
    assert sockets_to(mysql_server) == 0


async def test_failure_on_the_event_loop_that_is_nobodys_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise KeyError("nobody's")

    async def fail_later() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)

    async with open_bridge() as bridge:
        await bridge.run(fail_later)
        await bridge.run(fail_later)
        await bridge.aclose()
        with pytest.raises(StoreUnavailable, match="closed"):
            await bridge.run(fail_later)
    assert [(record.name, record.levelname) for record in caplog.records] == [("timeline_trio_mysql", "ERROR")] * 2
