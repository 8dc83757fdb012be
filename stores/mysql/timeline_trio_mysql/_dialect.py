"""
The row operations in SQL that MySQL, MariaDB and those who speak like them share, on one session.

Its coroutines are asyncio's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, final

from timeline_trio.store import (
    AppendChange,
    InsertRow,
    JoinChanges,
    RaceLost,
    ReplaceRow,
    StoreRejected,
    StoreUnavailable,
)

from ._columns import (
    bare_row,
    change_arguments,
    insert_arguments,
    payload_of,
    range_arguments,
    read_change,
    read_head,
    read_row,
    size_of,
    step_arguments,
)
from ._driver import MySQLError
from ._failures import DUPLICATE_KEY, code_of, rejection_of
from ._numbers import find_bent_number
from ._schema import LOSSLESS_CHANGES, LOSSLESS_PAYLOAD
from ._statements import (
    DELETE_RANGE,
    FOLD,
    INSERT_WHERE_NO_CHANGES,
    REPLACE,
    REPLACE_UNFOLDED,
    ROWS_PER_STATEMENT,
    STEP_FOLDED,
    chunks_of,
    delete_changes,
    insert_changes,
    insert_rows,
    padded,
    padded_length,
    powers_of,
    replace_rows,
    select_changes,
    select_heads,
    select_recent_heads,
    select_rows,
    step_rows,
)
from ._timestamps import EARLIEST, LATEST, stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from timeline_trio.store import ChangeRange, ChangeRow, Row, RowHead, RowWrite

    from ._schema import Table
    from ._session import Session

RowWriteT = TypeVar("RowWriteT", InsertRow, ReplaceRow, AppendChange)
StepT = TypeVar("StepT", ReplaceRow, AppendChange)

Outcomes = dict[str, "bool | StoreRejected"]

_OVERHEAD: Final = 1024  # bytes of a packet beside a payload and ids
_LONGEST_ID: Final = 764  # bytes
# A statement of many rows stays below it: beyond, the server's own work on each row outweighs the round trip.
_BYTES_PER_STATEMENT: Final = 1024 * 1024
_GREATEST_LIMIT: Final = 2**63 - 1
_RANGES_PER_STATEMENT: Final = 8  # a power of two


@final
class MySQLDialect:
    """
    Does a script's row operations. The driver's errors leave it as they are, except those of a single row.

    Args:
        session: what to do them on.
        table: what is known of the tables.
        transaction: whether one is open, which the caller ends; else each statement is committed by itself.
    """

    def __init__(self, session: Session, table: Table, *, transaction: bool) -> None:
        self._session = session
        self._table = table
        self._transaction = transaction

    async def fetch_heads(self, ids: Sequence[str], *, lock: bool) -> list[RowHead]:
        """
        Answer `FetchHeads`.
        """
        heads: list[RowHead] = []
        for chunk in chunks_of(ids):
            statement = select_heads(padded_length(len(chunk)), folds=self._table.has_folds, lock=lock)
            heads += [read_head(*columns) for columns in await self._session.fetch(statement, padded(chunk))]
        return heads  # noqa: ASYNC910 - asyncio's

    async def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> list[Row]:
        """
        Answer `FetchRows`.
        """
        rows: list[Row] = []
        for chunk in chunks_of(ids):
            statement = select_rows(padded_length(len(chunk)), folds=self._table.has_folds, lock=lock)
            rows += [read_row(*columns) for columns in await self._session.fetch(statement, padded(chunk))]
        return rows  # noqa: ASYNC910 - asyncio's

    async def fetch_recent_heads(self, after: int, limit: int) -> list[RowHead]:
        """
        Answer `FetchRecentHeads`.
        """
        statement = select_recent_heads(folds=self._table.has_folds)
        arguments = (stamp_of(after), min(limit, _GREATEST_LIMIT))
        return [read_head(*columns) for columns in await self._session.fetch(statement, arguments)]

    async def fetch_changes(self, ranges: Sequence[ChangeRange]) -> list[ChangeRow]:
        """
        Answer `FetchChanges`.
        """
        changes: list[ChangeRow] = []
        for chunk in chunks_of(ranges, _RANGES_PER_STATEMENT):
            statement = select_changes(padded_length(len(chunk)))
            nothing = [None] * 4 * (padded_length(len(chunk)) - len(chunk))
            arguments = [*(each for wanted in chunk for each in range_arguments(wanted)), *nothing]
            changes += [read_change(*columns) for columns in await self._session.fetch(statement, arguments)]
        return changes  # noqa: ASYNC910 - asyncio's

    async def write_rows(self, writes: Sequence[RowWrite]) -> list[bool | StoreRejected]:
        """
        Answer `WriteRows`.
        """
        if joins := [write for write in writes if isinstance(write, JoinChanges)]:
            return [await self._join(write) for write in joins]  # noqa: ASYNC910 - asyncio's, as is the next
        outcomes: Outcomes = {}
        sizes: dict[str, int] = {}
        for write in writes:
            sizes[write.id] = size_of(write)
            if problem := self._problem_of(write, sizes[write.id]):
                outcomes[write.id] = StoreRejected(write.id, problem)
        due = [write for write in writes if write.id not in outcomes]
        for replacing in self._fitting([write for write in due if isinstance(write, ReplaceRow)], sizes):
            outcomes |= await self._replace(replacing)
        for appending in self._fitting([write for write in due if isinstance(write, AppendChange)], sizes):
            outcomes |= await self._append(appending)
        for inserting in self._fitting([write for write in due if isinstance(write, InsertRow)], sizes):
            outcomes |= await self._insert(inserting)
        return [outcomes[write.id] for write in writes]  # noqa: ASYNC910

    def _problem_of(self, write: RowWrite, size: int) -> str:
        """
        Tell why a row can never be written, or "": what the server would bend, or close the connection for.
        """
        if not isinstance(write, JoinChanges):
            now = write.row.updated_at if isinstance(write, InsertRow) else write.now
            if not EARLIEST <= now <= LATEST:
                raise StoreUnavailable(
                    "", "the clock of this process is before the year 1000 or after 9999; set it right"
                )
        is_change = isinstance(write, (AppendChange, JoinChanges))
        what = "what changed of the document" if is_change else "the document"
        if size + _LONGEST_ID + _OVERHEAD > self._session.max_packet:
            return (
                f"{what} has {size} bytes, and the server takes packets of {self._session.max_packet}; raise its "
                "max_allowed_packet"
            )
        is_binary_json = self._table.has_binary_changes if is_change else self._table.is_binary_json
        if is_binary_json and (problem := find_bent_number(payload_of(write))):
            remedy = LOSSLESS_CHANGES if is_change else LOSSLESS_PAYLOAD
            return f"{what} holds {problem}, which MySQL's JSON would change; run: {remedy}"
        return ""

    def _fitting(self, writes: Sequence[RowWriteT], sizes: dict[str, int]) -> Iterator[list[RowWriteT]]:
        """
        Cut a list of writes into ones that fit into one statement each; a large document is one by itself.
        """
        limit = min(_BYTES_PER_STATEMENT, self._session.max_packet)
        chunk: list[RowWriteT] = []
        total = 0
        for write in writes:
            size = sizes[write.id] + 3 * _LONGEST_ID
            if chunk and (len(chunk) == ROWS_PER_STATEMENT or total + size > limit - _OVERHEAD):
                yield chunk
                chunk, total = [], 0
            chunk.append(write)
            total += size
        if chunk:
            yield chunk

    async def _replace(self, writes: Sequence[ReplaceRow]) -> Outcomes:
        if len(writes) == 1:
            return {writes[0].id: await self._write_alone(writes[0])}
        outcomes: Outcomes = {write.id: False for write in writes}
        due = [pair for pair in await self._lock(writes) if pair[1].folded is None]
        if not due:
            return outcomes
        payloads = [(write.id, write.payload) for write, _ in due]
        try:
            await self._step(replace_rows(padded_length(len(due)), folds=self._table.has_folds), payloads, due)
        except MySQLError as error:
            if rejection_of(error, "") is None:
                raise
            for write, _ in due:
                outcomes[write.id] = await self._write_alone(write)  # noqa: ASYNC120 - asyncio's
            return outcomes
        return outcomes | {write.id: True for write, _ in due}

    async def _append(self, writes: Sequence[AppendChange]) -> Outcomes:
        if not self._transaction:
            return {write.id: await self._append_alone(write) for write in writes}  # noqa: ASYNC910 - asyncio's
        outcomes: Outcomes = {write.id: False for write in writes}
        due = [pair for pair in await self._lock(writes) if pair[1].folded == pair[0].was_folded]
        # Changes come first: where one is refused, nothing of its row has to be undone.
        done = await self._insert_changes([write for write, _ in due])
        due = [pair for pair in due if done[pair[0].id] is True]
        if due:
            await self._step(step_rows(padded_length(len(due))), [(write.id, write.folded) for write, _ in due], due)
        return outcomes | done

    async def _append_alone(self, write: AppendChange) -> bool | StoreRejected:
        """
        Append in a transaction of its own.
        """
        await self._session.begin()
        statement = FOLD if write.was_folded is None else STEP_FOLDED
        was_folded = () if write.was_folded is None else (write.was_folded,)
        arguments = (write.folded, *step_arguments(write), *was_folded)
        outcome: bool | StoreRejected = (await self._session.execute(statement, arguments)).affected_rows == 1
        if outcome is True:
            outcome = (await self._insert_changes([write]))[write.id]
        await (self._session.commit() if outcome is True else self._session.rollback())
        return outcome

    async def _insert_changes(self, writes: Sequence[AppendChange]) -> Outcomes:
        outcomes: Outcomes = {}
        start = 0
        for count in powers_of(len(writes)):
            part = writes[start : start + count]
            start += count
            arguments = [each for write in part for each in change_arguments(write)]
            try:
                await self._session.execute(insert_changes(count), arguments)
            except MySQLError as error:
                if (rejection := rejection_of(error, part[0].id)) is None:
                    raise
                if count == 1:
                    outcomes[part[0].id] = rejection
                else:
                    for write in part:
                        outcomes |= await self._insert_changes([write])  # noqa: ASYNC120 - asyncio's
            else:
                outcomes |= dict.fromkeys((write.id for write in part), True)
        return outcomes  # noqa: ASYNC910 - asyncio's

    async def _lock(self, writes: Sequence[StepT]) -> list[tuple[StepT, RowHead]]:
        """
        Lock rows, and return those that are at the expected revision.

        The count of rows that a statement changed does not tell which ones: so it is known before.
        """
        heads = {head.id: head for head in await self.fetch_heads([write.id for write in writes], lock=True)}
        return [
            (write, heads[write.id])
            for write in writes
            if write.id in heads and heads[write.id].revision == write.expected
        ]

    async def _step(
        self, statement: str, values: Sequence[tuple[str, object]], due: Sequence[tuple[StepT, RowHead]]
    ) -> None:
        """
        Change rows that are locked.
        """
        missing: Sequence[object] = [None] * 2 * (padded_length(len(due)) - len(due))
        stamps = [(write.id, stamp_of(write.applied_to(bare_row(head)).updated_at)) for write, head in due]
        arguments: list[object] = []
        for pairs in (values, stamps):
            arguments += (each for pair in pairs for each in pair)
            arguments += missing
        arguments += padded([write.id for write, _ in due])
        if (await self._session.execute(statement, arguments)).affected_rows != len(due):
            raise RaceLost  # by a server whose locks are no more than a hope, as in an optimistic transaction

    async def _join(self, write: JoinChanges) -> bool | StoreRejected:
        if problem := self._problem_of(write, size_of(write)):
            return StoreRejected(write.id, problem)  # noqa: ASYNC910 - asyncio's
        wanted = write.range
        deleted = await self._session.execute(DELETE_RANGE, range_arguments(wanted))
        if deleted.affected_rows != write.count:
            raise RaceLost  # which rolls back what was deleted
        await self._session.execute(insert_changes(1), (wanted.id, wanted.incarnation, wanted.last, write.payload))
        return True

    async def _insert(self, writes: Sequence[InsertRow]) -> Outcomes:
        if not self._table.keeps_changes:
            return await self._insert_rows(writes)
        if not self._transaction:
            return {write.id: await self._insert_alone(write) for write in writes}  # noqa: ASYNC910 - asyncio's
        outcomes = await self._insert_rows(writes)
        if made := [opid for opid, outcome in outcomes.items() if outcome is True]:
            await self._session.execute(delete_changes(padded_length(len(made))), padded(made))
        return outcomes

    async def _insert_alone(self, write: InsertRow) -> bool | StoreRejected:
        """
        Insert a row whose operation has left no changes behind; otherwise sweep these, in a transaction of its own.
        """
        arguments = (*insert_arguments(write), write.id)
        try:
            if (await self._session.execute(INSERT_WHERE_NO_CHANGES, arguments)).affected_rows == 1:
                return True
        except MySQLError as error:
            return await self._failed_insert(write, error)  # noqa: ASYNC120 - asyncio's
        await self._session.begin()
        outcome = await self._write_alone(write)
        if outcome is True:
            await self._session.execute(delete_changes(1), (write.id,))
        await (self._session.commit() if outcome is True else self._session.rollback())
        return outcome

    async def _insert_rows(self, writes: Sequence[InsertRow]) -> Outcomes:
        outcomes: Outcomes = {}
        start = 0
        for count in powers_of(len(writes)):
            part = writes[start : start + count]
            start += count
            if count > 1:
                try:
                    arguments = [each for write in part for each in insert_arguments(write)]
                    await self._session.execute(insert_rows(count), arguments)
                except MySQLError as error:
                    if code_of(error) != DUPLICATE_KEY and rejection_of(error, "") is None:
                        raise
                else:
                    outcomes |= dict.fromkeys((write.id for write in part), True)
                    continue
            for write in part:
                outcomes[write.id] = await self._write_alone(write)
        return outcomes  # noqa: ASYNC910 - asyncio's

    async def _write_alone(self, write: InsertRow | ReplaceRow) -> bool | StoreRejected:
        try:
            if isinstance(write, InsertRow):
                await self._session.execute(insert_rows(1), insert_arguments(write))
                return True
            statement = REPLACE_UNFOLDED if self._table.has_folds else REPLACE
            arguments = (write.payload, *step_arguments(write))
            return (await self._session.execute(statement, arguments)).affected_rows == 1
        except MySQLError as error:
            if isinstance(write, InsertRow):
                return await self._failed_insert(write, error)  # noqa: ASYNC120 - asyncio's
            if rejection := rejection_of(error, write.id):
                return rejection  # noqa: ASYNC910 - asyncio's
            raise

    async def _failed_insert(self, write: InsertRow, error: MySQLError) -> bool | StoreRejected:
        if code_of(error) == DUPLICATE_KEY:
            return await self._find_rival(write, error)
        if rejection := rejection_of(error, write.id):
            return rejection  # noqa: ASYNC910 - asyncio's
        raise error

    async def _find_rival(self, write: InsertRow, error: MySQLError) -> bool | StoreRejected:
        """
        Tell a row that another writer made from one that only takes its place: for ever, if it were tried again.
        """
        # As last committed: an old snapshot, which the application's pool may have, shows no rival.
        ids = {head.id for head in await self.fetch_heads([write.id], lock=True)}
        if write.id in ids:
            return False
        if not ids:
            return rejection_of(error, write.id) or False  # it has gone meanwhile
        rejection = StoreRejected(write.id, "another program's row has this id, but for spaces at its end; remove it")
        rejection.__cause__ = error
        return rejection
