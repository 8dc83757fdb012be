"""
The engine of every Store that keeps one row an operation, guarded by compare-and-set on the row's version.

No text of SQL stands here, and no I/O is done: each call is a script of row operations, which a subclass runs on a
connection in one hop. A dialect is five operations.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from .._errors import NotFound, StoreError
from ._changes import Folds, join_script
from ._contract import (
    NOTHING_KNOWN,
    Answer,
    AnswerOrError,
    Known,
    Merged,
    MergeRequest,
    Unreadable,
)
from ._joint_merge import JointMerge
from ._row_operations import RaceLost, Script
from ._row_reads import latest_script, mget_script
from ._stamp import MICROSECOND
from ._turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .._model._document import Update
    from ._contract import Revision

T = TypeVar("T")

_SHORTEST_PAUSE: Final = 0.0005  # seconds, as is the longest one
_LONGEST_PAUSE: Final = 0.064
_HOT_TIME: Final = 1.0  # seconds for which rows are locked at once after a lost race
_MOST_HOT: Final = 1024


class RowStore(ABC):
    """
    A Store of rows; a subclass says how a script is run.

    Args:
        clock: returns nanoseconds since the epoch.
        overlap: seconds by which a row's update time may be ahead of `clock` and still be stepped past.
    """

    def __init__(self, *, clock: Callable[[], int] = time.time_ns, overlap: float = 1.0) -> None:
        self._clock = clock
        self._overlap = int(overlap * 1e6)  # microseconds
        self._merges = 0
        self._attempts = 0
        self._turns = Turns()
        self._folds = Folds()
        self._hot: dict[str, float] = {}  # where a race was lost, until when others are expected to race on

    @property
    def merges(self) -> int:
        """
        How many merges were asked for.
        """
        return self._merges

    @property
    def attempts(self) -> int:
        """
        How many times these merges tried to write a row: again for each race that was lost.
        """
        return self._attempts

    @property
    def keeps_changes(self) -> bool:
        """
        Whether the database has a place for changes beside rows; false unless a subclass says otherwise.

        It is asked when a merge begins. As long as it is false, each save writes its operation anew.
        """
        return False

    @abstractmethod
    async def run(self, begin: Callable[[], Script[T]], *, writes: bool, transaction: bool) -> T:
        """
        Run a script on a connection that nobody else uses meanwhile.

        Args:
            begin: makes the script; called anew for each try.
            writes: whether the script may change rows.
            transaction: whether its operations are done together or not at all. Without, each one may be committed by
                itself, which saves round trips, and each must see what was committed last.

        Raises:
            RaceLost: as the script or the dialect raised it; the transaction was rolled back.
            StoreUnavailable: it may or may not have been committed.
        """

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        """
        Merge facts into the operation's document. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: nothing is known of the outcome.
            StoreRejected: the update is invalid or too large, or the row is corrupt.
        """
        (answer,) = await self.merge_many([MergeRequest(opid, update, known)])
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged | StoreError]:
        """
        Merge into several operations in one transaction. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: nothing is known of the outcome.
        """
        if not requests:
            await trio.lowlevel.checkpoint()
            return []
        self._merges += len(requests)
        taken: list[str] = []
        answers: Sequence[Merged | StoreError] = []
        try:
            # In one order, so that no two calls wait for each other.
            for opid in sorted(request.opid for request in requests):
                if not self._turns.take(opid):
                    await self._turns.wait(opid)
                taken.append(opid)
            answers = await self._merge_together(
                [MergeRequest(each.opid, each.update, self._turns.base(each.opid, each.known)) for each in requests]
            )
        finally:
            written = {each.opid: _known(answer) for each, answer in zip(requests, answers, strict=False)}
            for opid in taken:
                self._turns.leave(opid, written.get(opid))
        return answers

    async def _merge_together(self, requests: Sequence[MergeRequest]) -> Sequence[Merged | StoreError]:
        losses = 0
        while True:
            contended = losses > 0 or (len(requests) == 1 and self._is_hot(requests[0].opid))
            joint = JointMerge(
                requests,
                clock=self._clock,
                overlap=self._overlap,
                contended=contended,
                folds=self._folds if self.keeps_changes else None,
            )
            try:
                answers = await self.run(joint.script, writes=True, transaction=joint.needs_transaction)
            except RaceLost:
                losses += 1
                if len(requests) == 1:
                    self._note_hot(requests[0].opid)
            else:
                await self._join(joint.to_join)
                return answers
            finally:
                self._attempts += joint.attempts
            if not contended:
                continue  # whoever asks for the lock stands in line for it
            # Under contention only a growing, jittered pause keeps every writer moving; there is no cap on tries:
            # the caller's own scope ends them.
            longest = min(2.0 ** min(losses, 32) * _SHORTEST_PAUSE, _LONGEST_PAUSE)
            await trio.sleep(random.uniform(_SHORTEST_PAUSE, longest))  # noqa: S311 - no secret

    async def _join(self, grown: Sequence[tuple[str, Revision, int]]) -> None:  # noqa: ASYNC910 - mostly there are none
        for opid, revision, folded in grown:
            # What fails here is made good by a later one, and the merge is done.
            with suppress(RaceLost, StoreError):
                await self.run(partial(join_script, opid, revision, folded), writes=True, transaction=True)

    async def _read(self, script: Callable[[], Script[list[AnswerOrError]]]) -> Sequence[AnswerOrError]:
        while True:
            try:
                return await self.run(script, writes=False, transaction=False)
            except RaceLost:  # large operations alone are read in two steps
                await trio.sleep(random.uniform(0, _SHORTEST_PAUSE))  # noqa: S311 - no secret

    def _is_hot(self, opid: str) -> bool:
        until = self._hot.get(opid)
        if until is None:
            return False
        if trio.current_time() < until:
            return True
        del self._hot[opid]
        return False

    def _note_hot(self, opid: str) -> None:
        if len(self._hot) >= _MOST_HOT:
            self._hot.clear()
        self._hot[opid] = trio.current_time() + _HOT_TIME

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        """
        Read one operation.

        Raises:
            NotFound: there is none.
            StoreUnavailable: try again.
            CorruptEntry: the row cannot be read.
        """
        for answer in await self.mget([opid], {opid: known} if known else NOTHING_KNOWN):
            if isinstance(answer, Unreadable):
                raise answer.error
            return answer
        raise NotFound(opid)

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        """
        Read several operations.

        Raises:
            StoreUnavailable: try again.
        """
        if not opids:
            await trio.lowlevel.checkpoint()
            return []
        return await self._read(partial(mget_script, opids, known))

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        """
        Read the operations that changed most recently.

        Raises:
            StoreUnavailable: try again.
        """
        if limit <= 0:
            await trio.lowlevel.checkpoint()
            return []
        # Rows carry microseconds: rounding down may return a row again, rounding up would hide one.
        return await self._read(partial(latest_script, after // MICROSECOND, limit, known))


def _known(answer: Merged | StoreError | None) -> Known | None:
    if isinstance(answer, Merged) and answer.revision is not None and answer.document is not None:
        return Known(answer.revision, answer.document)
    return None
