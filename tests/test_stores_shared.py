"""
Tests of the stores that several machines share, by one program on all of them: a store is nothing but its URL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from timeline_trio import Config, Snapshot, Status, open_manager
from timeline_trio.store import Found, open_store

CROWD = Path(__file__).with_name("crowd_program.py")
INSTANCES = 16
ROUNDS = 20

STORES = ("sqlite", "mysql", "postgres", "redis", "redis_cluster")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """
    The URL of an empty store.
    """
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ops.db"
    given: str = request.getfixturevalue(f"{request.param}_url")
    return given


async def test_sixteen_processes_record_into_one_operation_at_once_and_all_is_there(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # D01, D04
    async with open_store(url):
        pass  # its tables are there before the crowd comes
    command = [sys.executable, str(CROWD), url, str(INSTANCES), str(ROUNDS)]
    ran = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    assert ran.stderr == b""
    instances = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [instance["failures"] for instance in instances] == [[]] * INSTANCES
    merges = sum(instance["merges"] for instance in instances)
    attempts = sum(instance["attempts"] for instance in instances)
    with capsys.disabled():
        print(  # noqa: T201 - the figures are part of the result
            f"\n{url.partition(':')[0]}: {merges} merges by {INSTANCES} processes took {attempts} attempts"
        )
    assert merges == INSTANCES * ROUNDS
    assert merges <= attempts <= 10 * merges
    async with open_store(url) as store:
        for number in range(ROUNDS):
            answer = await store.read(f"op-{number}")
            assert isinstance(answer, Found)
            assert {stage.actor.id for stage in answer.document.stages.values()} == set(map(str, range(INSTANCES)))
            assert answer.revision.version == INSTANCES, "as many versions as changes"


async def test_the_demo_runs_unchanged_on_every_store(url: str) -> None:
    with trio.fail_after(60):
        played = await trio.run_process(
            [sys.executable, "-m", "timeline_trio.demo", "--speed", "4", "--json", "--store", url],
            stdin=b"",
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert (played.returncode, played.stderr) == (0, b"")
    final = Snapshot.from_json(played.stdout)
    assert {stage.actor.name for stage in final.stages} == {"ash", "birch", "cedar", "elm"}
    assert [stage.actor.name for stage in final.running_stages()] == ["cedar"], "it was killed"
    assert final.status is Status.FAILED


@pytest.mark.parametrize("url", ["postgres", "redis", "redis_cluster"], indirect=True)
async def test_what_another_process_saves_is_seen_without_polling(url: str) -> None:
    config = Config(flush_interval=3_600.0, load_interval=3_600.0)
    async with (
        open_store(url) as here,
        open_store(url) as there,
        open_manager(here, config=config) as first,
        open_manager(there, config=config) as second,
        second.watch("op") as snapshots,
    ):
        with trio.fail_after(30):
            while not second.statistics().listening:  # noqa: ASYNC110 - nobody is told of it
                await trio.sleep(0.01)
            for number in range(10):
                first.begin("op", "work", stage_id=str(number))
                first.flush_soon("op")
                while len((await anext(snapshots)).stages) <= number:
                    pass
