"""
What the store needs of Redis, whether that is one server or a cluster. No driver is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager


Reply = bytes | int | float | None | list["Reply"] | Exception
"""What a command is answered with, or its failure."""


class Command(msgspec.Struct, frozen=True):
    """
    One command, on keys of one slot.
    """

    slot: int
    name: bytes
    arguments: tuple[str | bytes | int, ...]


class ScriptUnknown(Exception):
    """
    The server does not know the script, as after a restart. Send its source.
    """


class ContentDamaged(Exception):
    """
    What is stored there is not the store's, or has been damaged.
    """


class KeyForeign(Exception):
    """
    A key beside the operation holds something that is not the store's.

    Attributes:
        position: which of the script's keys, from 1.
    """

    def __init__(self, position: int) -> None:
        super().__init__(f"key {position}")
        self.position: int = position


class StoreClosed(Exception):
    """
    The store's block has ended, and its connections with it.
    """


class Server(Protocol):
    """
    Sends commands, in the order given for each node.
    """

    @property
    def name(self) -> str:
        """
        What it is called in messages; without a password.
        """
        ...

    @property
    def connections(self) -> int:
        """
        How many connections are open.
        """
        ...

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """
        Send commands together, and return a reply each.

        A reply may be a failure: a `StoreUnavailable` with the driver's error as its cause, a `ScriptUnknown`, a
        `ContentDamaged` or a `KeyForeign`. Cancelled, any of them may have been done.
        """
        ...

    def subscribe(self, channel: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """
        Receive what is published on a channel.

        Raises:
            StoreUnavailable: on entering, or at any step of the iterator.
        """
        ...
