"""
Private MariaDB and Oracle MySQL servers.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

from ._errors import ServerFailed, ServerMissing
from ._programs import find_program
from ._server import HOST, ended, private_folder
from ._sql import SQLServer

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

_MARIADB_PACKAGES = "mariadb-server-core mariadb-client-core"
_MYSQL_PACKAGES = "mysql-server-core mysql-client-core, or see scripts/test-mysql9"


@final
class MySQLServer(SQLServer):
    """
    A private MariaDB or Oracle MySQL server. "root" needs no password.

    Attributes:
        version: what its program says, such as "mariadbd  Ver 10.11.19-MariaDB ...".
        is_mariadb: whether it is MariaDB, not Oracle's.
    """

    def __init__(
        self, folder: Path, *, programs: tuple[str, str], version: str, options: Sequence[str], timeout: float
    ) -> None:
        super().__init__(folder, options=options, timeout=timeout)
        self.version: str = version
        self.is_mariadb: bool = "MariaDB" in version
        self._daemon, self._client_program = programs
        self._socket = folder / "socket"

    def database_url(self, name: str) -> str:
        """
        Return the URL of a database, there or not.
        """
        return f"mysql://root@{self.host}:{self.port}/{name}"

    def prepare(self, installer: Sequence[str]) -> None:
        """
        Make the data folder, and start for the first time.
        """
        self._run([*installer, f"--datadir={self.folder / 'data'}", *self._user()])
        if not (self.folder / "data" / "mysql").exists():
            raise ServerFailed.after(f"{installer[0]} made no data folder", self.log)
        self.restart()
        # Names are not looked up, so that a client from 127.0.0.1 is not at "localhost".
        self.execute(
            f"CREATE USER IF NOT EXISTS root@'{HOST}'; GRANT ALL ON *.* TO root@'{HOST}' WITH GRANT OPTION;"
            "CREATE DATABASE timelines"
        )

    def _command(self) -> list[str]:
        return [
            self._daemon,
            "--no-defaults",
            *self._user(),
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            f"--socket={self._socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            f"--bind-address={HOST}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=64M",
            "--key-buffer-size=1M",
            *([] if self.is_mariadb else ["--mysqlx=OFF", "--secure-file-priv=NULL"]),
            *self._options,
        ]

    def _user(self) -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []  # it refuses root unless told so

    def _client_command(self, database: str) -> list[str]:
        return [
            self._client_program,
            "--no-defaults",
            f"--socket={self._socket}",
            "--user=root",
            "--batch",
            "--skip-column-names",
            *([database] if database else []),
        ]

    def _drop_statement(self, name: str) -> str:
        return f"DROP DATABASE {name}"


@contextmanager
def start_mariadb(
    *, options: Sequence[str] = (), timeout: float = 60.0, parent: Path | None = None
) -> Generator[MySQLServer]:
    """
    Start a private MariaDB server, and end it.

    Args:
        options: of the server's command line, such as "--max-allowed-packet=1M"; they win over those given anyway.
        timeout: how many seconds a start may take, and so may an end in good order.
        parent: where its folder is made; the folder for temporary files when left out.

    Raises:
        ServerMissing: a program of it is not on this machine.
        ServerFailed: it did not come up.
    """
    daemon, client, install = find_mariadb()
    installer = [install, "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]
    with private_folder("mariadb", parent) as folder:
        version = _version(daemon)
        server = MySQLServer(folder, programs=(daemon, client), version=version, options=options, timeout=timeout)
        with ended(server):
            server.prepare(installer)
            yield server


@contextmanager
def start_mysql(
    *, binary: str = "mysqld", options: Sequence[str] = (), timeout: float = 120.0, parent: Path | None = None
) -> Generator[MySQLServer]:
    """
    Start a private Oracle MySQL server, and end it.

    Args:
        binary: the server's program, by name or path; a script that passes its arguments on to it first will do.
        options: of the server's command line, such as "--max-allowed-packet=1M"; they win over those given anyway.
        timeout: how many seconds a start may take, and so may an end in good order.
        parent: where its folder is made; the folder for temporary files when left out.

    Raises:
        ServerMissing: a program of it is not on this machine, or `binary` is MariaDB's.
        ServerFailed: it did not come up.
    """
    daemon = find_program(binary, _MYSQL_PACKAGES)
    version = _version(daemon)
    if "MariaDB" in version:
        raise ServerMissing(daemon, _MYSQL_PACKAGES, "is MariaDB's, not Oracle MySQL's")
    try:
        client = find_program("mysql", _MYSQL_PACKAGES)
    except ServerMissing:
        client = find_program("mariadb", "mariadb-client-core")
    with private_folder("mysql", parent) as folder:
        server = MySQLServer(folder, programs=(daemon, client), version=version, options=options, timeout=timeout)
        with ended(server):
            server.prepare([daemon, "--no-defaults", "--initialize-insecure", "--secure-file-priv=NULL"])
            yield server


def find_mariadb() -> tuple[str, str, str]:
    """
    Return the programs that a MariaDB server needs: the server, its client and its installer.
    """
    daemon = find_program("mariadbd", _MARIADB_PACKAGES)
    find_program("my_print_defaults", _MARIADB_PACKAGES)  # the installer calls it
    return daemon, find_program("mariadb", _MARIADB_PACKAGES), find_program("mariadb-install-db", _MARIADB_PACKAGES)


def _version(daemon: str) -> str:
    told = subprocess.run([daemon, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 - as started
    return told.stdout.strip()
