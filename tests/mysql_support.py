"""
What the tests of the MySQL store share.
"""

from __future__ import annotations

import subprocess
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncmy
import trio

from timeline_trio.model import Actor, Stage, Update
from timeline_trio.store import Found
from timeline_trio_mysql import MySQLAddress, open_mysql

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from timeline_trio.model import Document
    from timeline_trio.store import Store
    from timeline_trio.testing.servers import MySQLServer
    from timeline_trio_mysql import MySQLStore


def address_of(url: str, **changes: Any) -> MySQLAddress:
    """
    Return the address of a database of a test's server.
    """
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    given = {"database": parts.path[1:], "user": parts.username, "host": parts.hostname, "port": parts.port}
    return MySQLAddress(**(given | changes))


def opening(url: str, **options: Any) -> AbstractAsyncContextManager[MySQLStore]:
    """
    Open a store at a URL, with any options of `open_mysql`.
    """
    return open_mysql(address_of(url), **options)


@asynccontextmanager
async def event_loop() -> AsyncGenerator[Callable[[Callable[[], Any]], Awaitable[Any]], None]:
    """
    An event loop of the application's, as what runs a function of asyncio's on it.
    """
    # As a program must that runs asyncio as well: not before it is needed.
    trio_asyncio: Any = import_module("trio_asyncio")
    async with trio_asyncio.open_loop() as loop:

        async def run(function: Callable[[], Any]) -> Any:
            return await trio_asyncio.aio_as_trio(function, loop=loop)()

        yield run


@asynccontextmanager
async def application_pool(url: str, **options: Any) -> AsyncGenerator[Any, None]:
    """
    A pool as an application makes it, on an event loop that it opens; closed before that one is.
    """
    address = address_of(url)
    async with event_loop() as run:
        given: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "database": address.database,
        }
        pool = await run(partial(asyncmy.create_pool, **({"minsize": 0, "maxsize": 4} | given | options)))
        try:
            yield pool
        finally:
            pool.close()
            await run(pool.wait_closed)  # noqa: ASYNC102 - the driver closes without waiting for the server


def update(stage_id: str = "s", *, actor: str = "", attributes_json: str = "", error: str = "") -> Update:
    """
    Return an update of one stage.
    """
    stage = Stage(
        id=stage_id, name="work", started_at=0, actor=Actor(id=actor), attributes_json=attributes_json, error=error
    )
    return Update(stages=(stage,))


async def stored(store: Store, opid: str = "op") -> Document:
    """
    Return what a store holds of an operation.
    """
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return answer.document


async def ask(server: MySQLServer, sql: str, url: str = "") -> list[list[str]]:
    """
    Run statements as the server's administrator, beside the store.
    """
    return await trio.to_thread.run_sync(partial(server.execute, sql, database=url))


async def sessions(server: MySQLServer, url: str) -> list[str]:
    """
    Return the ids of the sessions in a database.
    """
    database = urlsplit(url).path[1:]
    rows = await ask(server, f"SELECT id FROM information_schema.processlist WHERE db = '{database}'")  # noqa: S608
    return [id_ for (id_,) in rows]


def sockets_to(server: MySQLServer) -> int:
    """
    Return how many TCP connections this process has to a server.
    """
    inodes = set[str]()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == server.port:
            inodes.add(f"socket:[{fields[9]}]")
    ours = set[str]()  # a connection may have several descriptors
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # a thread's, closed meanwhile
            ours.add(str(link.readlink()))
    return len(ours & inodes)


@contextmanager
def setting(server: MySQLServer, name: str, value: object) -> Iterator[None]:
    """
    A global variable of the server, changed for the block.
    """
    ((before,),) = server.execute(f"SELECT @@GLOBAL.{name}")
    server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = {before}")


@contextmanager
def account(server: MySQLServer, name: str, options: str = "", *, may: str = "") -> Iterator[None]:
    """
    An account, for the block.
    """
    server.execute(f"CREATE USER {name}@'127.0.0.1' {options}")
    try:
        if may:
            server.execute(f"GRANT {may} TO {name}@'127.0.0.1'")
        yield
    finally:
        server.execute(f"DROP USER {name}@'127.0.0.1'")


@contextmanager
def locked(server: MySQLServer, url: str) -> Iterator[None]:
    """
    A table that another session has locked: each statement on it hangs in the server.
    """
    command = server._client_command(url.rpartition("/")[2])  # noqa: SLF001 - its session has to last
    with subprocess.Popen(  # noqa: S603 - the server's own client
        [*command, "--unbuffered"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin
        assert client.stdout
        client.stdin.write("LOCK TABLES timelines WRITE; SELECT 'locked';\n")
        client.stdin.flush()
        assert client.stdout.readline() == "locked\n"
        yield


@asynccontextmanager
async def nursery_while_locked(server: MySQLServer, url: str) -> AsyncGenerator[trio.Nursery, None]:
    """
    A nursery whose tasks find the table locked until the block ends.
    """
    async with trio.open_nursery() as nursery:
        with locked(server, url):
            yield nursery


async def waiting_for_lock(server: MySQLServer, url: str, how_many: int) -> list[str]:
    """
    Wait until that many statements hang in a database of the server, and return the ids of their sessions.
    """
    database = urlsplit(url).path[1:]
    asked = f"SELECT id FROM information_schema.processlist WHERE db = '{database}' AND state LIKE '%lock%'"  # noqa: S608
    found: list[list[str]] = []

    async def hang() -> bool:
        found[:] = await ask(server, asked)
        return len(found) == how_many

    await eventually(hang)
    return [id_ for (id_,) in found]


async def eventually(condition: Callable[[], Any], *, within: float = 10.0, pause: float = 0.01) -> None:
    """
    Wait until something holds that nobody tells of, in a few seconds at the most.
    """
    with trio.fail_after(within):
        while True:
            held = condition()
            if hasattr(held, "__await__"):
                held = await held
            if held:
                return
            await trio.sleep(pause)
