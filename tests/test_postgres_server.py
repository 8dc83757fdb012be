"""
Tests of a PostgreSQL server that is restarted, killed, frozen, or refuses, and of many instances on one.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psycopg
import pytest
import trio

from timeline_trio import Actor, Config, open_manager
from timeline_trio.model import Status
from timeline_trio.store import Found, StoreUnavailable
from timeline_trio.testing.servers import ServerMissing, start_postgres
from timeline_trio_postgres import PostgresStore, open_postgres

from .case_support import Failures, interval
from .postgres_support import (
    connected,
    locked_table,
    name_of,
    nothing_left,
    rows,
    sessions,
    update,
    wait_until,
    wait_waiting,
)
from .support import assert_counters_add_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from timeline_trio import Manager
    from timeline_trio.store import Store
    from timeline_trio.testing.servers import PostgresServer

INSTANCE = Path(__file__).with_name("postgres_instance.py")
SECRET = "s3cr3t"  # noqa: S105 - it opens nothing


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with open_postgres(postgres_url) as opened:
        yield opened


async def fill_pool(store: PostgresStore) -> None:
    """
    Let all connections be open and idle.
    """
    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(store.merge, f"op-{number}", update())
    assert store.statistics().pool.idle == 4


@pytest.mark.parametrize("ending", ["kill", "stop"])
async def test_server_that_was_restarted_while_nobody_asked_is_used_as_before(
    store: PostgresStore, postgres: PostgresServer, ending: str
) -> None:
    await fill_pool(store)
    await trio.to_thread.run_sync(getattr(postgres, ending))
    await trio.to_thread.run_sync(postgres.restart)
    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(store.merge, f"op-{number}", update("t"))
    assert store.statistics().pool.discarded == 4
    assert len(await store.latest(0, 99)) == 16


async def test_sessions_that_an_administrator_ended_are_replaced(store: PostgresStore, postgres_url: str) -> None:
    await fill_pool(store)
    with connected(postgres_url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'timeline-trio'"
        )
        for number in range(16):
            await store.merge(f"op-{number}", update("t"))
        await wait_until(lambda: sessions(connection) == 1)


class Outcome:
    """
    How a call ends that is made while something happens.
    """

    def __init__(self, call: Callable[[], Awaitable[object]]) -> None:
        self._call = call
        self.failure: StoreUnavailable | None = None

    async def run(self) -> None:
        try:
            await self._call()
        except StoreUnavailable as failure:
            self.failure = failure


def others_waiting(connection: psycopg.Connection, known: list[int]) -> list[int]:
    statement = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    return [pid for (pid,) in connection.execute(statement) if pid not in known]


@pytest.mark.parametrize("endings", [1, 2])
async def test_session_that_is_ended_in_the_middle_of_a_merge_is_replaced_once(
    store: PostgresStore, postgres_url: str, endings: int
) -> None:
    await store.merge("op", update())
    outcome = Outcome(partial(store.merge, "op", update("t")))
    with connected(postgres_url) as watcher, locked_table(postgres_url):
        ended: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome.run)
            for _ in range(endings):
                await wait_until(partial(others_waiting, watcher, ended))
                ended += others_waiting(watcher, ended)
                watcher.execute("SELECT pg_terminate_backend(%s)", (ended[-1],))
            if endings == 1:
                await wait_until(partial(others_waiting, watcher, ended))
                nursery.cancel_scope.cancel()
    if endings == 2:
        assert outcome.failure is not None
        assert "closed the connection (57P01: " in str(outcome.failure)
        assert "; it is shutting down, or an administrator ended" in str(outcome.failure)
        assert isinstance(outcome.failure.__cause__, psycopg.errors.AdminShutdown)
    await store.merge("op", update("t"))
    assert (await store.read("op")).revision.version == 2


@pytest.mark.parametrize("ending", ["kill", "stop"])
async def test_server_that_goes_in_the_middle_of_a_merge_is_an_outage_until_it_is_back(
    store: PostgresStore, postgres: PostgresServer, postgres_url: str, ending: str
) -> None:
    await fill_pool(store)
    outcome = Outcome(partial(store.merge, "op-1", update("t")))
    with closing(psycopg.connect(postgres_url)) as other, closing(psycopg.connect(postgres_url)) as watcher:
        watcher.autocommit = True
        other.execute("LOCK TABLE timelines IN ACCESS EXCLUSIVE MODE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome.run)
            await wait_waiting(watcher)
            await trio.to_thread.run_sync(getattr(postgres, ending))
    assert outcome.failure is not None
    for call in (store.read("op-1"), store.merge("op-1", update("t")), store.latest(0, 9)):
        with pytest.raises(StoreUnavailable, match="Connection refused"):
            await call
    assert store.statistics().pool.open == 0
    await trio.to_thread.run_sync(postgres.restart)
    await store.merge("op-1", update("t"))
    answer = await store.read("op-1")
    assert answer.revision.version == 2


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """
    A server that asks for passwords.
    """
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start_postgres(options=["--max-connections=12"]))
        except ServerMissing as missing:
            pytest.skip(str(missing))
        server.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'; GRANT ALL ON DATABASE timelines TO guarded")
        server.execute("GRANT ALL ON SCHEMA public TO guarded", database="timelines")
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        server.execute("SELECT pg_reload_conf()")
        yield server


async def test_password_opens_and_a_wrong_one_is_told_without_it(guarded: PostgresServer) -> None:
    url = guarded.url.replace("postgres@", "guarded:{}@")
    async with open_postgres(url.format(SECRET)) as store:
        await store.merge("op", update())
        assert await name_of(store) == "work"
    for password in ("wr0ng", ""):
        with pytest.raises(StoreUnavailable, match=r"could not be connected to: .*password") as caught:
            async with open_postgres(url.format(password)):
                pytest.fail("it opened")
        assert "FATAL" not in str(caught.value)
        assert str(caught.value).startswith(f"guarded@127.0.0.1:{guarded.port}/timelines could not be connected to: ")
        assert "wr0ng" not in f"{caught.value} {caught.value.__cause__} {caught.value!r}"


async def test_server_without_room_for_another_session_is_an_outage(guarded: PostgresServer) -> None:
    async with open_postgres(guarded.url) as store:
        with ExitStack() as stack:
            with suppress(psycopg.OperationalError):  # too many clients
                while True:
                    stack.enter_context(psycopg.connect(guarded.url))
            await store.merge("op-1", update())
            with pytest.raises(StoreUnavailable, match="too many clients"):
                async with open_postgres(guarded.url):
                    pytest.fail("it opened")


def busy_config(failures: Failures, **options: float) -> Config:
    return Config(flush_interval=0.05, load_interval=0.2, on_error=failures, **options)  # type: ignore[arg-type]


async def record_until(manager: Manager, stop: trio.Event, name: str, recorded: set[tuple[str, str]]) -> None:
    number = 0
    while not stop.is_set():
        opid = f"op-{number % 8}"
        manager.record(opid, interval(str(number), actor=Actor(name)))
        recorded.add((opid, f"id:{name}:{number}"))
        number += 1
        await trio.sleep(0.01)


async def recorded_in(store: Store) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for answer in await store.mget([f"op-{number}" for number in range(8)]):
        assert isinstance(answer, Found)
        found |= {(answer.opid, f"{actor}:{stage}") for stage, actor in answer.document.stages}
    return found


async def go_through(
    url: str, trouble: Callable[[], object], recovery: Callable[[], object], *, seconds: float
) -> None:
    """
    Let two managers record while the server is in trouble, and assert that nothing is lost, nor told to be.
    """
    failures = Failures()
    recorded: set[tuple[str, str]] = set()
    stop = trio.Event()
    config = busy_config(failures, export_timeout=1)
    async with open_postgres(url) as one, open_postgres(url) as two:
        async with open_manager(one, config=config) as first, open_manager(two, config=config) as second:
            async with trio.open_nursery() as nursery:
                for manager, name in ((first, "first"), (second, "second")):
                    nursery.start_soon(record_until, manager, stop, name, recorded)
                await trio.sleep(0.5)
                await trio.to_thread.run_sync(trouble)
                await trio.sleep(seconds)
                await trio.to_thread.run_sync(recovery)
                saved = [manager.statistics().saved_updates for manager in (first, second)]
                # The application goes on as it is.
                await wait_until(
                    lambda: all(
                        manager.statistics().saved_updates > before
                        for manager, before in zip((first, second), saved, strict=True)
                    ),
                    45,
                )
                stop.set()
            await wait_until(lambda: not first.statistics().pending_updates + second.statistics().pending_updates, 45)
            for manager in (first, second):
                counters = manager.statistics()
                assert (counters.dropped_updates, counters.rejected_updates) == (0, 0)
                assert_counters_add_up(manager)
        assert await recorded_in(one) == recorded
        assert max(one.statistics().pool.open, two.statistics().pool.open) <= 4
    assert {type(error) for _, error in failures.all} <= {StoreUnavailable}
    assert failures.all, "there was trouble"


async def test_nothing_is_lost_when_the_server_is_killed_under_load(
    postgres: PostgresServer, postgres_url: str
) -> None:
    await go_through(postgres_url, postgres.kill, postgres.restart, seconds=1.5)


async def test_nothing_is_lost_when_the_server_stands_still_for_ten_seconds(
    postgres: PostgresServer, postgres_url: str
) -> None:
    await go_through(postgres_url, postgres.freeze, postgres.thaw, seconds=10)
    with connected(postgres_url) as connection:
        await wait_until(lambda: sessions(connection) == 0)


@pytest.mark.parametrize("same", [False, True])
async def test_thirty_managers_create_operations_at_one_moment(postgres_url: str, same: bool) -> None:  # noqa: FBT001
    # C17
    failures = Failures()
    config = Config(flush_interval=3_600, load_interval=3_600, on_error=failures)
    begin = trio.Event()
    opids = ["op"] * 30 if same else [f"op-{number}" for number in range(30)]

    async def create(store: PostgresStore, number: int) -> None:
        async with open_manager(store, config=config) as manager:
            manager.record(opids[number], interval("s", actor=Actor(str(number))))
            await begin.wait()
            await manager.flush(opids[number])

    async with open_postgres(postgres_url) as one, open_postgres(postgres_url, pool_size=8) as two:
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(create, (one, two)[number % 2], number)
            begin.set()
        found = {answer.opid: answer for answer in await one.mget(opids)}
        assert set(found) == set(opids)
        for answer in found.values():
            assert isinstance(answer, Found)
            assert len(answer.document.stages) == answer.revision.version == (30 if same else 1)
    assert not failures.all


async def test_nobody_starves_on_a_hot_row(postgres_url: str) -> None:
    # D04
    waits: list[float] = []
    seconds: list[float] = []
    async with open_postgres(postgres_url, pool_size=16) as store:

        async def write(number: int) -> None:
            began = trio.current_time()
            for count in range(20):
                asked = trio.current_time()
                await store.merge("op", update(f"{number} {count}"))
                waits.append(trio.current_time() - asked)
            seconds.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(write, number)
        answer = await store.read("op")
        assert isinstance(answer, Found)
        assert len(answer.document.stages) == answer.revision.version == 16 * 20
        counts = store.statistics()
    print(f"{counts.attempts} attempts of {counts.merges} merges, worst wait {max(waits):.2f} s")  # noqa: T201
    assert counts.attempts <= 10 * counts.merges
    assert max(seconds) < 5 * median(seconds)


def start_instances(
    stack: ExitStack, url: str, task: str, names: list[str], rounds: int
) -> list[subprocess.Popen[str]]:
    running: list[subprocess.Popen[str]] = []
    for name in names:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, INSTANCE, url, task, name, str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        running.append(process)
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return running


def play_round(running: list[subprocess.Popen[str]]) -> list[str]:
    """
    Let all instances go on at once, and return what each one says.
    """
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said: list[str] = []
    for process in running:
        assert process.stdout is not None
        said.append(process.stdout.readline())
    return said


async def test_sixteen_processes_record_into_one_operation_at_one_moment(postgres_url: str) -> None:
    # D01
    names = [f"instance-{number}" for number in range(16)]
    with ExitStack() as stack:
        running = start_instances(stack, postgres_url, "merge_rounds", names, 20)
        for _ in range(20):
            last = await trio.to_thread.run_sync(play_round, running)
        merges, attempts = (sum(int(line.split()[n]) for line in last) for n in (0, 1))
    print(f"{attempts} attempts of {merges} merges")  # noqa: T201
    assert merges == 16 * 20
    assert attempts <= 10 * merges
    async with open_postgres(postgres_url) as store:
        for answer in await store.mget([f"op-{number}" for number in range(20)]):
            assert isinstance(answer, Found)
            assert set(answer.document.stages) == {("s", f"id:{name}") for name in names}
            assert answer.revision.version == 16
    assert len(rows(postgres_url, "SELECT id FROM timelines")) == 20


async def test_two_processes_do_the_same_stage_and_their_background_saves_both(postgres_url: str) -> None:
    # parity 89
    with ExitStack() as stack:
        running = start_instances(stack, postgres_url, "manage", ["a", "b"], 1)
        assert await trio.to_thread.run_sync(play_round, running) == ["0\n", "0\n"]
    async with open_postgres(postgres_url) as store:
        answer = await store.read("op")
        assert isinstance(answer, Found)
        stages = answer.document.stages
        assert {key: stage.status for key, stage in stages.items()} == {
            ("install", "id:a"): Status.SUCCEEDED,
            ("install", "id:b"): Status.SUCCEEDED,
        }
