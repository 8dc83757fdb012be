"""
Tests of managers in several real processes that share one operation in an SQLite file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from timeline_trio_sqlite import open_sqlite

from .case_support import stored, version

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("sharing_program.py")
NAMES = ["a", "b", "c", "d"]
STAGES = 5_000


@contextmanager
def processes(task: str, path: Path, names: list[str], count: int = 0) -> Iterator[list[subprocess.Popen[str]]]:
    """
    Start processes that begin at the same moment, and end those that are left over.
    """
    running = [
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, PROGRAM, task, path, name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"ready": True}
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


class Shared(NamedTuple):
    """
    What four processes made together, and what they said of it.
    """

    path: Path
    reports: list[dict[str, Any]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    path = tmp_path_factory.mktemp("shared") / "ops.db"
    began = time.monotonic()
    reports = []
    with processes("record_all", path, NAMES, STAGES) as running:
        for process in running:
            said, complaints = process.communicate(timeout=300)
            assert process.returncode == 0, complaints
            assert all("refused" in line for line in complaints.splitlines()), complaints
            reports.append(json.loads(said))
    seconds = time.monotonic() - began
    print(f"{len(NAMES)} x {STAGES} stages in {seconds:.1f} s: {reports}")  # noqa: T201 - a measurement, seen with -s
    return Shared(path, reports)


async def test_four_processes_lose_none_of_twenty_thousand_stages(shared: Shared) -> None:
    async with open_sqlite(shared.path) as store:
        document = await stored(store)
        assert document.stages.keys() == {(str(number), f"id:{name}") for name in NAMES for number in range(STAGES)}
        assert all(stage.finished_at is not None for stage in document.stages.values())
        assert sum(report["saved"] + report["superseded"] for report in shared.reports) == 2 * len(NAMES) * STAGES
        assert all(report["dropped"] == 0 for report in shared.reports)


async def test_the_version_counts_the_saves_of_all_processes(shared: Shared) -> None:
    async with open_sqlite(shared.path) as store:
        assert await version(store) == sum(report["changing_merges"] for report in shared.reports)


def test_a_busy_file_is_no_other_failure_than_a_late_answer(shared: Shared) -> None:
    """
    A save of so large an operation rewrites its row and holds the file meanwhile, so that another may have to wait
    for longer than `export_timeout`. It is reported and tried again; no caller sees it.
    """
    for report in shared.reports:
        assert all("did not answer within export_timeout" in failure for failure in report["failures"]), report


async def test_what_a_killed_process_has_flushed_is_there(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    flushed: dict[str, int] = {"killed": 0, "other": 0}
    with processes("record_for_ever", path, list(flushed)) as running:
        for name, process in zip(flushed, running, strict=True):
            assert process.stdout is not None
            while flushed[name] < 200:
                flushed[name] = json.loads(process.stdout.readline())["flushed"]
            if name == "killed":
                process.kill()
                for line in process.stdout.read().splitlines():
                    flushed[name] = json.loads(line)["flushed"]
    async with open_sqlite(path) as store:
        document = await stored(store)
        for name, count in flushed.items():
            assert {(str(number), f"id:{name}") for number in range(count)} <= document.stages.keys()
        assert await version(store) > 0
