"""
The MySQL store keeps the contract, on connections of its own and on the application's.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from timeline_trio.store import MergesMany, Store
from timeline_trio.testing import FaultyStore, ManualClock, check_store
from timeline_trio_mysql import MySQLStore, open_mysql_on

from .mysql_support import application_pool, ask, opening

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from timeline_trio.testing.servers import MySQLServer

FOUND_ROWS = 2  # the client flag


def emptied(
    open_one: Callable[[], AbstractAsyncContextManager[MySQLStore]], server: MySQLServer, url: str
) -> Callable[[], AbstractAsyncContextManager[Store]]:
    """
    Open stores whose table is empty each time.
    """
    numbers = count()

    @asynccontextmanager
    async def open_empty() -> AsyncGenerator[Store, None]:
        async with open_one() as store:
            if next(numbers):
                await ask(server, "DELETE FROM timelines", url)
            yield store

    return open_empty


def deleting(server: MySQLServer, url: str) -> Callable[[Store, str], Any]:
    async def delete(_store: Store, opid: str) -> None:
        await ask(server, f"DELETE FROM timelines WHERE id = '{opid}'", url)  # noqa: S608

    return delete


async def test_store_keeps_the_contract(mysql_server: MySQLServer, mysql_url: str) -> None:
    clock = ManualClock()
    make = emptied(lambda: opening(mysql_url, clock=clock), mysql_server, mysql_url)
    await check_store(make, clock=clock, delete=deleting(mysql_server, mysql_url))


@pytest.mark.parametrize(
    "options",
    [
        {"autocommit": False, "init_command": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"},
        {"autocommit": True, "client_flag": FOUND_ROWS, "stmt_cache_size": 16},
    ],
    ids=["autocommit off", "found rows"],
)
async def test_store_on_the_applications_pool_keeps_the_contract(
    mysql_server: MySQLServer, mysql_url: str, options: dict[str, Any]
) -> None:
    clock = ManualClock()
    async with application_pool(mysql_url, **options) as pool:
        make = emptied(lambda: open_mysql_on(pool, clock=clock), mysql_server, mysql_url)
        await check_store(make, clock=clock, delete=deleting(mysql_server, mysql_url))


async def test_store_behind_a_faulty_one_without_faults_keeps_the_contract(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    @asynccontextmanager
    async def open_faulty() -> AsyncGenerator[Store, None]:
        async with emptied(lambda: opening(mysql_url), mysql_server, mysql_url)() as store:
            await ask(mysql_server, "DELETE FROM timelines", mysql_url)
            assert isinstance(store, MergesMany)
            faulty = FaultyStore(store)
            faulty.strip_documents = True
            yield faulty

    await check_store(open_faulty)
