"""
Private Redis servers, and clusters of them.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, final

from ._errors import ServerFailed
from ._programs import find_program
from ._server import HOST, Server, ended, free_port, private_folder, until

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

_PACKAGES = "redis-server"
_ANSWER_SECONDS = 10.0
_SLOTS = 16_384
_NODES = 3


@final
class RedisServer(Server):
    """
    A private Redis server, without a password.
    """

    def __init__(self, folder: Path, *, program: str, options: Sequence[str], timeout: float) -> None:
        super().__init__(folder, options=options, timeout=timeout)
        self._program = program
        self._socket = folder / "socket"

    @property
    def url(self) -> str:
        """
        The URL of its first database, for `open_store`.
        """
        return f"redis://{self.host}:{self.port}/0"

    def flush(self) -> None:
        """
        Remove every key of every database.

        Raises:
            ServerFailed: it did not answer within 10 s.
        """
        self.execute("FLUSHALL")

    def execute(self, *words: str) -> str:
        """
        Send one command, over a connection of its own.

        Args:
            words: the command and its arguments, such as "CONFIG", "SET", "maxmemory", "1mb".

        Returns:
            The answer if it is a line, a number or a string; an array's protocol text as it is.

        Raises:
            ServerFailed: it refused the command, or did not answer within 10 s.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_ANSWER_SECONDS)
                connection.connect(str(self._socket))
                answer = _ask(connection, words)
        except OSError as error:
            raise ServerFailed(f"{self!r} did not answer {words[0]}: {error}") from error
        if answer.startswith("-"):
            raise ServerFailed(f"{self!r} refused {words[0]}: {answer[1:].strip()}")
        if answer.startswith("$"):
            return answer.partition("\r\n")[2].removesuffix("\r\n")
        return answer if answer.startswith("*") else answer[1:].removesuffix("\r\n")

    def prepare(self) -> None:
        """
        Make the data folder, and start for the first time.
        """
        (self.folder / "data").mkdir()
        self.restart()

    def _command(self) -> list[str]:
        return [
            self._program,
            *("--port", str(self.port)),
            *("--bind", HOST),
            *("--unixsocket", str(self._socket)),
            *("--dir", str(self.folder / "data")),
            *("--daemonize", "no"),
            *("--save", ""),
            *("--appendonly", "no"),
            *self._options,
        ]

    def _answers(self) -> bool:
        try:
            return self.execute("PING") == "PONG"  # not before its data is loaded
        except ServerFailed:
            return False


