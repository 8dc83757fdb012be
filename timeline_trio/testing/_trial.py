"""
What a check of `check_store` works with, and how it speaks.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from .._model._document import Document, Update, merge
from .._model._values import NO_ACTOR, Actor, Stage, Status
from .._store._contract import Found, Known, Revision, Store, Unchanged, Unreadable
from ._clock import ManualClock

if TYPE_CHECKING:
    from .._store._contract import AnswerOrError

SECOND = 1_000_000_000

Ability = Literal["clock", "delete", "merge_many", "watch"]


class Trial(msgspec.Struct, frozen=True):
    """
    A fresh, empty store under test.

    Attributes:
        store: the store.
        clock: the store's clock, or one that moves nothing if the store's cannot be moved.
        delete: deletes an operation from the store.
        abilities: what of all this, and of the store's capabilities, there really is.
    """

    store: Store
    clock: ManualClock
    delete: Callable[[str], Awaitable[None]]
    abilities: frozenset[Ability]

    def tick(self) -> None:
        """
        Let later changes have a later update time.
        """
        self.clock.advance(1)
        start = time.time_ns()
        while time.time_ns() < start + 2_000:  # stores keep microseconds
            pass

    async def known(self, opid: str) -> Known:
        """
        Return the operation as it is stored.
        """
        answer = await self.store.read(opid)
        if not isinstance(answer, Found):
            raise AssertionError("a read of which nothing is known returns the whole document")  # noqa: TRY004
        return Known(answer.revision, answer.document)

    async def document(self, opid: str) -> Document:
        """
        Return the operation's document as it is stored.
        """
        return (await self.known(opid)).document


class Check(msgspec.Struct, frozen=True):
    """
    One promise of the contract, and what tries it.

    Attributes:
        promise: a sentence.
        run: raises an error if the promise is broken.
        needs: the abilities of the trial that it cannot do without.
    """

    promise: str
    run: Callable[[Trial], Awaitable[None]]
    needs: frozenset[Ability]


def promise(sentence: str, *needs: Ability) -> Callable[[Callable[[Trial], Awaitable[None]]], Check]:
    """
    Make a check of the decorated function.
    """
    return lambda run: Check(sentence, run, frozenset(needs))


def expect(condition: object, sentence: str) -> None:
    """
    Raise `AssertionError` with the sentence unless the condition holds; also where asserts are switched off.
    """
    if not condition:
        raise AssertionError(sentence)


def stage(
    stage_id: str,
    name: str = "work",
    *,
    actor: Actor = NO_ACTOR,
    ended: bool = True,
    error: str = "",
    at: int = 0,
) -> Stage:
    """
    Return a stage that began at that second, and ended a second later.
    """
    status = Status.FAILED if error else Status.SUCCEEDED
    return Stage(
        id=stage_id,
        name=name,
        started_at=at * SECOND,
        finished_at=(at + 1) * SECOND if ended else None,
        status=status if ended else Status.RUNNING,
        actor=actor,
        error=error,
    )


def stages(*items: Stage) -> Update:
    """
    Return an update of stages.
    """
    return Update(stages=items)


def resolve(answer: AnswerOrError, known: Known | None) -> tuple[Revision, Document]:
    """
    Return the revision and document that an answer to a read stands for.
    """
    if isinstance(answer, Unreadable):
        raise AssertionError("what was written through the store can be read from it") from answer.error  # noqa: TRY004
    if isinstance(answer, Found):
        return answer.revision, answer.document
    if known is None:
        raise AssertionError("one who knows nothing is answered with the document")
    if isinstance(answer, Unchanged):
        expect(known.revision == answer.revision, "only what is known can be unchanged")
        return answer.revision, known.document
    expect(known.revision == answer.since, "changes start from the known revision")
    return answer.revision, merge(known.document, answer.update)[0]
