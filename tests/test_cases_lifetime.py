"""
What goes wrong at the end of a program, and at a fork: blocks left in every way, signals, forgotten flushes.

Each test names the case that it stands for.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import trio
from trio.testing import MockClock

from timeline_trio import Config, DrainError, StoreUnavailable, open_manager
from timeline_trio.store import NOTHING_KNOWN, MemoryStore
from timeline_trio.testing import FaultyStore

from .case_support import Failures, WrappedStore, version
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from timeline_trio import Manager
    from timeline_trio.model import Update
    from timeline_trio.store import Answer, AnswerOrError, Known, Merged

PROGRAM = Path(__file__).with_name("lifetime_program.py")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
needs_signals = pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX has them")


async def _return() -> None:
    await trio.lowlevel.checkpoint()


async def _raise() -> NoReturn:
    await trio.lowlevel.checkpoint()
    raise LookupError


async def _be_interrupted() -> NoReturn:
    await trio.lowlevel.checkpoint()
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("body", "error"),
    [(_return, None), (_raise, LookupError), (_be_interrupted, KeyboardInterrupt), (trio.sleep_forever, None)],
)
async def test_however_the_body_ends_what_is_pending_is_saved(
    body: Callable[[], Awaitable[None]], error: type[BaseException] | None, autojump_clock: MockClock
) -> None:
    # A17
    store = MemoryStore()
    left_by: type[BaseException] | None = None
    with trio.move_on_after(1):
        try:
            async with open_manager(store) as manager:
                manager.begin("op", "work")
                await body()
        except (LookupError, KeyboardInterrupt) as raised:
            left_by = type(raised)
    assert left_by is error
    assert trio.current_time() < 1.1
    assert await version(store) == 1
    assert_counters_add_up(manager)


def run_program(*arguments: object) -> tuple[list[dict[str, object]], str]:
    """
    Run the program to its end, and return what it said and what it complained of.
    """
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 - ours
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def versions(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT id, version FROM timelines").fetchall())


def test_a_handle_that_is_never_flushed_is_complained_of_once(tmp_path: Path) -> None:
    # A17
    said, complaints = run_program("forget_to_flush", tmp_path)
    assert not said
    (line,) = complaints.splitlines()
    assert "3 updates were recorded and never flushed" in line


@needs_fork
def test_a_forked_child_may_not_use_the_manager_but_may_open_its_own(tmp_path: Path) -> None:
    # A16
    path = tmp_path / "ops.db"
    said, complaints = run_program("fork", path)
    assert said == [{"refused": 6, "of": 6}, {"child": 0}, {"saved": 3, "changing": 3}]
    assert not complaints
    assert versions(path) == {"a": 1, "b": 1, "c": 1, "child": 1}


@needs_fork
def test_a_forked_child_that_goes_on_saves_nothing_of_its_parents(tmp_path: Path) -> None:
    # A16
    path = tmp_path / "ops.db"
    said, _ = run_program("fork_and_go_on", path)
    assert said == [{"child": True, "error": "WrongProcess"}, {"parent": True}]
    assert versions(path) == {"a": 1}


@contextmanager
def program(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """
    Start the program, and end it if it is left over.
    """
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - ours
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen[str]) -> dict[str, object]:
    """
    Return what the program says next.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    facts: dict[str, object] = json.loads(line)
    return facts


@needs_signals
def test_an_interrupted_body_is_saved_and_the_interrupt_comes_out(tmp_path: Path) -> None:
    # B13
    path = tmp_path / "ops.db"
    with program("wait_to_be_interrupted", path, 0, 5, "sleeps") as process:
        assert heard(process) == {"ready": True}
        process.send_signal(signal.SIGINT)
        assert [heard(process), heard(process)] == [{"saving": "a"}, {"saving": "b"}]
        assert heard(process) == {"interrupted": True, "saved": 2, "dropped": 0}
        assert process.wait(10) == 3
    assert versions(path) == {"a": 1, "b": 1}


@needs_signals
def test_an_interrupt_during_the_drain_lets_it_end(tmp_path: Path) -> None:
    # B13
    path = tmp_path / "ops.db"
    with program("wait_to_be_interrupted", path, 0.3, 20, "returns") as process:
        assert [heard(process), heard(process)] == [{"ready": True}, {"saving": "a"}]
        process.send_signal(signal.SIGINT)
        assert heard(process) == {"saving": "b"}
        assert heard(process) == {"interrupted": True, "saved": 2, "dropped": 0}
        assert process.wait(10) == 3
    assert versions(path) == {"a": 1, "b": 1}


