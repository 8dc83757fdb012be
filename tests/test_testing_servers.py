"""
Private servers: what they keep, what a fault does to them, and that they leave nothing behind.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from timeline_trio.testing.servers import (
    MySQLServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    Server,
    ServerFailed,
    ServerMissing,
    SQLServer,
    missing_servers,
    start_mariadb,
    start_mysql,
    start_postgres,
    start_redis,
)
from timeline_trio.testing.servers._keeper import processes_below

from .servers import servers_parent

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Start = Callable[..., AbstractContextManager[Server]]

ROOT = Path(__file__).parent.parent
PATIENCE = 30.0
PARENT = servers_parent()
STARTERS: dict[str, Start] = {"mysql_server": start_mariadb, "postgres": start_postgres, "redis_server": start_redis}
# The first word of each protocol that makes the server speak; MariaDB greets unasked.
GREETINGS = {"mysql_server": b"", "postgres": b"\0\0\0\x08\x04\xd2\x16\x2f", "redis_server": b"PING\r\n"}


@pytest.fixture(params=STARTERS)
def kind(request: pytest.FixtureRequest) -> str:
    """
    The name of a fixture; asking for it here skips what cannot be started.
    """
    name: str = request.param
    request.getfixturevalue(name)
    return name


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> Server:
    shared: Server = request.getfixturevalue(kind)
    return shared


@pytest.fixture(params=["mysql", "postgres"])
def sql(request: pytest.FixtureRequest) -> tuple[SQLServer, str]:
    """
    A shared server and an empty database of it.
    """
    server = request.getfixturevalue({"mysql": "mysql_server", "postgres": "postgres"}[request.param])
    return server, request.getfixturevalue(f"{request.param}_url")


def wait_gone(watched: list[int]) -> None:
    for each in watched:
        assert select.select([each], [], [], PATIENCE)[0], "a process is still there"
        os.close(each)


def test_what_was_written_before_a_kill_is_there_after_a_restart(sql: tuple[SQLServer, str]) -> None:
    server, url = sql
    server.execute("CREATE TABLE kept (word varchar(9)); INSERT INTO kept VALUES ('still')", database=url)
    port = server.port
    server.kill()
    assert not server.is_running
    server.restart()
    assert server.execute("SELECT word, 1 FROM kept", database=url) == [["still", "1"]]
    assert server.port == port


def test_redis_keeps_what_was_written_before_a_kill_when_asked_to() -> None:
    with start_redis(options=["--appendonly", "yes", "--appendfsync", "always"]) as server:
        server.execute("SET", "word", "still")
        server.kill()
        server.restart()
        assert server.execute("GET", "word") == "still"


def test_redis_keeps_nothing_on_disk_unless_asked_to(redis_server: RedisServer) -> None:
    redis_server.execute("SET", "word", "gone")
    redis_server.restart()
    assert redis_server.execute("EXISTS", "word") == "0"


def test_a_frozen_server_lets_a_connection_wait_and_answers_once_thawed(kind: str, server: Server) -> None:
    server.freeze()
    try:
        with socket.create_connection((server.host, server.port), PATIENCE) as connection:
            connection.sendall(GREETINGS[kind])
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            server.thaw()
            connection.settimeout(PATIENCE)
            assert connection.recv(1)
    finally:
        server.thaw()


def states(pids: set[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def test_freezing_stops_every_process_of_postgres(postgres: PostgresServer) -> None:
    main = int((postgres.folder / "data" / "postmaster.pid").read_text().split()[0])
    everybody = {main, *processes_below(main)}
    assert len(everybody) > 1
    postgres.freeze()
    try:
        assert states(everybody) == {"T"}
    finally:
        postgres.thaw()
    assert "T" not in states(everybody)


def test_a_server_stops_in_good_order_even_when_frozen(server: Server) -> None:
    server.freeze()
    server.stop()
    assert not server.is_running
    server.stop()  # of no effect
    with pytest.raises(ServerFailed, match="is not running"):
        server.freeze()
    server.restart()
    assert server.is_running


def test_two_servers_at_once_share_nothing(kind: str, server: Server) -> None:
    with STARTERS[kind](parent=PARENT) as other:
        assert other.port != server.port
        assert other.folder != server.folder
        other.kill()
        assert server.is_running
        server.restart()
        assert not other.is_running


def segments_made_by(pids: set[int]) -> int:
    """
    Count the segments of shared memory that stay until they are removed.
    """
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return sum(int(line.split()[4]) in pids for line in lines)


@pytest.mark.parametrize("last", [Server.freeze, Server.kill])
def test_the_end_leaves_no_process_no_folder_and_no_shared_memory(kind: str, last: Callable[[Server], None]) -> None:
    before = processes_below(os.getpid())
    seen: list[tuple[Path, set[int]]] = []

    def use() -> None:
        with STARTERS[kind](parent=PARENT) as server:
            seen.append((server.folder, processes_below(os.getpid()) - before))
            assert segments_made_by(seen[0][1]) == (kind == "postgres")
            last(server)
            raise LookupError

    with pytest.raises(LookupError):
        use()
    ((folder, pids),) = seen
    assert processes_below(os.getpid()) == before
    assert not folder.exists()
    assert not segments_made_by(pids)


# The starter has a child that was forked and inherited all it has, and freezes the server: both are no hindrance.
STARTER = """
import os, sys, time
import timeline_trio.testing.servers as servers
with getattr(servers, sys.argv[1])() as server:
    if os.fork() == 0:
        time.sleep(600)
    server.freeze()
    print(server.folder, flush=True)
    time.sleep(600)
