"""
A program that gets Ctrl-C in the very middle of the event loop's own code: run by the tests.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Any

import trio

from timeline_trio.model import Stage, Update
from timeline_trio_mysql import open_store

LOOP: Any = import_module("trio_asyncio._base").BaseTrioEventLoop


async def merge_until_interrupted(url: str, turn: int) -> None:
    """
    Merge for ever, and raise the signal in the n-th turn of the loop, which may be while the store is opened.
    """
    real, turns = LOOP._main_loop_one, 0  # noqa: SLF001 - the moment is to be inside of it

    async def one_turn(loop: object, *arguments: object, **options: object) -> object:
        nonlocal turns
        result = await real(loop, *arguments, **options)
        turns += 1
        if turns == turn:
            signal.raise_signal(signal.SIGINT)
        return result

    LOOP._main_loop_one = one_turn  # noqa: SLF001
    async with open_store(url) as store:
        while True:
            await store.merge("op", Update(stages=(Stage(id="s", name="work", started_at=turns),)))


if __name__ == "__main__":
    try:
        trio.run(merge_until_interrupted, sys.argv[1], int(sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(3)
