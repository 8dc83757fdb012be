"""
Private PostgreSQL servers.
"""

from __future__ import annotations

import os
import pwd
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, final

from ._errors import ServerFailed
from ._programs import find_program, postgres_folders
from ._server import HOST, ended, private_folder
from ._sql import SQLServer

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

_PACKAGES = "postgresql"
_PROGRAMS = ("postgres", "psql", "initdb")


@final
class PostgresServer(SQLServer):
    """
    A private PostgreSQL server. "postgres" is its superuser and needs no password.
    """

    _stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # SIGTERM waits for clients to leave

    def __init__(
        self, folder: Path, *, programs: tuple[str, str], options: Sequence[str], timeout: float, owner: str
    ) -> None:
        super().__init__(folder, options=options, timeout=timeout, owner=owner)
        self._daemon, self._client_program = programs

    def database_url(self, name: str) -> str:
        """
        Return the URL of a database, there or not.
        """
        return f"postgres://postgres@{self.host}:{self.port}/{name}"

    def prepare(self, installer: str) -> None:
        """
        Make the data folder, and start for the first time.
        """
        self._run(
            [
                installer,
                f"--pgdata={self.folder / 'data'}",
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-instructions",
                "--no-sync",  # of the installer alone: an empty server is quickly made again
            ]
        )
        if not (self.folder / "data" / "PG_VERSION").exists():
            raise ServerFailed.after(f"{installer} made no data folder", self.log)
        self.restart()
        self.execute("CREATE DATABASE timelines")

    def _command(self) -> list[str]:
        return [
            self._daemon,
            "-D",
            str(self.folder / "data"),
            f"--port={self.port}",
            f"--listen-addresses={HOST}",
            f"--unix-socket-directories={self.folder}",
            "--shared-buffers=32MB",
            "--dynamic-shared-memory-type=mmap",  # in the folder, where a killed server leaves nothing behind
            *self._options,
        ]

    def _client_command(self, database: str) -> list[str]:
        return [
            self._client_program,
            "--no-psqlrc",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "--field-separator=\t",
            "--set=ON_ERROR_STOP=1",
            f"--host={self.folder}",
            f"--port={self.port}",
            "--username=postgres",
            f"--dbname={database or 'postgres'}",
        ]

    def _drop_statement(self, name: str) -> str:
        return f"DROP DATABASE {name} WITH (FORCE)"


@contextmanager
def start_postgres(
    *, options: Sequence[str] = (), timeout: float = 60.0, parent: Path | None = None
) -> Generator[PostgresServer]:
    """
    Start a private PostgreSQL server, and end it.

    It refuses to run as root, so root runs it as the user "postgres", else "nobody".

    Args:
        options: of the server's command line, such as "--max-connections=20"; they win over those given anyway.
        timeout: how many seconds a start may take, and so may an end in good order.
        parent: where its folder is made; the folder for temporary files when left out.

    Raises:
        ServerMissing: a program of it is not on this machine.
        ServerFailed: it did not come up.
    """
    daemon, client, installer = find_postgres()
    owner = _owner()
    with private_folder("postgres", parent, owner=owner) as folder:
        server = PostgresServer(folder, programs=(daemon, client), options=options, timeout=timeout, owner=owner)
        with ended(server):
            server.prepare(installer)
            yield server


def find_postgres() -> tuple[str, str, str]:
    """
    Return the programs that a PostgreSQL server needs: the server, its client and its installer.
    """
    folders = postgres_folders()
    daemon, client, installer = (find_program(name, _PACKAGES, folders=folders) for name in _PROGRAMS)
    return daemon, client, installer


def _owner() -> str:
    if os.geteuid() != 0:
        return ""
    known = {user.pw_name: user for user in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    return f"{user.pw_uid}:{user.pw_gid}"
