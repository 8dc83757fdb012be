"""
What private SQL servers have in common.
"""

from __future__ import annotations

import subprocess
from abc import abstractmethod
from typing import TYPE_CHECKING

from ._errors import ServerFailed
from ._server import Server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_STATEMENT_SECONDS = 60.0


class SQLServer(Server):
    """
    A private server that speaks SQL. It has one database from the start, "timelines", which `url` names.
    """

    def __init__(self, folder: Path, *, options: Sequence[str], timeout: float, owner: str = "") -> None:
        super().__init__(folder, options=options, timeout=timeout, owner=owner)
        self._databases = 0

    @property
    def url(self) -> str:
        """
        The URL of the database "timelines", for `open_store`.
        """
        return self.database_url("timelines")

    @abstractmethod
    def database_url(self, name: str) -> str:
        """
        Return the URL of a database, there or not.
        """

    def new_database(self, name: str | None = None) -> str:
        """
        Make an empty database, and return its URL.

        Args:
            name: letters, digits and underscores; one that is not taken when left out.

        Raises:
            ServerFailed: the server did not make it.
        """
        if name is None:
            self._databases += 1
            name = f"timelines_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.database_url(name)

    def drop_database(self, url: str) -> None:
        """
        Drop a database that `new_database` made, by its URL, whoever is connected to it.

        Raises:
            ServerFailed: the server did not drop it.
        """
        self.execute(self._drop_statement(url.rpartition("/")[2]))

    def execute(self, sql: str, *, database: str = "") -> list[list[str]]:
        """
        Run statements through the server's own command-line client, as its superuser.

        Args:
            sql: one or more statements, each committed by itself unless it says otherwise.
            database: the name or URL of the one to run in; none, or the server's own, when left out.

        Returns:
            The rows of all results, each value as the client prints it.

        Raises:
            ServerFailed: a statement failed, with the client's message, or there was no answer within 60 s.
        """
        try:
            done = self._client(sql, database.rpartition("/")[2], _STATEMENT_SECONDS)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self!r} did not answer a statement within {_STATEMENT_SECONDS} s") from None
        if done.returncode:
            raise ServerFailed(f"{self!r} refused a statement: {done.stderr.strip()}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    def _client(self, sql: str, database: str, timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - the server's own client
            self._client_command(database), input=sql, capture_output=True, text=True, timeout=timeout, check=False
        )

    def _answers(self) -> bool:
        try:
            return self._client("SELECT 1", "", self._timeout).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    @abstractmethod
    def _client_command(self, database: str) -> list[str]:
        """
        Return the client's command, which reads statements from its input and prints rows with tabs in between.
        """

    @abstractmethod
    def _drop_statement(self, name: str) -> str:
        """
        Return the statement that drops a database in use.
        """
