"""
A Redis Cluster: which node serves a slot, and what to do when that changes.

The map of slots is asked for once, and again when a node cannot be reached or sends a command elsewhere.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import trio
from coredis.connection import TCPLocation
from coredis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    TryAgainError,
)
from coredis.exceptions import (
    ConnectionError as ConnectionFailed,
)

from ._failures import NotConnected, translate
from ._link import Link
from ._server import Command, Reply, StoreClosed
from ._subscription import subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from coredis.connection import Location

    from ._connect import Connector
    from ._connections import Connections

_TRIES: Final = 5
_PAUSE: Final = 0.05  # seconds before a command is sent again to a slot that is on its way
_MAP_TIMEOUT: Final = 2.0  # seconds for one node to tell the map, where there are others
_NODES_ASKED: Final = 3  # at least, within the timeout


class _Sending:
    """
    A command on its way: where it goes, and what came of it.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.location: Location | None = None  # where a redirection sent it, for the next try only
        self.asking = False
        self.reply: Reply = None
        self.node: Location | None = None  # where the reply came from


class ClusterServer:
    """
    Sends each command to the node that serves its slot.
    """

    def __init__(self, connector: Connector, connections: Connections) -> None:
        self._connector = connector
        self._connections = connections
        self._links: dict[Location, Link] = {}
        self._slots: dict[int, Location] = {}
        self._nodes: list[Location] = list(connector.locations)
        self._stale = True
        self._refreshing = trio.Lock()
        self._asked = 0  # times that all nodes were asked for the map in vain
        self._failure: tuple[Location, Exception] | None = None  # of the last one that was asked for the map

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
        return sum(link.is_open for link in self._links.values())

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """
        Send commands together, and return a reply each. Cancelled, any of them may have been done.

        Those for one node are sent in their order; those for different nodes at the same time.
        """
        sendings = [_Sending(command) for command in commands]
        waiting = sendings
        for number in range(_TRIES):
            if number > 1:
                await trio.sleep(_PAUSE * number)
            await self._refresh()
            await self._send(waiting)
            waiting = [sending for sending in waiting if self._is_redirected(sending)]
            if not waiting:
                break
        return [self._reply_of(sending) for sending in sendings]  # noqa: ASYNC910 - there is always one try

    def subscribe(self, channel: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """
        Receive what is published on a channel. A cluster tells all its nodes, so any of them will do.

        Raises:
            StoreUnavailable: on entering, or at any step of the iterator.
        """
        nodes = random.sample(self._nodes, len(self._nodes))
        return subscribe(self._connector, nodes, channel, self._connections)

    async def _send(self, sendings: Iterable[_Sending]) -> None:
        await trio.lowlevel.checkpoint()
        groups: dict[tuple[Location, bool], list[_Sending]] = {}
        for sending in sendings:
            location = sending.location or self._slots.get(sending.command.slot)
            if location is None:
                sending.node, sending.reply = self._failure or (None, ClusterDownError("no node serves the slot"))
                self._stale = True
            else:
                groups.setdefault((location, sending.asking), []).append(sending)
        if len(groups) == 1:
            ((target, group),) = groups.items()
            await self._send_group(*target, group)
            return
        async with trio.open_nursery() as nursery:
            for target, group in groups.items():
                nursery.start_soon(self._send_group, *target, group)

    async def _send_group(self, location: Location, asking: bool, group: Sequence[_Sending]) -> None:  # noqa: FBT001 - a task's arguments
        replies = await self._link(location).run([sending.command for sending in group], asking=asking)
        for sending, reply in zip(group, replies, strict=True):
            sending.reply, sending.node = reply, location
            sending.location, sending.asking = None, False
            if isinstance(reply, ConnectionFailed | TimeoutError | ClusterDownError):
                self._stale = True
            elif isinstance(reply, AskError):  # a MovedError is one
                host = reply.host or getattr(location, "host", "")
                sending.location = TCPLocation(host, reply.port)
                sending.asking = not isinstance(reply, MovedError)
                if isinstance(reply, MovedError):
                    self._slots[sending.command.slot] = sending.location
                    self._stale = True

    def _reply_of(self, sending: _Sending) -> Reply:
        if not isinstance(sending.reply, Exception):
            return sending.reply
        connector = self._connector
        node = None if isinstance(sending.reply, StoreClosed) else sending.node
        return translate(sending.reply, connector.place_of(node) if node else connector.place)

    @staticmethod
    def _is_redirected(sending: _Sending) -> bool:
        return isinstance(sending.reply, AskError | TryAgainError)

    def _link(self, location: Location) -> Link:
        link = self._links.get(location)
        if link is None:
            link = self._links[location] = Link(self._connector, location, self._connections)
        return link

    async def _refresh(self) -> None:
        """
        Ask for the map of slots, if something says that it has changed. If nobody answers, the old one stays.
        """
        if not self._stale:
            return  # noqa: ASYNC910 - sending is the checkpoint
        asked = self._asked
        async with self._refreshing:
            if not self._stale or self._asked != asked:
                return  # somebody did, while this one was in line
            # A caller waits for the map no longer than for an answer, so a few silent nodes must leave time for others.
            with trio.move_on_after(self._connector.timeout):
                await self._ask_all()
            self._asked += 1

    async def _ask_all(self) -> None:  # noqa: ASYNC910 - there is at least one node
        known = dict.fromkeys([*random.sample(self._nodes, len(self._nodes)), *self._connector.locations])
        patience = self._connector.timeout
        if len(known) > 1:
            patience = min(_MAP_TIMEOUT, patience / _NODES_ASKED)
        for location in known:
            with trio.move_on_after(patience) as scope:
                (reply,) = await self._link(location).run([_ASK_FOR_SLOTS])
                if self._take_map(reply, location):
                    return
                self._failure = (location, reply) if isinstance(reply, Exception) else None
            if scope.cancelled_caught:
                self._failure = location, NotConnected(f"no map of the slots within {patience} s")

    def _take_map(self, reply: Reply, asked: Location) -> bool:
        slots: dict[int, Location] = {}
        if not isinstance(reply, list):
            return False
        for entry in reply:
            match entry:
                case [int(first), int(last), [bytes(host), int(port), *_], *_]:
                    # An empty host is the one that was asked.
                    name = host.decode() or getattr(asked, "host", "")
                    slots.update(dict.fromkeys(range(first, last + 1), TCPLocation(name, port)))
                case _:
                    return False
        if not slots:
            return False
        self._slots = slots
        self._nodes = list(dict.fromkeys(slots.values()))
        for location in self._links.keys() - set(self._nodes):
            self._links.pop(location).close()
        self._stale = False
        self._failure = None
        return True


_ASK_FOR_SLOTS: Final = Command(0, b"CLUSTER SLOTS", ())
