"""
What tests of the PostgreSQL store share.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import trio

from timeline_trio.model import Stage, Update
from timeline_trio.store import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from timeline_trio.store import Store


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    """
    Connect to a database beside the store.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def rows(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """
    Run one statement beside the store, and return its rows.
    """
    with connected(url) as connection:
        cursor = connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def execute(url: str, *statements: str) -> None:
    """
    Run statements beside the store.
    """
    with connected(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def sessions(connection: psycopg.Connection, condition: str = "true") -> int:
    """
    Return how many sessions others have in this database.
    """
    row = connection.execute(f"{_SESSIONS} AND {condition}".encode()).fetchone()
    assert row is not None
    return int(row[0])


_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND application_name = 'timeline-trio'"
)
WAITING = "wait_event_type = 'Lock'"


@contextmanager
def locked_table(url: str) -> Iterator[psycopg.Connection]:
    """
    Hold up whoever reads or writes the table, until the end of the block.
    """
    with psycopg.connect(url, autocommit=False) as connection:
        connection.execute("LOCK TABLE timelines IN ACCESS EXCLUSIVE MODE")
        yield connection


def update(stage_id: str = "s", name: str = "work", attributes_json: str = "") -> Update:
    """
    Return an update of one stage.
    """
    return Update(stages=(Stage(id=stage_id, name=name, started_at=0, attributes_json=attributes_json),))


async def name_of(store: Store, opid: str = "op") -> str:
    """
    Return the name of the stage that `update` makes.
    """
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return answer.document.stages["s", ""].name


async def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    """
    Wait for something that a server or a thread does, which tells nobody.
    """
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.005)


async def wait_waiting(connection: psycopg.Connection, how_many: int = 1) -> None:
    """
    Wait until so many sessions of stores wait for a lock.
    """
    await wait_until(lambda: sessions(connection, WAITING) == how_many)


def sockets() -> set[str]:
    """
    Return the sockets that this process has open.
    """
    found: set[str] = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # the one that lists them
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def busy_threads() -> list[str]:
    """
    Return the threads that work for a store; Trio keeps idle ones for a while.
    """
    return [thread.name for thread in threading.enumerate() if "timeline_trio_postgres" in thread.name]


@contextmanager
def nothing_left() -> Iterator[None]:
    """
    Assert that the block leaves no socket and no thread behind.
    """
    before = sockets()
    yield
    assert sockets() <= before
    assert busy_threads() == []
