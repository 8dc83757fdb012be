"""
What a Store is: four calls over documents, and optional capabilities beside them.

A call either returns, or raises `StoreUnavailable` (the same call may succeed later) or `StoreRejected` (it never
will), with the driver's error as the cause. A call that was cancelled or that raised `StoreUnavailable` may still
have been done, or may yet be done: a merge must therefore be harmless when it is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from .._errors import CorruptEntry, InvalidValue
from .._model._document import Document, Update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from .._errors import StoreError


class Revision(msgspec.Struct, frozen=True, gc=False):
    """
    Which state of a stored operation: the incarnation of its row, and the version within it.

    Attributes:
        incarnation: differs between a row and the one written anew after its deletion.
        version: 1 for a new row, one more for each merge that changed something.
    """

    incarnation: int
    version: int

    def is_older_than(self, other: Revision) -> bool:
        """
        Whether this is an earlier state of the same row. Different incarnations have no order.
        """
        return self.incarnation == other.incarnation and self.version < other.version


class Known(msgspec.Struct, frozen=True):
    """
    What the caller holds of an operation already: a document, and the revision it was stored as.
    """

    revision: Revision
    document: Document


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """
    The answer to a merge that was done.

    Attributes:
        revision: of the row now; None where there is none: a Store that keeps nothing, or nothing to write.
        changed: False if the row said all of it already, so that nothing was written.
        document: the merged document, where the Store had it anyway.
    """

    revision: Revision | None
    changed: bool
    document: Document | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """
    The answer to a read: the whole document.
    """

    opid: str
    revision: Revision
    document: Document


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """
    The answer to a read: what came after the revision that the caller knows.

    Merging `update` into the known document gives the document at `revision`.
    """

    opid: str
    since: Revision
    revision: Revision
    update: Update


class Unchanged(msgspec.Struct, frozen=True, kw_only=True):
    """
    The answer to a read: the row is as the caller knows it.
    """

    opid: str
    revision: Revision


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """
    The answer to one of several reads: this row is corrupt; the others go on.
    """

    opid: str
    error: CorruptEntry


Answer = Found | Changes | Unchanged
"""What `read` returns."""

AnswerOrError = Found | Changes | Unchanged | Unreadable
"""What `mget` and `latest` return for each operation."""

NOTHING_KNOWN: Mapping[str, Known] = {}

_METHODS = ("merge", "read", "mget", "latest")


class Store(Protocol):
    """
    Keeps one document an operation, for all processes that share it.

    Each method is a checkpoint, and honours cancellation. A cancelled `merge` may or may not have been done.
    """

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        """
        Merge facts into the operation's document, atomically, creating it if need be.

        An update without facts creates no operation: where there is none yet, the answer has the revision None.

        Args:
            opid: the operation.
            update: the facts, by the rules of `timeline_trio.model.merge`.
            known: what the caller holds. A Store may build on it instead of reading, as long as it finds out
                when the row has moved on; a row that was deleted meanwhile is written anew with `update` alone.

        Raises:
            StoreUnavailable: nothing is known of the outcome; repeat the same update.
            StoreRejected: the update, or the row, is beyond repair; nothing was written. So the `InvalidValue` of
                `timeline_trio.model.merge` becomes a `StoreRejected`.
        """
        ...

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        """
        Read one operation.

        Raises:
            NotFound: there is none.
            StoreUnavailable: try again.
            CorruptEntry: what is stored cannot be read.
        """
        ...

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        """
        Read several operations: those found, once each, in any order.

        Raises:
            StoreUnavailable: try again.
        """
        ...

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        """
        Read the operations that changed most recently.

        Args:
            after: nanoseconds since the epoch; only operations updated later than this are returned.
            limit: how many at the most; 0 or less returns nothing.
            known: what the caller holds already, by opid.

        Returns:
            The operations by update time and then id, both descending.

        Raises:
            StoreUnavailable: try again.
        """
        ...


def require_store(store: object) -> None:
    """
    Refuse what is no Store.

    Raises:
        InvalidValue: naming `store`.
    """
    if isinstance(store, str):
        raise InvalidValue("store", "expected a Store, got text; open a URL by `async with open_store(url) as store`")
    if isinstance(store, type):
        raise InvalidValue("store", f"expected a Store, got a class; make one by {store.__name__}()")
    missing = [name for name in _METHODS if not callable(getattr(store, name, None))]
    if missing:
        raise InvalidValue(
            "store",
            f"expected a Store, as open_store(url) gives, got {type(store).__name__} without {', '.join(missing)}",
        )


class MergeRequest(msgspec.Struct, frozen=True):
    """
    One of several merges: the arguments of `Store.merge`.
    """

    opid: str
    update: Update
    known: Known | None = None


@runtime_checkable
class MergesMany(Protocol):
    """
    The capability of a Store to merge into several documents in one transaction.
    """

    async def merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged | StoreError]:
        """
        Merge into several operations, each at most once, in one transaction.

        Returns:
            An answer a request, in their order. What is refused for good is an answer and stops nobody else.

        Raises:
            StoreUnavailable: the transaction failed as a whole; nothing is known of its outcome.
        """
        ...


class Change(msgspec.Struct, frozen=True, gc=False):
    """
    What a Store tells of a commit: which operation changed, and the revision that it has had since.
    """

    opid: str
    revision: Revision


@runtime_checkable
class WatchesChanges(Protocol):
    """
    The capability of a Store to tell of commits as they happen, whoever made them.
    """

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """
        Hear of changes until the end of the block: of those that are committed once the block is entered.

        A change is a hint. Some may never come, or come twice, or out of order: what is behind a slow reader is bounded
        and dropped. So whoever must see every change goes on polling.

        Entering is a checkpoint, and so is each step of the iterator, which loses nothing when it is cancelled.

        Raises:
            StoreUnavailable: on entering, or at any step: nothing more is told; enter a new block.
        """
        ...
