"""
A program that uses a MySQL store and ends in one way or another: run by the tests, which look at what it complains of.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import trio

from timeline_trio.model import Stage, Update
from timeline_trio.store import StoreUnavailable
from timeline_trio_mysql import open_store

if TYPE_CHECKING:
    from timeline_trio_mysql import MySQLStore

UPDATE = Update(stages=(Stage(id="s", name="work", started_at=0),))


async def leave(store: MySQLStore) -> None:
    """
    End as it should be.
    """
    await store.read("op")


async def fail(_store: MySQLStore) -> None:
    """
    End by an error of our own.
    """
    await trio.lowlevel.checkpoint()
    raise KeyError("ours")


async def end_the_program(_store: MySQLStore) -> None:
    """
    End by an exit from inside.
    """
    await trio.lowlevel.checkpoint()
    sys.exit(0)


async def cancel(store: MySQLStore) -> None:
    """
    End while the server works for us.
    """
    with trio.move_on_after(0.05):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(read_for_ever, store)


async def read_for_ever(store: MySQLStore) -> None:
    while True:
        await store.latest(0, 9)


async def read_until_closed(store: MySQLStore) -> None:
    """
    Go on using the store while another task closes it.
    """
    try:
        await read_for_ever(store)
    except StoreUnavailable:
        return


ENDS: dict[str, Any] = {end.__name__: end for end in (leave, fail, end_the_program, cancel, read_until_closed)}


async def main(url: str, end: str) -> None:
    async with trio.open_nursery() as outer, open_store(url) as store:
        await store.merge("op", UPDATE)
        if end == "read_until_closed":
            for _ in range(6):
                outer.start_soon(read_until_closed, store)  # noqa: ASYNC111 - on purpose
            await trio.sleep(0.05)
        else:
            await ENDS[end](store)


def run(url: str, end: str) -> None:
    try:
        trio.run(main, url, end)
    except BaseExceptionGroup as group:
        if group.split((KeyError, SystemExit))[1] is not None:
            raise
        if end == "fail" and repr(group) != "ExceptionGroup('Exceptions from Trio nursery', [KeyError('ours')])":
            raise


if __name__ == "__main__":
    run(*sys.argv[1:])
