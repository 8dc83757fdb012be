"""
How the driver makes a connection: from a URL's address, or as an application's client would.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

import msgspec
from coredis import Redis, RedisCluster
from coredis.connection import TCPConnection, TCPLocation

from timeline_trio.model import InvalidValue

from ._place import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import ByteStream
    from coredis.connection import BaseConnection, BaseConnectionParams, Location

    from ._options import Address, Options

_LONGEST_REFUSAL: Final = 200  # bytes


class Connector:
    """
    Makes connections to the nodes of one server or cluster.

    Attributes:
        place: the server or cluster, for messages.
        locations: where it is; of a cluster, the nodes to begin with.
        timeout: seconds for connecting, and for an answer.
    """

    def __init__(
        self,
        *,
        place: Place,
        connection_class: type[BaseConnection],
        locations: tuple[Location, ...],
        settings: BaseConnectionParams,
        timeout: float,
    ) -> None:
        self.place: Place = place
        self.locations: tuple[Location, ...] = locations
        self._class = connection_class
        self._settings = settings
        self.timeout: float = timeout

    @property
    def is_cluster(self) -> bool:
        """
        Whether it is a cluster.
        """
        return self.place.cluster

    def place_of(self, location: Location) -> Place:
        """
        Return one of the nodes, for messages.
        """
        if not self.is_cluster:
            return self.place
        return msgspec.structs.replace(self.place, name=f"{location!r} of the cluster {self.place.name}")

    def connect(self, location: Location, on_refusal: Callable[[bytes], None]) -> BaseConnection:
        """
        Return a new connection, which does nothing before it is run.

        Args:
            location: where to.
            on_refusal: is called with the error that a server sends before all else, as when it closes the connection
                then.
        """
        # What the store relies on goes over what a client may have been made with.
        settings: BaseConnectionParams = {
            **self._settings,
            "encoding": "utf-8",
            "decode_responses": False,
            "noreply": False,
            "stream_timeout": self.timeout,
            "connect_timeout": self.timeout,
        }
        settings.pop("max_idle_time", None)
        settings.pop("processing_budget", None)
        connection = self._class(location, **settings)
        _listen(connection, on_refusal)
        return connection


def _listen(connection: BaseConnection, on_refusal: Callable[[bytes], None]) -> None:
    """
    Hear what a server says before it closes a new connection, of which the driver tells the closing alone.
    """
    # Each kind of connection overrides this one method.
    connect = connection._connect  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    async def connect_and_listen() -> ByteStream:
        stream = await connect()
        receive = stream.receive

        async def receive_first(max_bytes: int = 65_536) -> bytes:
            data = await receive(max_bytes)
            stream.receive = receive  # type: ignore[method-assign]
            if data.startswith(b"-"):
                on_refusal(data[1:_LONGEST_REFUSAL])
            return data

        stream.receive = receive_first  # type: ignore[method-assign]
        return stream

    connection._connect = connect_and_listen  # type: ignore[method-assign]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def connector_of_address(address: Address, options: Options) -> Connector:
    """
    Make connections to where a URL points.

    Raises:
        InvalidValue: the file with certificates cannot be read.
    """
    settings: BaseConnectionParams = {"db": address.database}
    if address.user or address.password:
        settings["username"] = address.user or None
        settings["password"] = address.password
    if address.tls:
        try:
            settings["ssl_context"] = ssl.create_default_context(cafile=address.ca_file or None)
        except OSError as error:
            problem = f"the file {address.ca_file!r} cannot be read, or holds no certificates in PEM form"
            raise InvalidValue("ca_file", problem) from error
    return Connector(
        place=Place(name=address.name, prefix=options.prefix, tls=address.tls, cluster=address.cluster),
        connection_class=TCPConnection,
        locations=(TCPLocation(address.host, address.port),),
        settings=settings,
        timeout=options.timeout,
    )


def connector_of_client(client: object, options: Options) -> Connector:
    """
    Make connections with the settings of an application's client.

    Raises:
        InvalidValue: it is no client, or one that does not know where its server is.
    """
    if isinstance(client, RedisCluster):
        cluster = client.connection_pool
        name = ", ".join(map(repr, cluster.startup_nodes))
        tls = cluster.connection_kwargs.get("ssl_context") is not None
        return Connector(
            place=Place(name=name, prefix=options.prefix, tls=tls, cluster=True),
            connection_class=TCPConnection,
            locations=tuple(cluster.startup_nodes),
            settings=cluster.connection_kwargs,
            timeout=options.timeout,
        )
    if not isinstance(client, Redis):
        raise InvalidValue("server", f"expected a URL, a coredis.Redis or a RedisCluster, got {type(client).__name__}")
    pool = client.connection_pool
    if pool.location is None:
        raise InvalidValue("server", "a client of Sentinel does not say where the primary is; give its address")
    tls = pool.connection_kwargs.get("ssl_context") is not None
    return Connector(
        place=Place(name=f"at {pool.location!r}", prefix=options.prefix, tls=tls),
        connection_class=pool.connection_class,
        locations=(pool.location,),
        settings=pool.connection_kwargs,
        timeout=options.timeout,
    )
