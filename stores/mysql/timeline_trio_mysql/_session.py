"""
A connection with what is known of it: what it has prepared, what it takes, and whether it can be trusted.

Its coroutines are asyncio's: they are awaited on the event loop, in the hop that a whole call makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from ._driver import MySQLError, is_idle, transport_of
from ._failures import is_spent
from ._schema import SELECT_COLUMNS, SELECT_ENGINE, SELECT_KEY, check_table, read_columns
from ._wire import lay_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._driver import Connection, Result, Statement
    from ._schema import Table
    from ._wire import Wire

_LOCK_WAIT: Final = 3  # seconds

# In one statement. A lock is not waited for longer than a caller who has gone may go on holding one.
_SETTINGS: Final = (
    "SET SESSION autocommit = 1, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    f"SESSION innodb_lock_wait_timeout = {_LOCK_WAIT}"
)
# Each statement of a transaction sees what was committed last, and the gaps between ids are not locked: writers of new
# neighbours do not deadlock.
_ISOLATION: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
_SELECT_LIMIT: Final = "SELECT @@max_allowed_packet"


@final
class Session:
    """
    A connection of asyncmy, from its login to its end.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        # The driver forgets it on closing, which is just when it is needed; and after a reconnection, this is not the
        # session any more that the statements were prepared in.
        self._transport = transport_of(connection)
        self._wire: Wire | None = None
        self._name = name
        self._statements: dict[str, Statement] = {}
        self._is_doubtful = False
        self._table: Table | None = None
        self._max_packet = 0

    @property
    def wire(self) -> Wire | None:
        """
        What the session's coroutines are run on if not on the event loop.
        """
        return self._wire

    @property
    def max_packet(self) -> int:
        """
        The greatest packet that the server takes, in bytes.
        """
        return self._max_packet

    @property
    def is_current(self) -> bool:
        """
        Whether the connection still is the one that this was made for.
        """
        return transport_of(self._connection) is self._transport and is_idle(self._connection)

    @property
    def is_sound(self) -> bool:
        """
        Whether the next caller may have it: open, in no transaction, with nothing left to read.
        """
        if self._is_doubtful or not self.is_current or self._connection.get_transaction_status():
            return False
        return self._wire is None or self._wire.is_quiet

    async def settle(self) -> None:
        """
        Set up a new session of our own.
        """
        assert self._transport is not None
        await self._connection.query(_SETTINGS)
        await self._connection.query(_ISOLATION)
        await self.ask_limit()
        self._wire = lay_wire(self._transport)

    async def ask_limit(self) -> None:
        """
        Find out what the server takes.
        """
        ((limit,),) = await self._ask(_SELECT_LIMIT)
        assert isinstance(limit, int)
        self._max_packet = limit

    async def find_table(self) -> Table:
        """
        Return what the store must know of its table; asked for once in a session.

        Raises:
            StoreUnavailable: there is none, or it would lose or mix up documents; with what to run.
        """
        if self._table is None:
            columns = read_columns(await self._ask(SELECT_COLUMNS))
            engines, key = await self._ask(SELECT_ENGINE), await self._ask(SELECT_KEY)
            self._table = check_table(columns, engines, key, self._name)
        return self._table  # noqa: ASYNC910 - asyncio's

    async def has_table(self) -> bool:
        """
        Tell whether there is a table of that name.
        """
        return bool(await self._ask(SELECT_ENGINE))

    async def define(self, statement: str) -> None:
        """
        Run a statement of definition. The server's notes are not asked for.
        """
        await self._connection.query(statement)

    async def execute(self, statement: str, arguments: Sequence[object]) -> Result:
        """
        Run a statement, prepared at its first use, with its arguments in binary.
        """
        prepared = self._statements.get(statement)
        if prepared is None:
            prepared = self._statements[statement] = await self._connection.prepare(statement)
        return await prepared.execute(tuple(arguments))

    async def fetch(self, statement: str, arguments: Sequence[object]) -> Sequence[tuple[object, ...]]:
        """
        Run a query, and return its rows.
        """
        return (await self.execute(statement, arguments)).rows or ()

    async def begin(self) -> None:
        """
        Begin a transaction.
        """
        await self._connection.begin()

    async def commit(self) -> None:
        """
        Commit the transaction.
        """
        await self._connection.commit()

    async def recover(self, error: Exception) -> None:  # noqa: ASYNC910 - asyncio's
        """
        Leave the transaction that failed, if one is open, so that the session may serve the next caller.
        """
        if isinstance(error, MySQLError) and is_spent(error):
            self._is_doubtful = True
        elif self._connection.get_transaction_status():
            try:
                await self._connection.rollback()
            except MySQLError:
                self._is_doubtful = True

    async def close(self) -> None:
        """
        Take leave of the server.
        """
        await self._connection.ensure_closed()

    def abort(self) -> None:
        """
        Drop the connection at once. A graceful close would go on to send what is buffered, statements too.
        """
        if self._transport is not None:
            self._transport.abort()
        self._connection.close()
        if self._wire is not None:
            self._wire.close()

    async def _ask(self, statement: str) -> Sequence[tuple[object, ...]]:
        """
        Run a query that is not asked again.
        """
        prepared = await self._connection.prepare(statement)
        rows = (await prepared.execute()).rows or ()
        await prepared.close()
        return rows
