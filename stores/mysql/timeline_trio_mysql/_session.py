"""
A connection with what is known of it: what it has prepared, what it takes, and whether it can be trusted.

Its coroutines are asyncio's: they are awaited on the event loop, in the hop that a whole call makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, final

import msgspec

from ._driver import MySQLError, is_idle, transport_of
from ._failures import has_moved, is_forbidden, is_read_only, is_spent, is_unchangeable
from ._grants import Account
from ._schema import ADDITIONS, TRY_DELETE, TRY_FOLDED, TRY_INSERT, check_table, questions_about, read_definition
from ._settings import SELECT_SETTINGS, read_settings
from ._wire import lay_wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from ._driver import Connection, Result, Statement
    from ._schema import Definition, Table
    from ._wire import Wire

T = TypeVar("T")

_LOCK_WAIT: Final = 3  # seconds

# In one statement. A lock is not waited for longer than a caller who has gone may go on holding one.
_SETTINGS: Final = (
    "SET NAMES utf8mb4, SESSION autocommit = 1, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    f"SESSION innodb_lock_wait_timeout = {_LOCK_WAIT}"
)
# Each statement of a transaction sees what was committed last, and the gaps between ids are not locked: writers of new
# neighbours do not deadlock.
_ISOLATION: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
_SELECT_PATIENCE: Final = "SELECT @@SESSION.lock_wait_timeout"
_SELECT_ACCOUNT: Final = "SELECT CURRENT_USER(), DATABASE()"


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
    def name(self) -> str:
        """
        What messages call the database.
        """
        return self._name

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
        await self._exchange(self._connection.query(_SETTINGS))
        await self._exchange(self._connection.query(_ISOLATION))
        await self.ask_settings()
        self._wire = lay_wire(self._transport)

    async def ask_settings(self) -> None:
        """
        Find out what the server takes, in one question.

        Raises:
            StoreUnavailable: the session is set up in a way that documents would be lost or changed by.
        """
        (row,) = await self._ask(SELECT_SETTINGS)
        self._max_packet = read_settings(row, self._connection.character_set_name(), self._name)

    async def find_account(self) -> Account:
        """
        Find out by which account the server knows us, and in which database we are.
        """
        ((user, database),) = await self._ask(_SELECT_ACCOUNT)
        return Account(str(user), str(database))

    async def find_table(self) -> Table:
        """
        Return what the store must know of its tables; asked for once in a session.

        Raises:
            StoreUnavailable: there is none, or it would lose or mix up documents; with what to run.
        """
        # A migration may be made while we run: whoever knew nothing of a row's changes would write over them.
        if self._table is None or (not self._table.has_folds and await self._has_folds()):
            timelines = await self._find_definition("timelines")
            table = check_table(timelines, await self._find_definition("timeline_changes"), self._name)
            if table.keeps_changes and not await self._may_keep_changes():
                table = msgspec.structs.replace(table, keeps_changes=False)
            self._table = table
        return self._table  # noqa: ASYNC910 - asyncio's

    async def has_table(self) -> bool:
        """
        Tell whether there is a table of that name.
        """
        return bool((await self._find_definition("timelines")).engine)

    async def migrate(self) -> None:
        """
        Add what is missing to tables that are there; nothing, where that cannot be done now.
        """
        ((patience,),) = await self._ask(_SELECT_PATIENCE)
        # Whoever uses the table after us waits behind us.
        await self.define(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT}")
        try:
            for statement in ADDITIONS:
                await self.define(statement)
        except MySQLError as error:
            if not is_unchangeable(error):
                raise
        finally:
            await self.define(f"SET SESSION lock_wait_timeout = {patience}")  # noqa: ASYNC102 - asyncio's
            self._table = None

    async def define(self, statement: str) -> None:
        """
        Run a statement of definition. The server's notes are not asked for.
        """
        await self._exchange(self._connection.query(statement))

    async def execute(self, statement: str, arguments: Sequence[object]) -> Result:
        """
        Run a statement, prepared at its first use, with its arguments in binary.
        """
        prepared = self._statements.get(statement)
        if prepared is None:
            prepared = self._statements[statement] = await self._exchange(self._connection.prepare(statement))
        return await self._exchange(prepared.execute(tuple(arguments)))

    async def fetch(self, statement: str, arguments: Sequence[object]) -> Sequence[tuple[object, ...]]:
        """
        Run a query, and return its rows.
        """
        return (await self.execute(statement, arguments)).rows or ()

    async def begin(self) -> None:
        """
        Begin a transaction.
        """
        await self._exchange(self._connection.begin())

    async def commit(self) -> None:
        """
        Commit the transaction.
        """
        await self._exchange(self._connection.commit())

    async def rollback(self) -> None:
        """
        Undo the transaction.
        """
        await self._exchange(self._connection.rollback())

    async def autocommit(self, *, on: bool) -> None:
        """
        Set whether each statement is committed by itself.
        """
        await self._exchange(self._connection.autocommit(on))

    async def recover(self, error: Exception) -> None:  # noqa: ASYNC910 - asyncio's
        """
        Leave the transaction that failed, if one is open, so that the session may serve the next caller.
        """
        if isinstance(error, MySQLError) and has_moved(error):
            self._table = None
        if isinstance(error, MySQLError) and is_spent(error):
            self._is_doubtful = True
        elif not self._is_doubtful and self._connection.get_transaction_status():
            try:
                await self.rollback()
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
        prepared = await self._exchange(self._connection.prepare(statement))
        rows = (await self._exchange(prepared.execute())).rows or ()
        await self._exchange(prepared.close())
        return rows

    async def _exchange(self, answer: Awaitable[T]) -> T:
        """
        Await the driver's answer. What ends it, but for an error that the server gave, leaves the rest of it unread.
        """
        try:
            return await answer
        except MySQLError:
            raise
        except BaseException:
            self._is_doubtful = True
            raise

    async def _find_definition(self, table: str) -> Definition:
        columns, engines, key = [await self._ask(question) for question in questions_about(table)]
        return read_definition(columns, engines, key)  # noqa: ASYNC910 - asyncio's

    async def _has_folds(self) -> bool:
        try:
            await self._exchange(self._connection.query(TRY_FOLDED))
        except MySQLError as error:
            if not has_moved(error):
                raise
            return False  # noqa: ASYNC910 - asyncio's, as is the next
        return True  # noqa: ASYNC910

    async def _may_keep_changes(self) -> bool:
        try:
            for statement in (TRY_INSERT, TRY_DELETE):
                await self._exchange(self._connection.query(statement))
        except MySQLError as error:
            if is_forbidden(error):
                return False  # noqa: ASYNC910 - asyncio's, as is the next
            if not is_read_only(error):
                raise
        return True  # noqa: ASYNC910
