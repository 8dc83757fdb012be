"""
What all private servers have in common.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from . import _keeper
from ._errors import ServerFailed
from ._kept import Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

HOST = "127.0.0.1"
_POLL_SECONDS = 0.02
_FIRST_PORT = 10_000
_LAST_PORT = 65_535
_PORT_TRIES = 1_000


class Server(ABC):
    """
    A private server on this machine; `start_mariadb` and its like give one.

    Its methods block, and belong to one caller at a time.

    Attributes:
        host: always 127.0.0.1.
        port: its own, which a restart keeps.
        folder: its own, with its data in `data`; removed at the end of the `with` block.
        log: what the server printed, over all its starts.
    """

    _stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path, *, options: Sequence[str], timeout: float, owner: str = "") -> None:
        self.host: str = HOST
        self.port: int = free_port()
        self.folder: Path = folder
        self.log: Path = folder / "server.log"
        self._options = list(options)
        self._timeout = timeout
        self._owner = owner
        self._kept: Kept | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """
        What `open_store` takes.
        """

    @property
    def is_running(self) -> bool:
        """
        Whether it has processes, frozen or not.
        """
        return self._kept is not None and self._kept.is_running()

    def kill(self) -> None:
        """
        Kill all its processes with SIGKILL, as a crash would, and return when they are gone. The data stays.
        """
        if self._kept is not None:
            self._kept.kill()

    def freeze(self) -> None:
        """
        Stop all its processes with SIGSTOP, and return when none of them runs. Connecting to it hangs.
        """
        self._running().freeze()

    def thaw(self) -> None:
        """
        Let all its processes go on after `freeze`.
        """
        self._running().thaw()

    def stop(self) -> None:
        """
        Let it shut down in good order, frozen or not, and return when it is gone. The data stays.

        Raises:
            ServerFailed: it was not gone within the `timeout` of its start, and has been killed.
        """
        if not self.is_running:
            return
        kept = self._running()
        kept.thaw()
        if not kept.finish(self._stop_signal, self._timeout):
            kept.kill()
            raise ServerFailed.after(f"{self!r} did not shut down within {self._timeout} s", self.log)

    def restart(self) -> None:
        """
        Start it on the same data and port, after `kill`, after `stop`, or after stopping it; return when it answers.

        Raises:
            ServerFailed: it ended, or did not answer within the `timeout` of its start.
        """
        self.stop()
        self._kept = Kept(self._command(), folder=self.folder, log=self.log, owner=self._owner)
        is_decided = until(lambda: not self.is_running or self._answers(), self._timeout)
        if not self.is_running:
            raise ServerFailed.after(f"{self!r} ended while it was started", self.log)
        if not is_decided:
            self.kill()
            raise ServerFailed.after(f"{self!r} did not answer within {self._timeout} s", self.log)

    @abstractmethod
    def _command(self) -> list[str]:
        """
        Return the command that runs it in the foreground.
        """

    @abstractmethod
    def _answers(self) -> bool:
        """
        Tell whether it does what it is there for; asked through its own socket, since the port may be another's.
        """

    def _running(self) -> Kept:
        if self._kept is None or not self._kept.is_running():
            raise ServerFailed(f"{self!r} is not running; restart() starts it")
        return self._kept

    def _run(self, command: Sequence[str]) -> None:
        """
        Run what prepares its folder.
        """
        kept = Kept(command, folder=self.folder, log=self.log, owner=self._owner)
        if not kept.is_gone_within(self._timeout):
            kept.kill()
            raise ServerFailed.after(f"{command[0]} did not end within {self._timeout} s", self.log)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.host}:{self.port}>"


@contextmanager
def private_folder(kind: str, parent: Path | None, *, owner: str = "") -> Generator[Path]:
    """
    Give a folder for one server, and remove it.

    Args:
        kind: a part of its name.
        parent: the folder that it is made in; the one for temporary files if none.
        owner: "uid:gid" that it belongs to, empty for this process's own.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"timeline-{kind}-", dir=parent))
    try:
        if owner:
            user, group = map(int, owner.split(":"))
            os.chown(folder, user, group)
        yield folder
    finally:
        _keeper.remove(folder)


@contextmanager
def ended(server: Server) -> Generator[None]:
    """
    Leave no process of a server.
    """
    try:
        yield
    finally:
        server.kill()


def until(condition: Callable[[], bool], timeout: float) -> bool:
    """
    Ask again and again, since a server gives no signal that it is ready, and return the last answer.
    """
    deadline = time.monotonic() + timeout
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return answer


def free_port() -> int:
    """
    Return a port that nobody listens on.

    It is outside of those that the system gives to outgoing connections: one of these could take it while the server
    is down, and a client that connects to a closed port of its own machine may even reach itself.
    """
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    below, above = range(_FIRST_PORT, first), range(last + 1, _LAST_PORT + 1)
    # Where the system leaves hardly any, it has to be one of its own.
    ports = next((each for each in (below, above) if len(each) >= _PORT_TRIES), range(_FIRST_PORT, _LAST_PORT + 1))
    for _ in range(_PORT_TRIES):
        port = random.choice(ports)  # noqa: S311 - it is no secret
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ServerFailed(f"no free port on {HOST} from {ports[0]} to {ports[-1]}")
