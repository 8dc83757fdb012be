"""
One Redis server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._link import Link, as_replies
from ._subscription import subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from ._connect import Connector
    from ._connections import Connections
    from ._server import Command, Reply


class SingleServer:
    """
    Sends all commands to one server.
    """

    def __init__(self, connector: Connector, connections: Connections) -> None:
        self._connector = connector
        self._connections = connections
        (location,) = connector.locations
        self._link = Link(connector, location, connections)

    @property
    def name(self) -> str:
        """
        What it is called in messages.
        """
        return self._connector.place.name

    @property
    def connections(self) -> int:
        """
        How many connections are open.
        """
        return int(self._link.is_open)

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """
        Send commands together, and return a reply each. Cancelled, any of them may have been done.
        """
        return as_replies(await self._link.run(commands), self._connector.place)

    def subscribe(self, channel: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """
        Receive what is published on a channel.

        Raises:
            StoreUnavailable: on entering, or at any step of the iterator.
        """
        return subscribe(self._connector, self._connector.locations, channel, self._connections)
