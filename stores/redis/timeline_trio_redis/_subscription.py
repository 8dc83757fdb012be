"""
A subscription to a channel, on a connection of its own.

The driver's own subscriber connects anew by itself, and says nothing of what was published meanwhile; its buffer has
no bound. Here the loss of the connection ends the subscription, and what a slow reader leaves behind is dropped.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import trio
from trio.lowlevel import enable_ki_protection

from timeline_trio.store import StoreUnavailable

from ._failures import closed, translate, unavailable
from ._link import run_connection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from coredis.connection import BaseConnection, Location

    from ._connect import Connector
    from ._connections import Connections
    from ._server import Reply

_BUFFER: Final = 1024  # messages
_PING_INTERVAL: Final = 2  # timeouts


class _Subscription:
    """
    Receives a channel's messages until its connection is lost.
    """

    def __init__(self, connector: Connector, location: Location, channel: str) -> None:
        self.settled = trio.Event()
        self.subscribed = False
        self.failure: BaseException | None = None
        self.scope = trio.CancelScope()
        self._connector = connector
        self.location = location
        self._channel = channel.encode()
        self._sender, self.receiver = trio.open_memory_channel[bytes](_BUFFER)

    @enable_ki_protection
    async def run(self) -> None:  # noqa: ASYNC910 - a nursery that is cancelled ends without an exception
        """
        Subscribe, and pass on what comes, until the connection is lost or the scope cancelled.
        """
        await trio.lowlevel.checkpoint()
        try:
            with self._sender, self.scope:
                async with trio.open_nursery() as nursery:

                    def on_ready(connection: BaseConnection) -> None:
                        nursery.start_soon(self._receive, connection)
                        nursery.start_soon(self._ping, connection)

                    failure = await run_connection(self._connector, self.location, on_ready)
                    self.failure = self.failure or failure
                    nursery.cancel_scope.cancel()  # without a connection the others have nothing to do
        finally:
            self.settled.set()

    @enable_ki_protection
    async def _receive(self, connection: BaseConnection) -> None:  # noqa: ASYNC910 - messages are waited for
        try:
            async with aclosing(connection.push_messages) as messages:
                async for message in messages:
                    self._take(cast("Reply", message))
        except Exception as error:  # noqa: BLE001 - whatever the driver raises is about this connection only
            self.failure = self.failure or error
            connection.invalidate("the subscription has failed")

    def _take(self, message: Reply) -> None:
        match message:
            case [b"message", self._channel, bytes(payload)]:
                with suppress(trio.WouldBlock):  # what is told is a hint
                    self._sender.send_nowait(payload)
            case [b"subscribe", self._channel, *_]:
                self.subscribed = True
                self.settled.set()
            case _:
                pass

    @enable_ki_protection
    async def _ping(self, connection: BaseConnection) -> None:  # noqa: ASYNC910 - as above
        """
        Subscribe, and find out a dead connection, which is as silent as a channel on which nothing is published.

        A subscription is confirmed by a message, and refused by an error that comes in place of the first ping's reply.
        """
        try:
            connection.send_command(b"SUBSCRIBE", self._channel)
            while True:
                await connection.create_request(b"PING", decode=False)
                await trio.sleep(_PING_INTERVAL * self._connector.timeout)
        except Exception as error:  # noqa: BLE001 - whatever the driver raises is about this connection only
            self.failure = self.failure or error
            connection.invalidate("the subscription has failed")


class _Messages:
    """
    An iterator over a channel's messages, which raises when no more can come.
    """

    def __init__(self, subscription: _Subscription, loss: Callable[[], StoreUnavailable]) -> None:
        self._subscription = subscription
        self._loss = loss

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._subscription.receiver.receive()
        except trio.EndOfChannel:
            raise self._loss() from self._subscription.failure


@asynccontextmanager
async def subscribe(
    connector: Connector, locations: Sequence[Location], channel: str, connections: Connections
) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """
    Receive what is published on a channel, from the first of the locations that can be reached.

    Raises:
        StoreUnavailable: on entering, or at any step of the iterator.
    """
    failure: StoreUnavailable | None = None
    for location in locations:
        subscription = _Subscription(connector, location, channel)
        loss = partial(_loss, subscription, connector, connections)
        if connections.are_closed:
            await trio.lowlevel.checkpoint()
            raise loss()
        connections.start(subscription.run)
        try:
            with trio.move_on_after(connector.timeout):
                await subscription.settled.wait()
            if subscription.subscribed:
                yield _Messages(subscription, loss)
                return
        finally:
            subscription.scope.cancel()
        failure = loss()
        failure.__cause__ = subscription.failure
    raise failure or unavailable(connector.place.name, "has no node that can be reached")


def _loss(subscription: _Subscription, connector: Connector, connections: Connections) -> StoreUnavailable:
    if connections.are_closed:
        return closed(connector.place)
    place = connector.place_of(subscription.location)
    if subscription.failure is None:
        return unavailable(place.name, "did not confirm the subscription in time")
    failure = translate(subscription.failure, place)
    return failure if isinstance(failure, StoreUnavailable) else unavailable(place.name, "refused the subscription")
