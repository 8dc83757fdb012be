"""
What the pool knows of sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio
from psycopg import Connection
from psycopg.rows import tuple_row

from timeline_trio.store import StoreUnavailable

from ._failures import is_lost
from ._protocol import connect
from ._session import Session
from ._timestamps import register

if TYPE_CHECKING:
    from ._options import Options


@final
class PostgresConnector:
    """
    Opens and closes sessions.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

    async def connect(self) -> Session:
        """
        Open a session.

        Raises:
            StoreUnavailable: with libpq's reason.
        """
        connection = Connection(await connect(self._options), tuple_row)
        connection.autocommit = True
        connection.prepare_threshold = 0 if self._options.prepare else None
        register(connection)
        return Session(connection)

    def is_sound(self, connection: Session) -> bool:
        """
        Tell whether the next caller may have it.
        """
        return connection.is_sound

    def is_lost(self, error: Exception) -> bool:
        """
        Tell whether the server had ended the session.
        """
        return isinstance(error, StoreUnavailable) and is_lost(error.__cause__)

    def discard(self, connection: Session) -> None:
        """
        Shut it down; a thread that still uses it closes it.
        """
        connection.give_up()

    async def close(self, connection: Session) -> None:
        """
        Say goodbye, which waits for nobody, and close it.
        """
        connection.leave()
        await trio.lowlevel.checkpoint()