"""


def test_the_death_of_the_starter_ends_its_server(kind: str) -> None:
    with subprocess.Popen(  # noqa: S603 - a program of ours
        [sys.executable, "-c", STARTER, STARTERS[kind].__name__], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        folder = Path(starter.stdout.readline().strip())
        below = processes_below(starter.pid)
        programs = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in below}
        (forked,) = [pid for pid, program in programs.items() if STARTER.encode() in program]
        watched = [os.pidfd_open(pid) for pid in below - {forked}]
        starter.kill()
        starter.wait()
        wait_gone(watched)
        os.kill(forked, signal.SIGKILL)
    assert len(watched) >= 2
    assert not folder.exists()
    assert not segments_made_by(below)


def test_the_end_of_the_thread_that_started_a_server_ends_nothing() -> None:
    started = start_redis()
    servers: list[RedisServer] = []
    thread = threading.Thread(target=lambda: servers.append(started.__enter__()))
    thread.start()
    thread.join()
    try:
        assert servers[0].execute("PING") == "PONG"
    finally:
        started.__exit__(None, None, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_process_in_between_ends_the_server(number: signal.Signals) -> None:
    before = processes_below(os.getpid())
    with start_redis() as server:
        below = processes_below(os.getpid()) - before
        keeper = next(pid for pid in below if processes_below(pid))
        watched = [os.pidfd_open(pid) for pid in below]
        os.kill(keeper, number)
        wait_gone(watched)
        assert not server.is_running
    assert not server.folder.exists()


def test_a_program_that_is_missing_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissing, match="apt-get install redis-server") as missing, start_redis():
        pass
    assert missing.value.program == "redis-server"
    assert missing.value.packages == "redis-server"
    with (
        pytest.raises(ServerMissing, match=r"apt-get install mariadb-server-core mariadb-client-core"),
        start_mariadb(),
    ):
        pass
    with (
        pytest.raises(ServerMissing, match="no-such-server is not on this machine"),
        start_mysql(binary="no-such-server"),
    ):
        pass
    assert {"redis-server", "mariadb-server-core mariadb-client-core"} <= {each.packages for each in missing_servers()}


def test_mariadb_is_not_taken_for_oracle_mysql(mysql_server: MySQLServer) -> None:
    if not mysql_server.is_mariadb:
        return
    with pytest.raises(ServerMissing, match="is MariaDB's"), start_mysql(binary="mariadbd"):
        pass


def test_a_server_that_does_not_come_up_shows_its_log_and_leaves_nothing(kind: str) -> None:
    before = processes_below(os.getpid())
    with (
        pytest.raises(ServerFailed, match="no-such-option"),
        STARTERS[kind](options=["--no-such-option", "1"], parent=PARENT),
    ):
        pass
    assert processes_below(os.getpid()) == before


def test_a_server_that_does_not_answer_in_time_is_ended_and_says_so() -> None:
    before = processes_below(os.getpid())
    with (
        pytest.raises(ServerFailed, match=r"did not answer within 0\.2 s"),
        start_redis(options=["--requirepass", "secret"], timeout=0.2, parent=PARENT),
    ):
        pass
    assert processes_below(os.getpid()) == before


def test_options_reach_mariadb_and_it_is_durable_without_any(mysql_server: MySQLServer) -> None:
    asked = "SELECT @@max_allowed_packet, @@innodb_flush_log_at_trx_commit"
    assert mysql_server.execute(asked)[0][1] == "1"
    with start_mariadb(options=["--max-allowed-packet=2M"], parent=PARENT) as server:
        assert server.execute(asked) == [["2097152", "1"]]


def test_options_reach_postgres_and_it_is_durable_without_any(postgres: PostgresServer) -> None:
    assert postgres.execute("SHOW fsync; SHOW synchronous_commit; SHOW server_encoding") == [["on"], ["on"], ["UTF8"]]
    with start_postgres(options=["--max-connections=7"], parent=PARENT) as server:
        assert server.execute("SHOW max_connections") == [["7"]]


def test_a_new_database_is_empty_and_a_dropped_one_is_gone(sql: tuple[SQLServer, str]) -> None:
    server, url = sql
    tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema IN ('%s', 'public')"
    assert server.execute(tables % url.rpartition("/")[2], database=url) == [["0"]]
    other = server.new_database()
    assert other != url
    server.drop_database(other)
    with pytest.raises(ServerFailed, match=rf"(?i)database .*{other.rpartition('/')[2]}"):
        server.execute("SELECT 1", database=other)


def test_a_refused_statement_says_why(server: Server) -> None:
    if isinstance(server, RedisServer):
        with pytest.raises(ServerFailed, match="unknown command"):
            server.execute("NONSENSE")
    else:
        assert isinstance(server, SQLServer)
        with pytest.raises(ServerFailed, match=r"(?i)syntax"):
            server.execute("NONSENSE")


def test_a_flushed_redis_is_empty(redis_server: RedisServer) -> None:
    redis_server.execute("SET", "word", "gone")
    redis_server.flush()
    assert redis_server.execute("DBSIZE") == "0"


def test_a_cluster_covers_every_slot_and_is_whole_again_after_a_restart(redis_cluster: RedisCluster) -> None:
    assert len(redis_cluster.nodes) == 3
    redis_cluster.nodes[1].kill()
    redis_cluster.nodes[1].restart()
    redis_cluster.wait_whole()
    for node in redis_cluster.nodes:
        assert "cluster_slots_assigned:16384" in node.execute("CLUSTER", "INFO")
    redis_cluster.freeze()
    redis_cluster.stop()
    redis_cluster.restart()
    redis_cluster.flush()


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - pytest
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_missing_server_skips_its_tests_aloud_and_fails_them_where_skips_are_forbidden(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", __file__, "-k", "test_a_flushed_redis_is_empty"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("TIMELINE_FORBID_SKIPS", None)
    skipped = run(command, environment)
    assert "1 skipped" in skipped.stdout
    assert "apt-get install redis-server" in skipped.stdout
    environment["TIMELINE_FORBID_SKIPS"] = "1"
    failed = run(command, environment)
    assert failed.returncode == 1
    assert "apt-get install redis-server" in failed.stdout