@final
class RedisCluster:
    """
    A private Redis Cluster of three masters.

    Attributes:
        nodes: its servers, each to be killed, frozen and restarted by itself.
    """

    def __init__(self, nodes: Sequence[RedisServer], timeout: float) -> None:
        self.nodes: tuple[RedisServer, ...] = tuple(nodes)
        self._timeout = timeout

    @property
    def url(self) -> str:
        """
        The URL of the cluster by its first node, for `open_store`.
        """
        return f"{self.nodes[0].url}?cluster=true"

    def flush(self) -> None:
        """
        Remove every key.

        Raises:
            ServerFailed: a node did not answer within 10 s.
        """
        for node in self.nodes:
            node.flush()

    def kill(self) -> None:
        """
        Kill all nodes with SIGKILL, and return when they are gone.
        """
        for node in self.nodes:
            node.kill()

    def freeze(self) -> None:
        """
        Stop all nodes with SIGSTOP, and return when none of them runs.
        """
        for node in self.nodes:
            node.freeze()

    def thaw(self) -> None:
        """
        Let all nodes go on after `freeze`.
        """
        for node in self.nodes:
            node.thaw()

    def stop(self) -> None:
        """
        Let all nodes shut down in good order, and return when they are gone.

        Raises:
            ServerFailed: one was not gone within the `timeout` of its start, and has been killed.
        """
        for node in self.nodes:
            node.stop()

    def restart(self) -> None:
        """
        Start all nodes on the same data and ports, and return when the cluster is whole.

        Raises:
            ServerFailed: one ended, or the cluster was not whole within the `timeout` of its start.
        """
        for node in self.nodes:
            node.restart()
        self.wait_whole()

    def wait_whole(self) -> None:
        """
        Wait until every node knows all nodes and finds the cluster in order, as after a node's own `restart`.

        Raises:
            ServerFailed: that was not so within the `timeout` of its start.
        """
        if not until(self._is_whole, self._timeout):
            states = [node.execute("CLUSTER", "INFO") for node in self.nodes]
            raise ServerFailed(f"{self!r} was not whole within {self._timeout} s: {states}")

    def join(self) -> None:
        """
        Make one cluster of the nodes.
        """
        bounds = [_SLOTS * index // len(self.nodes) for index in range(len(self.nodes) + 1)]
        for index, node in enumerate(self.nodes):
            node.execute("CLUSTER", "SET-CONFIG-EPOCH", str(index + 1))
            node.execute("CLUSTER", "ADDSLOTSRANGE", str(bounds[index]), str(bounds[index + 1] - 1))
        first = self.nodes[0]
        for node in self.nodes[1:]:
            bus = node.execute("CONFIG", "GET", "cluster-port").split("\r\n")[-2]
            first.execute("CLUSTER", "MEET", node.host, str(node.port), bus)
        self.wait_whole()

    def _is_whole(self) -> bool:
        known = f"cluster_known_nodes:{len(self.nodes)}\r\n"
        infos = [node.execute("CLUSTER", "INFO") for node in self.nodes]
        return all("cluster_state:ok\r\n" in info and known in info for info in infos)

    def __repr__(self) -> str:
        return f"<RedisCluster at {', '.join(f'{node.host}:{node.port}' for node in self.nodes)}>"


@contextmanager
def start_redis(
    *, options: Sequence[str] = (), timeout: float = 60.0, parent: Path | None = None
) -> Generator[RedisServer]:
    """
    Start a private Redis server, and end it.

    It keeps nothing on disk unless asked: a restart then finds no keys.

    Args:
        options: of the server's command line, such as "--appendonly", "yes"; they win over those given anyway.
        timeout: how many seconds a start may take, and so may an end in good order.
        parent: where its folder is made; the folder for temporary files when left out.

    Raises:
        ServerMissing: its program is not on this machine.
        ServerFailed: it did not come up.
    """
    program = find_redis()
    with private_folder("redis", parent) as folder:
        server = RedisServer(folder, program=program, options=options, timeout=timeout)
        with ended(server):
            server.prepare()
            yield server


@contextmanager
def start_redis_cluster(
    *, options: Sequence[str] = (), timeout: float = 60.0, parent: Path | None = None
) -> Generator[RedisCluster]:
    """
    Start a private Redis Cluster of three masters, which needs Redis 7, and end it.

    Args:
        options: of each server's command line; they win over those given anyway.
        timeout: how many seconds each node, and then the cluster, may take to come up.
        parent: where the folders of the nodes are made; the folder for temporary files when left out.

    Raises:
        ServerMissing: the server's program is not on this machine.
        ServerFailed: it did not come up.
    """
    with ExitStack() as stack:
        nodes: list[RedisServer] = []
        for _ in range(_NODES):
            clustered = ["--cluster-enabled", "yes", "--cluster-port", str(free_port()), *options]
            nodes.append(stack.enter_context(start_redis(options=clustered, timeout=timeout, parent=parent)))
        cluster = RedisCluster(nodes, timeout)
        cluster.join()
        yield cluster


def find_redis() -> str:
    """
    Return the program of a Redis server.
    """
    return find_program("redis-server", _PACKAGES)


def _ask(connection: socket.socket, words: Sequence[str]) -> str:
    """
    Send one command, and return the protocol text of its answer, which is complete when the server has closed.
    """
    encoded = [word.encode() for word in words]
    connection.sendall(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(each), each) for each in encoded))
    connection.sendall(b"*1\r\n$4\r\nQUIT\r\n")
    answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    return answer.removesuffix(b"+OK\r\n").decode()
