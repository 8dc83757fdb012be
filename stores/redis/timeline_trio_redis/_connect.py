"""
How the driver makes a connection: from a URL's address, or as an application's client would.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from coredis import Redis, RedisCluster
from coredis.connection import TCPConnection, TCPLocation

from timeline_trio.model import InvalidValue
from timeline_trio.store import StoreUnavailable

if TYPE_CHECKING:
    from coredis.connection import BaseConnection, BaseConnectionParams, Location

    from ._options import Address


class Connector:
    """
    Makes connections to the nodes of one server or cluster.

    Attributes:
        name: the server, for messages.
        locations: where it is; of a cluster, the nodes to begin with.
        is_cluster: whether it is a cluster.
        timeout: seconds for connecting, and for an answer.
    """

    def __init__(
        self,
        *,
        name: str,
        connection_class: type[BaseConnection],
        locations: tuple[Location, ...],
        is_cluster: bool,
        settings: BaseConnectionParams,
        timeout: float,
    ) -> None:
        self.name: str = name
        self.locations: tuple[Location, ...] = locations
        self.is_cluster: bool = is_cluster
        self._class = connection_class
        self._settings = settings
        self.timeout: float = timeout

    def connect(self, location: Location) -> BaseConnection:
        """
        Return a new connection, which does nothing before it is run.
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
        return self._class(location, **settings)


def connector_of_address(address: Address, timeout: float) -> Connector:
    """
    Make connections to where a URL points.

    Raises:
        StoreUnavailable: the file with certificates cannot be read.
    """
    settings: BaseConnectionParams = {"db": address.database}
    if address.user or address.password:
        settings["username"] = address.user or None
        settings["password"] = address.password
    if address.tls:
        try:
            settings["ssl_context"] = ssl.create_default_context(cafile=address.ca_file or None)
        except OSError as error:
            raise StoreUnavailable("", f"the file {address.ca_file!r} with certificates cannot be read") from error
    return Connector(
        name=address.name,
        connection_class=TCPConnection,
        locations=(TCPLocation(address.host, address.port),),
        is_cluster=address.cluster,
        settings=settings,
        timeout=timeout,
    )


def connector_of_client(client: object, timeout: float) -> Connector:
    """
    Make connections with the settings of an application's client.

    Raises:
        InvalidValue: it is no client, or one that does not know where its server is.
    """
    if isinstance(client, RedisCluster):
        cluster = client.connection_pool
        return Connector(
            name="cluster " + ", ".join(map(repr, cluster.startup_nodes)),
            connection_class=TCPConnection,
            locations=tuple(cluster.startup_nodes),
            is_cluster=True,
            settings=cluster.connection_kwargs,
            timeout=timeout,
        )
    if not isinstance(client, Redis):
        raise InvalidValue("server", f"expected a URL, a coredis.Redis or a RedisCluster, got {type(client).__name__}")
    pool = client.connection_pool
    if pool.location is None:
        raise InvalidValue("server", "a client of Sentinel does not say where the primary is; give its address")
    return Connector(
        name=f"at {pool.location!r}",
        connection_class=pool.connection_class,
        locations=(pool.location,),
        is_cluster=False,
        settings=pool.connection_kwargs,
        timeout=timeout,
    )
