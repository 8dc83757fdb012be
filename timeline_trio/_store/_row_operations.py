"""
What a script asks a database of rows for, and how it is run on one.

A script is a generator: it yields row operations and is sent their answers. It decides and never does any I/O, so the
same script runs in a thread that holds a connection, or as a coroutine on another event loop, in one hop.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec

from ._contract import Revision
from ._stamp import MICROSECOND, next_stamp

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from .._errors import StoreRejected

T = TypeVar("T")


class RowHead(msgspec.Struct, frozen=True, kw_only=True):
    """
    A row without its payload. Times are microseconds since the epoch.

    Attributes:
        id: the operation.
        version: the one that the operation is at.
        created_at: when the row was written first; tells its incarnation.
        updated_at: when it was changed last.
        folded: the version that the payload is of, where later changes are kept beside the row; None if the payload
            is of this very version.
    """

    id: str
    version: int
    created_at: int
    updated_at: int
    folded: int | None = None

    @property
    def revision(self) -> Revision:
        """
        The revision that the row is at; when it was created tells its incarnation.
        """
        return Revision(self.created_at, self.version)


class Row(RowHead, frozen=True, kw_only=True):
    """
    One stored operation.
    """

    payload: str


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one save added to a large operation, or several in a row did.

    Attributes:
        id: the operation.
        version: the last one that it is of.
        payload: the facts.
    """

    id: str
    version: int
    payload: str


class ChangeRange(msgspec.Struct, frozen=True, kw_only=True):
    """
    Names the changes of one incarnation of an operation, with versions from `first` to `last`.
    """

    id: str
    incarnation: int
    first: int
    last: int


class FetchHeads(msgspec.Struct, frozen=True):
    """
    Asks for the heads of the rows that exist. Answer: a sequence of `RowHead`, in any order.

    Attributes:
        ids: which ones.
        lock: whether they are to be as last committed, and nobody else's to change until the transaction ends.
    """

    ids: Sequence[str]
    lock: bool = False


class FetchRows(msgspec.Struct, frozen=True):
    """
    Asks for the rows that exist. Answer: a sequence of `Row`, in any order.

    Attributes:
        ids: which ones.
        lock: as in `FetchHeads`.
    """

    ids: Sequence[str]
    lock: bool = False


class FetchRecentHeads(msgspec.Struct, frozen=True):
    """
    Asks for the heads of rows with `updated_at > after`, by `updated_at` and `id` descending, at most `limit`.

    The order of ids is that of their UTF-8 bytes.
    """

    after: int
    limit: int


class FetchChanges(msgspec.Struct, frozen=True):
    """
    Asks for the changes that exist. Answer: a sequence of `ChangeRow`, those of one operation by version.
    """

    ranges: Sequence[ChangeRange]


class InsertRow(msgspec.Struct, frozen=True):
    """
    A write: a new row. Not done if one of that id exists. Changes of earlier incarnations are swept away by it.
    """

    row: Row

    @property
    def id(self) -> str:
        """
        The id of the row.
        """
        return self.row.id


class ReplaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    A write: a row's next version.

    Not done if the row is no longer at the `expected` revision, or has changes beside it.

    Its update time becomes `now`; where it has a time from `now` to `ahead`, a microsecond more than that.

    Attributes:
        id: the id of the row.
        payload: the new one.
        expected: the revision that the payload was made from.
        now: microseconds since the epoch.
        ahead: how far ahead another writer's clock may be, in microseconds since the epoch.
    """

    id: str
    payload: str
    expected: Revision
    now: int
    ahead: int

    def applied_to(self, row: Row) -> Row:
        """
        Return the row as it will be.
        """
        return msgspec.structs.replace(
            row, payload=self.payload, version=row.version + 1, updated_at=_stamp_after(row, self.now, self.ahead)
        )


class AppendChange(msgspec.Struct, frozen=True, kw_only=True):
    """
    A write: a row's next version, whose changes are kept beside the row.

    Not done if the row is no longer at the `expected` revision, or not `was_folded` at that version. The row's update
    time is that of `ReplaceRow`; its payload stays.

    Attributes:
        id: the id of the row.
        payload: the facts that changed.
        expected: the revision before.
        was_folded: as the row says.
        folded: what the row is to say.
        now: as in `ReplaceRow`.
        ahead: as in `ReplaceRow`.
    """

    id: str
    payload: str
    expected: Revision
    was_folded: int | None
    folded: int
    now: int
    ahead: int

    def applied_to(self, row: Row) -> Row:
        """
        Return the row as it will be.
        """
        return msgspec.structs.replace(
            row, folded=self.folded, version=row.version + 1, updated_at=_stamp_after(row, self.now, self.ahead)
        )


def _stamp_after(row: Row, now: int, ahead: int) -> int:
    stamp = next_stamp(now * MICROSECOND, row.updated_at * MICROSECOND, (ahead - now) * MICROSECOND)
    return stamp // MICROSECOND


class JoinChanges(msgspec.Struct, frozen=True, kw_only=True):
    """
    A write: one change, of the last version of a range, in the place of all that are in the range.

    Not done, and nothing of it, if there are not so many.

    Attributes:
        range: which ones.
        count: how many there are.
        payload: their facts.
    """

    range: ChangeRange
    count: int
    payload: str

    @property
    def id(self) -> str:
        """
        The id of the row.
        """
        return self.range.id


RowWrite = InsertRow | ReplaceRow | AppendChange | JoinChanges


class WriteRows(msgspec.Struct, frozen=True):
    """
    Asks for several writes, of one row each. Each is done as a whole or not at all.

    Answer: for each of them, in their order, whether it was done, or the `StoreRejected` if it never can be.
    """

    writes: Sequence[RowWrite]


RowOperation = FetchHeads | FetchRows | FetchRecentHeads | FetchChanges | WriteRows

Script = Generator[RowOperation, object, T]
"""A generator that yields row operations, is sent their answers, and returns the result of the whole call."""


class RaceLost(Exception):
    """
    Another writer came between. Start the script anew in a new transaction.
    """


class RowDialect(Protocol):
    """
    The row operations, done on one connection inside of one transaction, blocking.

    Each raises `StoreUnavailable` where the database fails, and `RaceLost` where it ended the transaction in favour of
    another one.
    """

    def fetch_heads(self, ids: Sequence[str], *, lock: bool) -> Sequence[RowHead]:
        """
        Answer `FetchHeads`.
        """
        ...

    def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> Sequence[Row]:
        """
        Answer `FetchRows`.
        """
        ...

    def fetch_recent_heads(self, after: int, limit: int) -> Sequence[RowHead]:
        """
        Answer `FetchRecentHeads`.
        """
        ...

    def fetch_changes(self, ranges: Sequence[ChangeRange]) -> Sequence[ChangeRow]:
        """
        Answer `FetchChanges`.
        """
        ...

    def write_rows(self, writes: Sequence[RowWrite]) -> Sequence[bool | StoreRejected]:
        """
        Answer `WriteRows`.
        """
        ...


class AsyncRowDialect(Protocol):
    """
    As `RowDialect`, by coroutines of whatever event loop the script is run on.
    """

    async def fetch_heads(self, ids: Sequence[str], *, lock: bool) -> Sequence[RowHead]:
        """
        Answer `FetchHeads`.
        """
        ...

    async def fetch_rows(self, ids: Sequence[str], *, lock: bool) -> Sequence[Row]:
        """
        Answer `FetchRows`.
        """
        ...

    async def fetch_recent_heads(self, after: int, limit: int) -> Sequence[RowHead]:
        """
        Answer `FetchRecentHeads`.
        """
        ...

    async def fetch_changes(self, ranges: Sequence[ChangeRange]) -> Sequence[ChangeRow]:
        """
        Answer `FetchChanges`.
        """
        ...

    async def write_rows(self, writes: Sequence[RowWrite]) -> Sequence[bool | StoreRejected]:
        """
        Answer `WriteRows`.
        """
        ...


def run_script(script: Script[T], dialect: RowDialect) -> T:
    """
    Run a script to its end on a blocking dialect.

    Raises:
        RaceLost: start anew in a new transaction.
        StoreError: what the dialect raised.
    """
    try:
        operation = next(script)
        while True:
            operation = script.send(_ask(operation, dialect))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        script.close()


async def run_script_async(script: Script[T], dialect: AsyncRowDialect) -> T:
    """
    Run a script to its end on a dialect of coroutines. It passes no checkpoint but theirs.

    Raises:
        RaceLost: start anew in a new transaction.
        StoreError: what the dialect raised.
    """
    try:
        operation = next(script)
        while True:
            operation = script.send(await cast("Awaitable[object]", _ask(operation, dialect)))
    except StopIteration as stop:
        result: T = stop.value
        return result  # noqa: ASYNC910 - it may run on another event loop than Trio's
    finally:
        script.close()


def _ask(operation: RowOperation, dialect: RowDialect | AsyncRowDialect) -> object:
    match operation:
        case FetchHeads(ids, lock):
            return dialect.fetch_heads(ids, lock=lock)
        case FetchRows(ids, lock):
            return dialect.fetch_rows(ids, lock=lock)
        case FetchRecentHeads(after, limit):
            return dialect.fetch_recent_heads(after, limit)
        case FetchChanges(ranges):
            return dialect.fetch_changes(ranges)
        case WriteRows(writes):
            return dialect.write_rows(writes)
