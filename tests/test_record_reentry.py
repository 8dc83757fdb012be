"""
Tests of recordings that come in the middle of others: from threads, signal and log handlers, destructors, forks.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import BufferFull, Manager, StageHandle, Status, open_manager
from timeline_trio.store import MemoryStore

from .recording import Errors, completed, eventually, interrupting, quiet, stored
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from trio.testing import MockClock

THREADS = 8
STAGES = 150


async def test_many_threads_record_while_the_loop_saves_and_loads() -> None:
    store = MemoryStore()
    config = quiet(flush_interval=0.005, load_interval=0.005, max_timelines=4, max_pending_updates=10_000)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for index in range(STAGES):
                opid = f"op{index % 8}"
                handle = manager.begin(opid, f"stage {index}", stage_id=f"{number}-{index}")
                handle.set_attributes({"a": index})
                with manager.stage(opid, "block", stage_id=f"{number}-{index}-block", parent=handle):
                    manager.start(opid, "job", attributes={"by": number})
                handle.end(code=str(index))
                manager.record(opid, completed(id=f"{number}-{index}-old"))
                if index % 20 == 0:
                    manager.evict(opid)
                    manager.flush_soon(opid)
                assert_counters_add_up(manager)
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again in the test's own thread
            failures.append(error)

    async with open_manager(store, config=config) as manager:
        async with trio.open_nursery() as nursery:
            for number in range(THREADS):
                nursery.start_soon(trio.to_thread.run_sync, work, number)
        assert failures == []
        await manager.flush_all()
        assert_counters_add_up(manager)
        statistics = manager.statistics()
        assert (statistics.pending_updates, statistics.dropped_updates, statistics.refused_updates) == (0, 0, 0)
        assert statistics.accepted_updates == THREADS * STAGES * 7
    found = [stage for index in range(8) for stage in (await stored(store, f"op{index}")).stages.values()]
    assert len(found) == THREADS * STAGES * 3
    assert {stage.status for stage in found} == {Status.SUCCEEDED}


async def test_threads_that_set_attributes_of_one_operation_lose_none_of_them() -> None:
    async with open_manager(config=quiet()) as manager:
        manager.start("op", "job")
        barrier = threading.Barrier(THREADS)

        def work(number: int) -> None:
            handle = manager.writer("op")
            barrier.wait()
            for index in range(50):
                handle.set_attributes({f"{number}-{index}": index})

        async with trio.open_nursery() as nursery:
            for number in range(THREADS):
                nursery.start_soon(trio.to_thread.run_sync, work, number)
        assert len((await manager.read("op")).attributes) == THREADS * 50


async def test_attributes_of_an_operation_that_are_set_in_the_middle_of_setting_others_stay(
    autojump_clock: MockClock,
) -> None:
    for place in range(1000):
        async with open_manager(config=quiet()) as manager:
            manager.start("op", "job")
            handle = manager.writer("op")
            with interrupting(place, lambda handle=handle: handle.set_attributes({"inner": 1})) as met:  # type: ignore[misc]
                handle.set_attributes({"outer": 2})
            if not met:
                return
            assert (await manager.read("op")).attributes == {"inner": 1, "outer": 2}
    raise AssertionError("endless")


async def test_ends_in_many_threads_keep_one_result_whole() -> None:
    # parity 24, 97
    async with open_manager(config=quiet()) as manager:
        for _ in range(20):
            handle = manager.begin("op", "copy")
            barrier = threading.Barrier(THREADS)

            def work(number: int) -> None:
                barrier.wait()  # noqa: B023 - the threads end before the next turn
                handle.end(f"{number}", code=f"{number}", attributes={"by": number})  # noqa: B023

            async with trio.open_nursery() as nursery:
                for number in range(THREADS):
                    nursery.start_soon(trio.to_thread.run_sync, work, number)
            stage = (await manager.read("op")).stage(handle.stage_id)
            assert stage is not None
            assert stage.error == stage.code == str(stage.attributes["by"])
        assert manager.statistics().accepted_updates == 40


async def test_a_thread_wakes_a_watcher_and_the_saver(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_manager(store, config=quiet(max_pending_updates=4)) as manager:  # noqa: SIM117 - the inner one must end first
        async with manager.watch("op") as snapshots:
            await trio.to_thread.run_sync(lambda: manager.begin("op", "copy").end())
            assert (await anext(snapshots)).stages[0].status is Status.SUCCEEDED
            await trio.to_thread.run_sync(manager.flush_soon, "op")
            await eventually(lambda: manager.statistics().saved_updates == 1)


async def test_a_thread_that_outlives_the_loop_is_told_that_the_manager_has_closed() -> None:
    holder: list[Manager] = []

    async def main() -> None:
        async with open_manager(config=quiet()) as manager:
            holder.append(manager)

    await trio.to_thread.run_sync(trio.run, main)
    with holder[0].stage("op", "copy") as stage:
        assert not stage.accepted
    holder[0].flush_soon("op")
    holder[0].evict("op")
    assert holder[0].statistics().refused_updates == 1


def _recordings(manager: Manager) -> list[Callable[[], object]]:
    """
    Return recordings of each kind, to be interrupted and to interrupt.
    """
    handle = manager.begin("op", "copy", stage_id="live")
    return [
        lambda: manager.begin("op", "again", stage_id="b"),
        lambda: manager.begin("new", "fresh", stage_id="n"),
        lambda: handle.set_attributes({"a": 1}),
        lambda: handle.end("bad"),
        lambda: manager.record("op", completed(id="r")),
        lambda: manager.start("op", "job"),
        lambda: manager.finish("op"),
        lambda: manager.evict("op"),
    ]


@pytest.mark.parametrize("outer", range(8))
@pytest.mark.parametrize("inner", range(8))
async def test_a_recording_in_the_middle_of_any_other_is_taken_whole(
    outer: int, inner: int, autojump_clock: MockClock
) -> None:
    # A third of the places each; together the pairs meet all of them.
    for place in range((outer + inner) % 3, 1000, 3):
        errors, store = Errors(), MemoryStore()
        async with open_manager(store, config=quiet(on_error=errors, max_pending_updates=8)) as manager:
            recordings = _recordings(manager)
            with interrupting(place, recordings[inner]) as met:
                recordings[outer]()
            view = (await manager.read("op")).document
            assert_counters_add_up(manager)
            await manager.flush_all()
            assert manager.statistics().pending_updates == 0
        assert errors.told == []
        kept = await stored(store)
        assert kept.stages == view.stages
        expected = {outer} | ({inner} if met else set())
        assert (("b", "") in kept.stages) == (0 in expected)
        assert (("r", "") in kept.stages) == (4 in expected)
        assert (kept.start is not None) == (5 in expected)
        assert (kept.finish is not None) == (6 in expected)
        assert (kept.stages["live", ""].status is Status.FAILED) == (3 in expected)
        if {2, 3} & expected == {2}:
            assert kept.stages["live", ""].attributes == {"a": 1}
        if 1 in expected:
            assert ("n", "") in (await stored(store, "new")).stages
        if not met:
            return
    raise AssertionError("endless")


async def test_a_put_off_recording_is_not_left_behind_by_a_refused_one(autojump_clock: MockClock) -> None:
    for place in range(1000):
        async with open_manager(config=quiet(max_pending_updates=1)) as manager:
            manager.begin("full", "first")

            def record(manager: Manager = manager) -> None:
                manager.begin("op", "inner")

            with interrupting(place, record) as met, pytest.raises(BufferFull):
                manager.begin("full", "second")
            if not met:
                return
            assert manager.statistics().accepted_updates == 2
    raise AssertionError("endless")


async def test_what_a_put_off_recording_would_have_raised_is_reported(autojump_clock: MockClock) -> None:
    reported = 0
    for place in range(1000):
        errors = Errors()
        async with open_manager(config=quiet(on_error=errors, max_pending_updates=1)) as manager:
            manager.begin("full", "first")
            raised: list[Exception] = []
            handles: list[StageHandle] = []

            def record(
                manager: Manager = manager, raised: list[Exception] = raised, handles: list[StageHandle] = handles
            ) -> None:
                try:
                    handle = manager.begin("full", "second")
                    handle.end()
                    handles.append(handle)
                except BufferFull as error:
                    raised.append(error)

            with interrupting(place, record) as met:
                manager.begin("op", "outer")
            if not met:
                assert reported > 0
                return
            assert len(raised) + len(errors.told) == 1
            assert not any(handle.accepted for handle in handles)
            reported += len(errors.told)
            assert manager.statistics().refused_updates == 1
            assert_counters_add_up(manager)
    raise AssertionError("endless")


async def test_a_put_off_change_has_the_attributes_that_it_was_called_with(autojump_clock: MockClock) -> None:
    for place in range(1000):
        async with open_manager(config=quiet()) as manager:
            handle = manager.begin("op", "copy", stage_id="s")

            def record(handle=handle) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
                attributes = {"a": 1}
                handle.end(attributes=attributes)
                attributes["a"] = 2

            with interrupting(place, record) as met:
                manager.begin("op", "outer")
            if not met:
                return
            assert (await manager.read("op")).stage("s").attributes == {"a": 1}  # type: ignore[union-attr]
    raise AssertionError("endless")


async def test_a_destructor_may_record_whenever_the_collector_runs(autojump_clock: MockClock) -> None:
    class Leaving:
        def __init__(self, number: int) -> None:
            self.number = number
            self.cycle = self

        def __del__(self) -> None:
            manager.begin("op", "leaving", stage_id=f"d{self.number}").end()

    thresholds = gc.get_threshold()
    async with open_manager(MemoryStore(), config=quiet(max_pending_updates=100_000, max_timelines=2)) as manager:
        gc.collect()
        gc.set_threshold(5, 2, 2)
        try:
            for number in range(300):
                Leaving(number)
                with manager.stage(f"op{number % 3}", "copy"):
                    pass
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()
        await manager.flush_all()
        snapshot = await manager.read("op")
        assert_counters_add_up(manager)
    assert len(snapshot.stages) == 300
    assert not snapshot.running_stages()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
async def test_a_signal_handler_may_record_at_any_time() -> None:
    count = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal count
        del number, frame
        if count < 200:
            count += 1
            manager.begin("op", "signal", stage_id=f"s{count}").end()

    store = MemoryStore()
    config = quiet(flush_interval=0.001, load_interval=0.001, max_pending_updates=100_000, max_timelines=2)
    async with open_manager(store, config=config) as manager, manager.watch("op") as snapshots:
        previous = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            index = 0
            while count < 200:
                index += 1
                with manager.stage(f"op{index % 5}", "copy"):
                    if index % 10 == 0:
                        await anext(snapshots)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        await manager.flush_all()
        assert_counters_add_up(manager)
    document = await stored(store)
    assert len(document.stages) == 200
    assert {stage.status for stage in document.stages.values()} == {Status.SUCCEEDED}


async def test_a_log_handler_may_record_what_the_library_itself_logs(autojump_clock: MockClock) -> None:
    class Recording(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with manager.stage("log", record.getMessage()):
                pass

    logger = logging.getLogger("timeline_trio")
    handler = Recording()
    async with open_manager(config=quiet(max_pending_updates=1)) as manager:
        logger.addHandler(handler)
        try:
            manager.begin("op", "copy")
            for _ in range(3):
                with manager.stage("op", "refused"):
                    pass
        finally:
            logger.removeHandler(handler)
        snapshot = await manager.read("log")
    (stage,) = snapshot.stages
    assert "max_pending_updates=1 is reached" in stage.name


def test_control_c_does_not_tear_a_recording() -> None:
    async def main(place: int, met_any: list[bool]) -> None:
        store = MemoryStore()
        async with open_manager(store, config=quiet()) as manager:
            manager.start("op", "job")
            try:
                with interrupting(place, lambda: signal.raise_signal(signal.SIGINT)) as met:
                    handle = manager.begin("op", "copy", stage_id="s")
                    handle.set_attributes({"a": 1})
                    handle.end()
                met_any.extend(met)
                await trio.lowlevel.checkpoint()
            finally:
                assert_counters_add_up(manager)
                with trio.CancelScope(shield=True):
                    snapshot = await manager.read("op")
                    await manager.flush("op")
                    assert (await stored(store)).stages == snapshot.document.stages

    for place in range(1000):
        met: list[bool] = []
        try:
            trio.run(main, place, met)
        except KeyboardInterrupt:
            continue
        assert not met
        return
    raise AssertionError("endless")


@pytest.mark.parametrize("which", range(8))
async def test_an_exception_of_a_foreign_signal_handler_tears_nothing(which: int, autojump_clock: MockClock) -> None:
    class Stop(BaseException):
        pass

    def stop() -> None:
        raise Stop

    for place in range(1000):
        store = MemoryStore()
        async with open_manager(store, config=quiet()) as manager:
            recordings = _recordings(manager)
            interrupted = False
            try:
                with interrupting(place, stop) as met:
                    recordings[which]()
            except Stop:
                interrupted = True
            view = (await manager.read("op")).document
            await manager.flush_all()
            assert manager.statistics().pending_updates == 0
            if interrupted:
                recordings[which]()
                manager.begin("op", "afterwards", stage_id="z").end()
                view = (await manager.read("op")).document
        assert (await stored(store)).stages == view.stages
        if not met:
            return
    raise AssertionError("endless")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_child_is_refused_at_once_and_saves_nothing_of_its_parent() -> None:
    script = """
        import os, sys, trio, warnings
        from timeline_trio import Config, WrongProcess, new, open_manager
        from timeline_trio.store import MemoryStore

        warnings.simplefilter("ignore")
        told = []

        async def main():
            store = MemoryStore()
            config = Config(flush_interval=3600, on_error=lambda opid, error: told.append(type(error)))
            single = new("single", store=store)
            async with open_manager(store, config=config) as manager:
                handle = manager.begin("op", "copy")
                single.begin("copy")
                pid = os.fork()
                if pid == 0:
                    refused = 0
                    for call in (
                        lambda: manager.begin("op", "copy"), lambda: manager.start("op", "job"), handle.end,
                        lambda: handle.set_attributes({"a": 1}), lambda: manager.finish("op"),
                        lambda: manager.evict("op"), lambda: single.begin("copy"),
                    ):
                        try:
                            call()
                        except WrongProcess:
                            refused += 1
                    with manager.stage("op", "copy") as stage:
                        refused += not stage.accepted
                    assert told == [WrongProcess] * 1, told
                    sys.stdout.flush()
                    os._exit(40 + refused)
                _, status = os.waitpid(pid, 0)
                handle.end()
                await manager.flush("op")
                await single.flush()
            print(os.waitstatus_to_exitcode(status), len((await store.read("op")).document.stages))

        trio.run(main)
    """
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("48 1\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_child_that_ends_does_not_speak_of_its_parents_facts() -> None:
    script = """
        import os, sys, warnings
        from timeline_trio import new
        from timeline_trio.store import MemoryStore

        warnings.simplefilter("ignore")
        single = new("single", store=MemoryStore())
        single.begin("copy")
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            print("parent", file=sys.stderr)
    """
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    first, *rest = done.stderr.splitlines()
    assert first == "parent"
    assert len(rest) == 1
    assert "1 updates were recorded and never flushed" in rest[0]


async def test_a_torn_recording_is_saved_and_flushed_though_nobody_reads_it(autojump_clock: MockClock) -> None:
    class Stop(BaseException):
        pass

    def stop() -> None:
        raise Stop

    for place in range(1000):
        store = MemoryStore()
        async with open_manager(store, config=quiet()) as manager:
            manager.start("op", "job")
            interrupted = False
            try:
                with interrupting(place, stop) as met:
                    manager.begin("new", "copy", stage_id="s")
            except Stop:
                interrupted = True
            accepted = manager.statistics().accepted_updates
            await manager.flush_all()
            assert manager.statistics().pending_updates == 0
            manager.begin("new", "more")
            await manager.flush("new")
        kept = (await stored(store, "new")).stages
        assert len(kept) == (2 if ("s", "") in kept else 1)
        assert interrupted or ("s", "") in kept
        assert accepted in {1, 2}
        if not met:
            return
    raise AssertionError("endless")


async def test_a_put_off_interval_that_is_refused_is_reported(autojump_clock: MockClock) -> None:
    reported = 0
    for place in range(1000):
        errors = Errors()
        async with open_manager(config=quiet(on_error=errors, max_pending_updates=1)) as manager:
            manager.begin("full", "first")

            def record(manager: Manager = manager) -> None:
                with suppress(BufferFull):
                    manager.record("full", completed())

            with interrupting(place, record) as met:
                manager.begin("op", "outer")
            if not met:
                assert reported > 0
                return
            reported += len(errors.told)
            assert manager.statistics().refused_updates == 1
    raise AssertionError("endless")
