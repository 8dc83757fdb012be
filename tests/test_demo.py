"""
Tests of the demo as its users run it: as a process, with workers of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from subprocess import PIPE, CompletedProcess
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import Snapshot, Status, open_manager, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEMO = (sys.executable, "-m", "timeline_trio.demo")
FAST = ("--speed", "4")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to processes")


async def run(*command: str, env: Mapping[str, str] | None = None) -> CompletedProcess[bytes]:
    """
    Run a process until it has ended, and until all have that it started: they share its standard error.
    """
    with trio.fail_after(60):
        return await trio.run_process(
            command, stdin=b"", capture_stdout=True, capture_stderr=True, check=False, env=os.environ | (env or {})
        )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> CompletedProcess[bytes]:
    folder = tmp_path_factory.mktemp("demo")
    result = trio.run(partial(run, *DEMO, *FAST, "--json", env={"TMPDIR": str(folder)}))
    assert list(folder.iterdir()) == []  # a file that nobody was told of does not stay
    return result


@pytest.fixture
def final(played: CompletedProcess[bytes]) -> Snapshot:
    return Snapshot.from_json(played.stdout)


def test_the_snapshot_is_all_that_json_prints(played: CompletedProcess[bytes]) -> None:
    assert played.returncode == 0, played.stderr
    assert played.stderr == b""
    assert played.stdout.count(b"\n") == 1


def test_four_hosts_take_part(final: Snapshot) -> None:
    assert {stage.actor.name for stage in final.stages} == {"ash", "birch", "cedar", "elm"}


def test_one_stage_fails_and_the_operation_is_told_to_have_failed(final: Snapshot) -> None:
    (failed,) = (stage for stage in final.stages if stage.status is Status.FAILED)
    assert (failed.actor.name, failed.name) == ("elm", "deploy web")
    assert failed.error.startswith("DeployError: checksum")
    assert final.status is Status.FAILED


def test_the_stage_of_the_killed_worker_still_runs(final: Snapshot) -> None:
    (running,) = final.running_stages()
    assert (running.actor.name, running.name) == ("cedar", "deploy web")


def test_every_parent_is_there_and_some_are_another_hosts(final: Snapshot) -> None:
    (top,) = final.tree()
    assert top.stage.name == "release 2.4"
    assert not top.orphan
    parents = {stage.id: stage.actor for stage in final.stages}
    assert any(stage.parent_id and parents[stage.parent_id] != stage.actor for stage in final.stages)
    assert any(stage.parent_id and parents[stage.parent_id] == stage.actor for stage in final.stages)


def test_several_hosts_share_one_stage(final: Snapshot) -> None:
    checks = [stage for stage in final.stages if stage.id == "health-check"]
    assert sorted(stage.actor.name for stage in checks) == ["ash", "birch", "elm"]


def test_hosts_work_at_the_same_time(final: Snapshot) -> None:
    spans = {
        host: (
            min(stage.started_at for stage in final.stages if stage.actor.name == host),
            max(stage.finished_at or 0 for stage in final.stages if stage.actor.name == host),
        )
        for host in ("ash", "birch", "elm")
    }
    assert max(begin for begin, _ in spans.values()) < min(end for _, end in spans.values())


async def test_without_json_the_timeline_grows_and_a_summary_follows(tmp_path: Path) -> None:
    result = await run(*DEMO, *FAST, env={"TMPDIR": str(tmp_path), "COLUMNS": "100", "PYTHONIOENCODING": "ascii"})
    lines = result.stdout.decode().splitlines()
    assert result.returncode == 0, result.stderr
    assert "deploy release 2.4: begun, as rollout-" in lines[0]
    assert any(line.endswith("cedar  deploy web: begun") for line in lines)
    summary = lines.index("local_flushed=true store_read=true")
    assert any(line.startswith("deploy release 2.4: failed, ") for line in lines[:summary])
    assert lines[summary + 1 : summary + 6] == [
        "",
        "what happened:",
        "  cedar was killed during 'deploy web'; the stage is still running in the timeline",
        "  elm failed at 'deploy web'",
        "  20 of 20 stages that the workers had saved are in the final read",
    ]
    (folder,) = await trio.Path(tmp_path).iterdir()
    assert lines[-1] == f"  store: sqlite:///{folder}/rollout.db"
    assert await (folder / "rollout.db").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--store", "carrier-pigeon://loft"], "no installed package serves the scheme 'carrier-pigeon'"),
        (["--store", "sqlite:////no/such/folder/rollout.db"], "check that its folder exists"),
        (["--quiet"], "unrecognized arguments: --quiet"),
    ],
)
async def test_a_bad_argument_is_answered_in_one_line(arguments: list[str], says: str) -> None:
    result = await run(*DEMO, *arguments)
    message = result.stderr.decode()
    assert result.returncode == 2
    assert result.stdout == b""
    assert message.startswith("timeline_trio.demo: ")
    assert says in message
    assert message.count("\n") == 1


async def test_help_has_an_example() -> None:
    result = await run(*DEMO, "--help")
    assert result.returncode == 0
    assert b"python -m timeline_trio.demo --store sqlite:///rollout.db" in result.stdout


async def interrupt(number: signal.Signals, times: int, *arguments: str) -> tuple[int, str, str]:
    """
    Send a signal to a demo that plays, and return its exit code, its errors, and what it had shown.
    """
    shown = b""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(trio.run_process, [*DEMO, *arguments], stdin=PIPE, stdout=PIPE, stderr=PIPE, check=False)
            )
            async for data in process.stdout:
                shown += data
                if b"canary" in shown and process.returncode is None:
                    for _ in range(times):
                        process.send_signal(number)
                    times = 0
            # The workers have inherited it, so it ends when the last of them does.
            errors = b"".join([data async for data in process.stderr])
            code = await process.wait()
    return code, errors.decode(), shown.decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_ends_all_and_the_operation_is_canceled(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    url = f"sqlite:///{tmp_path}/rollout.db"
    ended, errors, shown = await interrupt(number, 1, "--store", url)
    assert ended == code
    assert errors == f"timeline_trio.demo: ended by {number.name}, and so have all workers\n"
    opid = shown.splitlines()[0].rpartition(" ")[2]
    async with open_store(url) as store, open_manager(store) as manager:
        snapshot = await manager.read(opid)
    assert snapshot.status is Status.CANCELED
    assert {stage.status for stage in snapshot.stages} <= {Status.SUCCEEDED, Status.CANCELED}


async def test_an_impatient_ctrl_c_leaves_nothing_behind_either() -> None:
    code, errors, _ = await interrupt(signal.SIGINT, 3)
    assert code == 130
    assert "Traceback" not in errors


async def test_no_worker_outlives_a_killed_observer() -> None:
    code, errors, _ = await interrupt(signal.SIGKILL, 1)
    assert (code, errors) == (-signal.SIGKILL, "")


async def test_a_reader_that_goes_away_ends_all_quietly() -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(trio.run_process, DEMO, stdin=PIPE, stdout=PIPE, stderr=PIPE, check=False)
            )
            await process.stdout.receive_some(1)
            await process.stdout.aclose()
            errors = b"".join([data async for data in process.stderr])
            assert await process.wait() == 1
    assert errors == b""


async def test_a_worker_without_orders_leaves() -> None:
    result = await run(sys.executable, "-m", "timeline_trio.demo._worker")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


async def test_a_worker_that_cannot_use_its_store_says_so() -> None:
    orders = b'{"type":"Orders","store":"nothing","opid":"op","host":"ash","speed":1.0}\n'
    result = await trio.run_process(
        [sys.executable, "-m", "timeline_trio.demo._worker"], stdin=orders, capture_stderr=True, check=False
    )
    assert result.returncode == 1
    assert b"expected a URL with a scheme" in result.stderr
    assert b"Traceback" not in result.stderr
