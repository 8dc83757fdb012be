"""
What tests of change notification through an SQLite file share.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio.model import Stage, Update
from timeline_trio_sqlite import SQLiteStore
from timeline_trio_sqlite._bell import PollingBell, open_bell
from timeline_trio_sqlite._options import check_options

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from timeline_trio.store import Change
    from timeline_trio.testing import ManualClock
    from timeline_trio_sqlite._bell import Bell

    OpenBell = Callable[[Path], Bell]

SECOND = 1_000_000_000
ECHOES = 5  # questions that follow the last bell, at most
LINUX = sys.platform == "linux"
needs_inotify = pytest.mark.skipif(not LINUX, reason="inotify is Linux's")

WRITER = """
    import sys, trio
    from timeline_trio.model import Stage, Update
    from timeline_trio_sqlite import open_sqlite

    async def main(path, journal):
        async with open_sqlite(path, journal=journal) as store:
            print("ready", flush=True)
            for line in sys.stdin:
                opid, first, last = line.split()
                for number in range(int(first), int(last)):
                    await store.merge(opid, Update(stages=(Stage(id=str(number), name="work", started_at=0),)))
                print("done", flush=True)

    trio.run(main, *sys.argv[1:])
"""


def update(number: int = 0) -> Update:
    return Update(stages=(Stage(id=str(number), name="work", started_at=0),))


@asynccontextmanager
async def open_with_bell(
    path: Path, bell: OpenBell, *, journal: str = "wal", clock: ManualClock | None = None
) -> AsyncGenerator[SQLiteStore]:
    options = check_options(path, synchronous="normal", journal=journal, create=True)
    store = SQLiteStore(options, clock=clock, open_bell=bell) if clock else SQLiteStore(options, open_bell=bell)
    try:
        await store.create_schema()
        yield store
    finally:
        await store.aclose()


class OtherProcess:
    """
    Merges into the file when told to.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def expect(self, line: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{line}\n"

    def begin_merges(self, opid: str, first: int, last: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{opid} {first} {last}\n")
        self._process.stdin.flush()

    def merge(self, opid: str, number: int = 0) -> None:
        self.begin_merges(opid, number, number + 1)
        self.expect("done")


@contextmanager
def other_process(path: Path, journal: str = "wal") -> Iterator[OtherProcess]:
    process = subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-c", textwrap.dedent(WRITER), str(path), journal],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        other = OtherProcess(process)
        other.expect("ready")
        yield other
    finally:
        process.kill()
        process.communicate()


async def hear(changes: AsyncIterator[Change]) -> Change:
    with trio.fail_after(10):
        return await anext(changes)


async def hear_nothing(changes: AsyncIterator[Change], seconds: float = 1) -> None:
    with trio.move_on_after(seconds):
        pytest.fail(f"heard of {await anext(changes)}")


async def wait_until(condition: Callable[[], object]) -> None:
    """
    Wait for something that a thread does.
    """
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - the thread can set no event
            await trio.sleep(0.001)


def inotify_descriptors() -> int:
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names.append(entry.readlink().name)
        except FileNotFoundError:  # that of the listing itself
            continue
    return sum("inotify" in name for name in names)


each_bell = pytest.mark.parametrize(
    "bell", [pytest.param(open_bell, id="best"), pytest.param(PollingBell, id="polling")]
)