@needs_signals
@pytest.mark.parametrize("body", ["sleeps", "sleeps in a nursery"])
def test_a_second_interrupt_cuts_the_drain_and_the_loss_is_counted(tmp_path: Path, body: str) -> None:
    # B13
    path = tmp_path / "ops.db"
    with program("wait_to_be_interrupted", path, 1000, 1000, body) as process:
        assert heard(process) == {"ready": True}
        process.send_signal(signal.SIGINT)
        assert heard(process) == {"saving": "a"}
        process.send_signal(signal.SIGINT)
        assert "2 updates were not saved" in str(heard(process)["failed"])
        assert heard(process) == {"interrupted": True, "saved": 0, "dropped": 2}
        assert process.wait(10) == 3
    assert versions(path) == {}


ANYIO_TEST = """
import pytest
from timeline_trio import open_manager
from timeline_trio.store import MemoryStore

@pytest.fixture
def anyio_backend():
    return "trio"

store = MemoryStore()

@pytest.fixture
async def manager():
    async with open_manager(store) as manager:
        yield manager
    assert (await store.read("op")).revision.version == 1
    print("saved in the teardown")

@pytest.mark.anyio
async def test_records(manager):
    manager.begin("op", "work")
"""


def test_a_manager_lives_in_a_fixture_of_the_anyio_plugin(tmp_path: Path) -> None:
    # B06
    path = tmp_path / "test_with_anyio.py"
    path.write_text(ANYIO_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-W", "error", str(path)]
    ended = subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "saved in the teardown" in ended.stdout


def test_the_body_goes_on_after_a_shutdown() -> None:
    async def main() -> str:
        async with open_manager(MemoryStore()) as manager:
            manager.begin("op", "work")
            await manager.shutdown(trio.current_time() + 5)
            await trio.sleep(10)
            assert (await manager.read("op", fresh=True)).collection.store_read
        return "to its end"

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == "to its end"


async def test_reads_succeed_at_any_moment_of_the_close(autojump_clock: MockClock) -> None:
    for moment in range(60):
        async with open_manager(MemoryStore()) as manager, trio.open_nursery() as nursery:
            manager.begin("op", "work")
            await manager.flush("op")
            for _ in range(4):
                nursery.start_soon(_read_for_a_while, manager)
            for _ in range(moment % 9):
                await trio.lowlevel.checkpoint()
            nursery.start_soon(manager.shutdown, trio.current_time() + 5)


async def _read_for_a_while(manager: Manager) -> None:
    for _ in range(60):
        snapshot = await manager.read("op", fresh=True)
        assert len(snapshot.stages) == 1


async def test_a_drain_tries_evicted_operations_as_often_as_any_other(autojump_clock: MockClock) -> None:
    # A02
    store = FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    async with trio.open_nursery() as nursery:

        async def heal() -> None:
            await trio.sleep(0.5)
            store.outage = None

        async with open_manager(store) as manager:
            manager.begin("op", "work")
            manager.evict("op")
            nursery.start_soon(heal)
    assert await version(store) == 1
    assert_counters_add_up(manager)


async def test_what_a_drain_loses_of_evicted_operations_is_named(autojump_clock: MockClock) -> None:
    # A02
    store = FaultyStore(MemoryStore())
    store.outage = StoreUnavailable("", "down")
    async with open_manager(store, config=Config(on_error=Failures())) as manager:
        manager.begin("op", "work")
        manager.evict("op")
        with pytest.raises(DrainError) as caught:
            await manager.shutdown(trio.current_time() + 1)
    assert caught.value.lost == {"op": 1}
    assert manager.statistics().dropped_updates == 1
    assert_counters_add_up(manager)


class InterruptedWhile(WrappedStore):
    """
    Is interrupted once, in one of its calls.
    """

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def _interrupt(self, method: str) -> None:
        if method == self._method:
            self._method = ""
            signal.raise_signal(signal.SIGINT)

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        self._interrupt("merge")
        return await super().merge(opid, update, known)

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        self._interrupt("read")
        return await super().read(opid, known)

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        self._interrupt("latest")
        return await super().latest(after, limit, known)


@pytest.mark.parametrize("method", ["merge", "latest", "read"])
def test_an_interrupt_that_meets_the_background_goes_to_the_body(method: str) -> None:
    # B13
    store = InterruptedWhile(method)
    cleaned_up = False

    async def main() -> None:
        nonlocal cleaned_up
        config = Config(flush_interval=1 if method == "merge" else 10**6)
        async with open_manager(store, config=config) as manager:
            manager.begin("op", "work")
            await trio.lowlevel.checkpoint()
            try:
                await manager.read("op")
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await manager.flush("op")
                cleaned_up = True

    with pytest.raises(KeyboardInterrupt):
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert cleaned_up
    assert trio.run(version, store) == 1
