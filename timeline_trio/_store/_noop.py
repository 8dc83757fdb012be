"""
The Store that keeps nothing: for programs that only look at their own operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio.lowlevel

from .._errors import NotFound
from ._contract import NOTHING_KNOWN, AnswerOrError, Known, Merged, MergeRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .._model._document import Update
    from ._contract import Answer


@final
class NoopStore:
    """
    Accepts every update, keeps none, and finds nothing.
    """

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        """
        Accept the update and forget it.
        """
        del opid, update, known
        await trio.lowlevel.checkpoint()
        return Merged(revision=None, changed=False)

    async def merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged]:
        """
        Accept the updates and forget them.
        """
        await trio.lowlevel.checkpoint()
        return [Merged(revision=None, changed=False) for _ in requests]

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        """
        Find nothing.

        Raises:
            NotFound: always.
        """
        del known
        await trio.lowlevel.checkpoint()
        raise NotFound(opid)

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        """
        Find nothing.
        """
        del opids, known
        await trio.lowlevel.checkpoint()
        return []

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        """
        Find nothing.
        """
        del after, limit, known
        await trio.lowlevel.checkpoint()
        return []
