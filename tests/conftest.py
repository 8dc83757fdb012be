"""
Settings of all tests, and the private servers that some of them share.

A server starts when the first test asks for it, and ends with the session. One that is missing on this machine skips
the tests that ask for it, with what to install. With TIMELINE_FORBID_SKIPS set, as .ci/run does, whatever would be
skipped fails.

A test that needs nothing but an empty database takes `mysql_url`, `postgres_url`, `redis_url` or `redis_cluster_url`.
A test that kills, freezes or reconfigures the shared server takes the server as well, and puts it right again, also
when it fails; only what is killed or frozen is mended for the next test that takes a URL. A test that needs a server
with options of its own starts it with `parent=servers_parent()`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from timeline_trio.testing.servers import (
    MySQLServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    start_mariadb,
    start_mysql,
    start_postgres,
    start_redis,
    start_redis_cluster,
)

from .servers import empty_database, mend, servers_parent, shared

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# The same examples in each run, so that a failure is one for everybody, and no folder is left behind.
settings.register_profile("deterministic", derandomize=True, database=None, deadline=None, max_examples=60)
settings.load_profile("deterministic")

FORBID_SKIPS = bool(os.environ.get("TIMELINE_FORBID_SKIPS"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if FORBID_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if FORBID_SKIPS and report.skipped:
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySQLServer]:
    """
    MariaDB; Oracle MySQL where TIMELINE_MYSQLD names its program, as scripts/test-mysql9 does.
    """
    binary = os.environ.get("TIMELINE_MYSQLD")
    parent = servers_parent()
    started = start_mysql(binary=binary, parent=parent) if binary else start_mariadb(parent=parent)
    with shared(started) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with shared(start_postgres(parent=servers_parent())) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with shared(start_redis(parent=servers_parent())) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with shared(start_redis_cluster(parent=servers_parent())) as cluster:
        yield cluster


@pytest.fixture
def mysql_url(mysql_server: MySQLServer) -> Iterator[str]:
    """
    An empty database for one test.
    """
    yield from empty_database(mysql_server)


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """
    An empty database for one test.
    """
    yield from empty_database(postgres)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """
    An empty key space for one test.
    """
    mend(redis_server)
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster) -> str:
    """
    An empty key space for one test.
    """
    for node in redis_cluster.nodes:
        mend(node)
    redis_cluster.wait_whole()
    redis_cluster.flush()
    return redis_cluster.url
