"""
Tests of how a watch of an SQLite file ends, or cannot begin.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from timeline_trio.store import Change, StoreUnavailable
from timeline_trio_sqlite import SQLiteStore, open_sqlite
from timeline_trio_sqlite._failures import translate_watch

from .sqlite_watch_support import (
    LINUX,
    each_bell,
    hear,
    hear_nothing,
    inotify_descriptors,
    needs_inotify,
    open_with_bell,
    update,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from .sqlite_watch_support import OpenBell


def delete_file(path: Path) -> None:
    path.unlink()


def move_file(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def replace_file(path: Path) -> None:
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@each_bell
@pytest.mark.parametrize("act", [delete_file, move_file, replace_file, move_folder])
async def test_file_that_goes_away_ends_the_watch(tmp_path: Path, bell: OpenBell, act: Callable[[Path], None]) -> None:
    path = tmp_path / "data" / "ops.db"
    path.parent.mkdir()
    async with open_with_bell(path, bell, journal="delete") as store, store.watch() as changes:
        await store.merge("op", update())
        await hear(changes)
        act(path)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="moved, deleted or replaced") as caught:
                await hear(changes)
            assert isinstance(caught.value.__cause__, OSError)


@each_bell
async def test_missing_file_cannot_be_watched(tmp_path: Path, bell: OpenBell) -> None:
    path = tmp_path / "ops.db"
    async with open_with_bell(path, bell, journal="delete") as store:
        path.unlink()
        with pytest.raises(StoreUnavailable, match="is not there"):
            async with store.watch():
                pytest.fail("it is watched")
        assert store.statistics().watchers == 0
    if LINUX:
        assert inotify_descriptors() == 0


async def test_file_without_the_table_cannot_be_watched(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    path.touch()
    async with open_sqlite(path, create=False) as store:
        with pytest.raises(StoreUnavailable, match="call create_schema"):
            async with store.watch():
                pytest.fail("it is watched")
        assert store.statistics().watchers == 0
    if LINUX:
        assert inotify_descriptors() == 0


@needs_inotify
async def test_exhausted_limit_is_answered_with_the_name_of_the_setting(tmp_path: Path) -> None:
    import resource  # noqa: PLC0415 - there is none on Windows

    async with open_sqlite(tmp_path / "ops.db") as store:
        async with store.watch():
            pass
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            with pytest.raises(StoreUnavailable, match=r"fs\.inotify\.max_user_instances"):
                async with store.watch():
                    pytest.fail("it is watched")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with store.watch() as changes:
            await store.merge("op", update())
            await hear(changes)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "raise the sysctl fs.inotify.max_user_watches"),
        (errno.EACCES, "check the permissions"),
        (errno.EIO, "the cause tells more"),
    ],
)
def test_failure_to_watch_is_answered_with_what_to_do(code: int, advice: str) -> None:
    assert advice in str(translate_watch(OSError(code, "text"), Path("ops.db")))


@each_bell
async def test_closing_the_store_ends_the_watch(tmp_path: Path, bell: OpenBell) -> None:
    async def expect_the_end(changes: AsyncIterator[Change]) -> None:
        with pytest.raises(StoreUnavailable, match="is closed"):
            await hear(changes)

    before = inotify_descriptors() if LINUX else 0
    async with open_with_bell(tmp_path / "ops.db", bell, journal="delete") as store:
        async with store.watch() as changes, store.watch() as others:
            await hear_nothing(changes)
            await hear_nothing(others)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect_the_end, changes)
                nursery.start_soon(expect_the_end, others)
                await trio.testing.wait_all_tasks_blocked()
                await store.aclose()
            await expect_the_end(changes)
        assert store.statistics().watchers == store.statistics().running_threads == 0
        with pytest.raises(StoreUnavailable, match="is closed"):
            async with store.watch():
                pytest.fail("it is watched")
    assert (inotify_descriptors() if LINUX else 0) == before


@needs_inotify
async def test_watching_leaves_no_descriptor_however_it_ends(tmp_path: Path) -> None:
    error = ValueError()

    async def watch_and_fail(store: SQLiteStore) -> None:
        async with store.watch():
            assert inotify_descriptors() == 1
            raise error

    async with open_sqlite(tmp_path / "ops.db") as store:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - it is compared
            await watch_and_fail(store)
        assert caught.value is error
        for number in range(20):
            with trio.move_on_after(number / 5_000):  # some of them while it is entered
                async with store.watch() as changes:
                    await anext(changes)
        assert inotify_descriptors() == store.statistics().watchers == 0
        await wait_until(lambda: not store.statistics().running_threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forked_child_cannot_watch(tmp_path: Path) -> None:
    script = """
        import os, signal, sys, trio, warnings
        from timeline_trio import WrongProcess
        from timeline_trio.model import Stage, Update
        from timeline_trio_sqlite import open_sqlite

        warnings.simplefilter("ignore")

        async def enter(store):
            async with store.watch():
                pass

        async def main(path):
            update = Update(stages=(Stage(id="s", name="work", started_at=0),))
            async with open_sqlite(path) as store, store.watch() as changes:
                await store.merge("op", update)
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)
                    for call in (lambda: anext(changes), lambda: enter(store)):
                        try:
                            await call()
                        except WrongProcess as error:
                            assert "this store" in str(error)
                            continue
                        os._exit(1)
                    await store.aclose()
                    os._exit(4)
                _, status = os.waitpid(pid, 0)
                print("child", os.waitstatus_to_exitcode(status), (await anext(changes)).opid)

        trio.run(main, *sys.argv[1:])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "ops.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own script
    assert (done.stdout, done.stderr) == ("child 4 op\n", "")
