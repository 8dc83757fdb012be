"""
Tests of managers in several real processes on one SQLite file.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import trio

from timeline_trio import Actor, Config, Status, open_manager, open_store

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

# One worker: begins the shared stage, tells, waits until its peer has begun too, and leaves everything to the
# background saves of its manager.
WORKER = """
    import sys
    import trio
    from timeline_trio import Actor, Config, open_manager, open_store

    async def main(url, me, peer):
        config = Config(actor=Actor(me), flush_interval=0.05, load_interval=0.05)
        async with open_store(url) as store, open_manager(store, config=config) as manager:
            manager.start("op", "job")
            with manager.stage("op", "copy", stage_id="shared"):
                async with manager.watch("op") as snapshots:
                    async for snapshot in snapshots:
                        if snapshot.stage("shared", f"id:{peer}"):
                            break
        print(me, manager.statistics().pending_updates, manager.statistics().dropped_updates)

    trio.run(main, *sys.argv[1:])
"""


async def test_two_processes_work_on_one_stage_by_background_saves_alone(tmp_path: Path) -> None:
    # parity 89
    url = f"sqlite:///{tmp_path / 'ops.db'}"
    async with open_store(url):
        pass
    outputs: dict[str, subprocess.CompletedProcess[bytes]] = {}

    async def work(me: str, peer: str) -> None:
        command = [sys.executable, "-c", textwrap.dedent(WORKER), url, me, peer]
        outputs[me] = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, "one", "two")
            nursery.start_soon(work, "two", "one")
    assert [outputs[me].stderr for me in ("one", "two")] == [b"", b""]
    assert [outputs[me].stdout for me in ("one", "two")] == [b"one 0 0\n", b"two 0 0\n"]
    async with open_store(url) as store, open_manager(store, config=Config()) as manager:
        snapshot = await manager.read("op")
    assert {stage.actor: stage.status for stage in snapshot.stages} == {
        Actor("one"): Status.SUCCEEDED,
        Actor("two"): Status.SUCCEEDED,
    }
    assert {stage.id for stage in snapshot.stages} == {"shared"}
    assert snapshot.name == "job"
