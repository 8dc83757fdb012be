"""
The row operations in SQL that MySQL, MariaDB and those who speak like them share, on one session.

Its coroutines are asyncio's.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar, final

from timeline_trio.store import InsertRow, RaceLost, ReplaceRow, Row, RowHead, StoreRejected, StoreUnavailable

from ._driver import MySQLError
from ._failures import DUPLICATE_KEY, code_of, rejection_of
from ._numbers import find_bent_number
from ._schema import LOSSLESS_PAYLOAD
from ._statements import (
    REPLACE,
    ROWS_PER_STATEMENT,
    SELECT_RECENT_HEADS,
    chunks_of,
    insert_rows,
    padded,
    padded_length,
    powers_of,
    replace_rows,
    select_heads,
    select_rows,
)
from ._timestamps import EARLIEST, LATEST, microseconds_of, stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from timeline_trio.store import RowWrite

    from ._schema import Table
    from ._session import Session

RowWriteT = TypeVar("RowWriteT", InsertRow, ReplaceRow)

_OVERHEAD: Final = 1024  # bytes of a packet beside a payload and ids
_LONGEST_ID: Final = 764  # bytes
# A statement of many rows stays below it: beyond, the server's own work on each row outweighs the round trip.
_BYTES_PER_STATEMENT: Final = 1024 * 1024
_GREATEST_LIMIT: Final = 2**63 - 1


@final
class MySQLDialect:
    """
    Does a script's row operations. The driver's errors leave it as they are, except those of a single row.
    """

    def __init__(self, session: Session, table: Table) -> None:
        self._session = session
        self._table = table

    async def fetch_heads(self, ids: Sequence[str]) -> list[RowHead]:
        """
        Answer `FetchHeads`.
        """
        return await self._fetch_heads(ids, lock=False)

    async def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> list[Row]:
        """
        Answer `FetchRows`.
        """
        rows: list[Row] = []
        for chunk in chunks_of(ids):
            statement = select_rows(padded_length(len(chunk)), lock=lock)
            rows += [_row(*columns) for columns in await self._session.fetch(statement, padded(chunk))]
        return rows  # noqa: ASYNC910 - asyncio's

    async def fetch_recent_heads(self, after: int, limit: int) -> list[RowHead]:
        """
        Answer `FetchRecentHeads`.
        """
        arguments = (stamp_of(after), min(limit, _GREATEST_LIMIT))
        return [_head(*columns) for columns in await self._session.fetch(SELECT_RECENT_HEADS, arguments)]

    async def write_rows(self, writes: Sequence[RowWrite]) -> list[bool | StoreRejected]:
        """
        Answer `WriteRows`.
        """
        outcomes: dict[str, bool | StoreRejected] = {}
        sizes: dict[str, int] = {}
        inserts: list[InsertRow] = []
        replacements: list[ReplaceRow] = []
        for write in writes:
            payload = _payload_of(write)
            sizes[write.id] = len(payload) if payload.isascii() else len(payload.encode())
            if problem := self._problem_of(write, payload, sizes[write.id]):
                outcomes[write.id] = StoreRejected(write.id, problem)
            elif isinstance(write, InsertRow):
                inserts.append(write)
            else:
                replacements.append(write)
        for replacing in self._fitting(replacements, sizes):
            outcomes |= await self._replace(replacing)
        for inserting in self._fitting(inserts, sizes):
            outcomes |= await self._insert(inserting)
        return [outcomes[write.id] for write in writes]  # noqa: ASYNC910 - asyncio's

    def _problem_of(self, write: RowWrite, payload: str, size: int) -> str:
        """
        Tell why a row can never be written, or "": what the server would bend, or close the connection for.
        """
        now = write.row.updated_at if isinstance(write, InsertRow) else write.now
        if not EARLIEST <= now <= LATEST:
            raise StoreUnavailable("", "the clock of this process is before the year 1000 or after 9999; set it right")
        if size + _LONGEST_ID + _OVERHEAD > self._session.max_packet:
            return (
                f"the document has {size} bytes, and the server takes packets of {self._session.max_packet}; raise its "
                "max_allowed_packet"
            )
        if self._table.is_binary_json and (problem := find_bent_number(payload)):
            return f"the document holds {problem}, which MySQL's JSON would change; run: {LOSSLESS_PAYLOAD}"
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

    async def _replace(self, writes: Sequence[ReplaceRow]) -> dict[str, bool | StoreRejected]:
        if len(writes) == 1:
            return {writes[0].id: await self._write_alone(writes[0])}
        # The count of rows that a statement changed does not tell which ones: with their heads locked, it is known
        # before.
        heads = {head.id: head for head in await self._fetch_heads([write.id for write in writes], lock=True)}
        due = {
            write.id: (write, heads[write.id])
            for write in writes
            if write.id in heads and heads[write.id].revision == write.expected
        }
        outcomes: dict[str, bool | StoreRejected] = {write.id: False for write in writes}
        if not due:
            return outcomes
        missing = [None] * 2 * (padded_length(len(due)) - len(due))
        payloads = [each for write, _ in due.values() for each in (write.id, write.payload)]
        stamps = [
            each for write, head in due.values() for each in (write.id, stamp_of(write.applied_to(head).updated_at))
        ]
        arguments = [*payloads, *missing, *stamps, *missing, *padded(list(due))]
        try:
            result = await self._session.execute(replace_rows(padded_length(len(due))), arguments)
        except MySQLError as error:
            if rejection_of(error, "") is None:
                raise
            for opid, (write, _) in due.items():
                outcomes[opid] = await self._write_alone(write)  # noqa: ASYNC120 - asyncio's
            return outcomes
        if result.affected_rows != len(due):
            raise RaceLost  # by a server whose locks are no more than a hope, as in an optimistic transaction
        return outcomes | dict.fromkeys(due, True)

    async def _insert(self, writes: Sequence[InsertRow]) -> dict[str, bool | StoreRejected]:
        outcomes: dict[str, bool | StoreRejected] = {}
        start = 0
        for count in powers_of(len(writes)):
            part = writes[start : start + count]
            start += count
            if count > 1:
                try:
                    arguments = [each for write in part for each in _insert_arguments(write)]
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

    async def _write_alone(self, write: RowWrite) -> bool | StoreRejected:
        try:
            if isinstance(write, InsertRow):
                await self._session.execute(insert_rows(1), _insert_arguments(write))
                return True
            return (await self._session.execute(REPLACE, _replace_arguments(write))).affected_rows == 1
        except MySQLError as error:
            if isinstance(write, InsertRow) and code_of(error) == DUPLICATE_KEY:
                return await self._find_rival(write, error)  # noqa: ASYNC120 - asyncio's
            if rejection := rejection_of(error, write.id):
                return rejection  # noqa: ASYNC910 - asyncio's
            raise

    async def _find_rival(self, write: InsertRow, error: MySQLError) -> bool | StoreRejected:
        """
        Tell a row that another writer made from one that only takes its place: for ever, if it were tried again.
        """
        ids = {head.id for head in await self._fetch_heads([write.id], lock=False)}
        if not ids or write.id in ids:
            return False
        rejection = StoreRejected(write.id, "another program's row has this id, but for spaces at its end; remove it")
        rejection.__cause__ = error
        return rejection

    async def _fetch_heads(self, ids: Sequence[str], *, lock: bool) -> list[RowHead]:
        heads: list[RowHead] = []
        for chunk in chunks_of(ids):
            statement = select_heads(padded_length(len(chunk)), lock=lock)
            heads += [_head(*columns) for columns in await self._session.fetch(statement, padded(chunk))]
        return heads  # noqa: ASYNC910 - asyncio's


def _payload_of(write: RowWrite) -> str:
    return write.row.payload if isinstance(write, InsertRow) else write.payload


def _insert_arguments(write: InsertRow) -> tuple[object, ...]:
    row = write.row
    return row.id, row.version, stamp_of(row.created_at), stamp_of(row.updated_at), row.payload


def _replace_arguments(write: ReplaceRow) -> tuple[object, ...]:
    now, ahead, expected = stamp_of(write.now), stamp_of(write.ahead), write.expected
    return write.payload, now, ahead, now, write.id, stamp_of(expected.incarnation), expected.version


def _head(id_: object, version: object, created_at: object, updated_at: object) -> RowHead:
    row = _row(id_, version, created_at, updated_at, "")
    return RowHead(id=row.id, version=row.version, created_at=row.created_at, updated_at=row.updated_at)


def _row(id_: object, version: object, created_at: object, updated_at: object, payload: object) -> Row:
    if (
        isinstance(version, int)
        and isinstance(created_at, datetime)
        and isinstance(updated_at, datetime)
        and isinstance(payload, str)
    ):
        created, updated = microseconds_of(created_at), microseconds_of(updated_at)
        return Row(id=str(id_), version=version, created_at=created, updated_at=updated, payload=payload)
    # What a damaged or foreign table holds there, a zero date too, could never be compared: the row is corrupt.
    return Row(id=str(id_), version=0, created_at=0, updated_at=0, payload="")
