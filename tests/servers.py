"""
The private servers that tests share, and where a test starts one of its own.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from timeline_trio.testing.servers import (
    MySQLServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    Server,
    ServerMissing,
    SQLServer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

AnyServer = TypeVar("AnyServer", MySQLServer, PostgresServer, RedisServer, RedisCluster)

_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
_ROOM_BYTES = 4 << 30


def servers_parent() -> Path | None:
    """
    Return where servers keep their folders in tests: in memory where there is room, which halves the tests' time.

    Tests end processes, never the machine, so what a server wrote is there after a crash all the same.
    """
    return _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES else None


@contextmanager
def shared(start: AbstractContextManager[AnyServer]) -> Iterator[AnyServer]:
    """
    Start a server, or skip the test with what to install.
    """
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start)
        except ServerMissing as missing:
            pytest.skip(str(missing))
        yield server


def mend(server: Server) -> None:
    """
    Undo what a failed test may have left: a server killed or frozen.
    """
    if server.is_running:
        server.thaw()
    else:
        server.restart()


def empty_database(server: SQLServer) -> Iterator[str]:
    """
    Yield the URL of a database, and drop it.
    """
    mend(server)
    url = server.new_database()
    yield url
    mend(server)
    server.drop_database(url)
