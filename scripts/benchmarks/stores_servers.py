"""
The stores that are measured, each on a private server that writes as durably as its defaults say.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from loads import say

from timeline_trio.testing.servers import ServerMissing, start_mariadb, start_postgres, start_redis

if TYPE_CHECKING:
    from collections.abc import Generator


class Served(NamedTuple):
    """
    A store to be measured.

    Attributes:
        name: of the store.
        url: of an empty one, without options.
        pools: whether it takes the option `pool_size`.
    """

    name: str
    url: str
    pools: bool = False

    def url_with(self, connections: int, **options: str) -> str:
        """
        Return the URL with so many connections, where the store lets one choose, and with other options.
        """
        if self.pools:
            options["pool_size"] = str(connections)
        return f"{self.url}?{'&'.join(f'{name}={value}' for name, value in options.items())}".rstrip("?")


_STARTS = {
    "mysql": (start_mariadb, True),
    "postgres": (start_postgres, True),
    "redis": (start_redis, False),
}


@contextmanager
def start_stores() -> Generator[tuple[list[Served], list[str]]]:
    """
    Start a server for each store, and yield the stores and the names of those whose server is not on this machine.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stores, missing = [Served("sqlite", f"sqlite:///{folder}/timelines.db")], []
        for name, (start, pools) in _STARTS.items():
            say(f"starting the server of {name}", passing=True)
            try:
                server = stack.enter_context(start())
            except ServerMissing as error:
                say(f"NOT MEASURED: {name}: {error}")
                missing.append(name)
            else:
                stores.append(Served(name, server.url, pools))
        yield stores, missing
