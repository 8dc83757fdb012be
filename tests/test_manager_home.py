"""
Tests of where a manager may be used: in its own process, and its async methods in its own Trio run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import Manager, WrongThread, open_manager
from timeline_trio.store import MemoryStore

from .recording import quiet, stored

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def calls_of(manager: Manager) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "end": lambda: manager.end("op", "copy"),
        "read": lambda: manager.read("op"),
        "flush": lambda: manager.flush("op"),
        "flush_all": manager.flush_all,
        "watch": lambda: manager.watch("op").__aenter__(),
        "wait_finished": lambda: manager.wait_finished("op"),
        "shutdown": lambda: manager.shutdown(0),
    }


@pytest.mark.parametrize("name", ["end", "read", "flush", "flush_all", "watch", "wait_finished", "shutdown"])
async def test_another_trio_run_is_refused_and_changes_nothing(name: str) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet()) as manager:
        handle = manager.begin("op", "copy")
        call = calls_of(manager)[name]
        with pytest.raises(WrongThread, match="belong to the Trio run"):
            await trio.to_thread.run_sync(trio.run, call)
        coroutine = call()
        with pytest.raises(WrongThread):  # in a thread without any run
            await trio.to_thread.run_sync(coroutine.__await__().__next__)
        assert manager.statistics().pending_updates == 1
        handle.end()
        await manager.flush("op")
    assert not [stage for stage in (await stored(store)).stages.values() if stage.finished_at is None]


async def test_a_thread_of_the_run_goes_through_trio() -> None:
    async with open_manager(MemoryStore(), config=quiet()) as manager:
        manager.begin("op", "copy")
        await trio.to_thread.run_sync(trio.from_thread.run, manager.flush, "op")
        assert manager.statistics().saved_updates == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_child_is_refused_by_every_call_though_a_thread_held_the_lock() -> None:
    script = """
        import os, signal, sys, threading, trio, warnings
        from timeline_trio import Config, WrongProcess, open_manager
        from timeline_trio.store import MemoryStore

        warnings.simplefilter("ignore")

        async def main():
            config = Config(flush_interval=3600, load_interval=3600, on_error=lambda opid, error: None)
            async with open_manager(MemoryStore(), config=config) as manager:
                manager.begin("op", "copy")
                held, done = threading.Event(), threading.Event()

                def hold():
                    with manager._cache._lock:
                        held.set()
                        done.wait()

                thread = threading.Thread(target=hold)
                thread.start()
                held.wait()
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)
                    await refuse(manager)
                    raise LookupError  # so that the block ends in the child
                _, status = os.waitpid(pid, 0)
                print("child", os.waitstatus_to_exitcode(status), flush=True)
                os._exit(0)  # the child has gone on with the parent's own epoll

        async def refuse(manager):
            assert repr(manager).startswith("<Manager open, 1 timelines, 1 of them pending")
            for call in (
                manager.statistics,
                lambda: manager.flush_soon("op"),
                lambda: manager.writer("op"),
                lambda: manager.evict("op"),
            ):
                try:
                    call()
                except WrongProcess:
                    continue
                os._exit(1)
            for call in (
                lambda: manager.end("op", "copy"),
                lambda: manager.read("op"),
                lambda: manager.flush("op"),
                manager.flush_all,
                lambda: manager.watch("op").__aenter__(),
                lambda: manager.wait_finished("op"),
                lambda: manager.shutdown(0),
            ):
                try:
                    await call()
                except WrongProcess:
                    continue
                os._exit(2)

        try:
            trio.run(main)
        except (LookupError, ExceptionGroup) as error:
            os._exit(3)
    """
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("child 3\n", "")
