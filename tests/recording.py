"""
What tests of recording and of the background tasks need.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import trio

from timeline_trio import Actor, Config, Stage, open_manager
from timeline_trio.store import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from timeline_trio import Manager
    from timeline_trio.model import Document
    from timeline_trio.store import Store
    from timeline_trio.testing import FaultyStore

SECOND = 10**9
NEW_YEAR = 1_767_225_600 * SECOND  # 2026, in nanoseconds since the epoch


def virtual_wall() -> int:
    """
    Return wall time that goes with Trio's virtual clock.
    """
    return NEW_YEAR + round(trio.current_time() * SECOND)


async def stored(store: Store, opid: str = "op") -> Document:
    """
    Return what a store holds of an operation.
    """
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return answer.document


@final
class Errors:
    """
    An `on_error` that remembers what it was told, and wakes who waits for it.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, Exception]] = []
        self._arrived = trio.Event()

    def __call__(self, opid: str, error: Exception) -> None:
        self.told.append((opid, error))
        self._arrived.set()
        self._arrived = trio.Event()

    def of(self, opid: str) -> list[Exception]:
        """
        Return what was told of one operation.
        """
        return [error for told, error in self.told if told == opid]

    @property
    def kinds(self) -> list[type[Exception]]:
        """
        Return the types of all errors, in order.
        """
        return [type(error) for _, error in self.told]

    async def wait_for(self, count: int) -> None:
        """
        Wait until so many errors were told.
        """
        while len(self.told) < count:
            await self._arrived.wait()


def completed(name: str = "work", *, id: str = "s", start: int = 1, finish: int = 2) -> Stage:  # noqa: A002
    """
    Return a finished interval, some nanoseconds after the new year.
    """
    return Stage.completed(name, NEW_YEAR + start, NEW_YEAR + finish, id=id)


def quiet(**options: object) -> Config:
    """
    Return options under which nothing is saved or loaded by itself for an hour, unless they say otherwise.
    """
    return Config(**{"flush_interval": 36_000.0, "load_interval": 36_000.0, **options})  # type: ignore[arg-type]


async def eventually(condition: Callable[[], bool]) -> None:
    """
    Let virtual time pass until the condition holds.
    """
    for _ in range(10_000):
        if condition():
            return
        await trio.sleep(0.05)
    raise AssertionError("the condition never held")


async def wait_saved(manager: Manager) -> None:
    """
    Let virtual time pass until nothing is pending.
    """
    await eventually(lambda: manager.statistics().pending_updates == 0)


async def filled(store: Store, *opids: str) -> None:
    """
    Let another process save a stage of each operation.
    """
    async with open_manager(store, config=quiet(actor=Actor("peer"))) as peer:
        for opid in opids:
            peer.record(opid, completed())


def saves(store: FaultyStore, opid: str) -> int:
    """
    Return in how many calls to save an operation was.
    """
    return sum(opid in call.opids for call in store.calls if call.method in {"merge", "merge_many"})


@contextmanager
def interrupting(at: int, action: Callable[[], object]) -> Iterator[list[bool]]:
    """
    Call `action` in the middle of what the block does, at its n-th call or return within the library.

    So what a signal handler or a `__del__` may do at any time is done at every place in turn. The list that is
    yielded becomes non-empty when there was such a place.
    """
    left = at
    met: list[bool] = []
    previous = sys.getprofile()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        del event, argument
        if met or "/timeline_trio/" not in frame.f_code.co_filename:
            return
        if left == 0:
            met.append(True)
            action()
        left -= 1

    sys.setprofile(profile)
    try:
        yield met
    finally:
        sys.setprofile(previous)
