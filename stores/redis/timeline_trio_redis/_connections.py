"""
What runs a store's connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from trio.lowlevel import enable_ki_protection

from ._server import StoreClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Connections:
    """
    The tasks of a store's connections, for as long as its block.
    """

    _nursery: trio.Nursery

    def __init__(self) -> None:
        self.ready: trio.Event = trio.Event()
        # Shielded, since a block that is cancelled may still save what it has, as a manager does; its end cancels this.
        self._scope = trio.CancelScope(shield=True)

    @property
    def are_closed(self) -> bool:
        """
        Whether the store's block has ended.
        """
        return self._scope.cancel_called

    @enable_ki_protection
    async def run(self) -> None:
        """
        Run the connections until they are closed.
        """
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                self.ready.set()
                await trio.sleep_forever()

    def start(self, run: Callable[[], Awaitable[None]]) -> None:
        """
        Run a connection.

        Raises:
            StoreClosed: a call was still under way when the store's block ended.
        """
        if self.are_closed:
            raise StoreClosed
        self._nursery.start_soon(run)

    def close(self) -> None:
        """
        Close all of them; none is opened any more.
        """
        self._scope.cancel()
