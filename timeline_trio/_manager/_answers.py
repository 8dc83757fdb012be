"""
What a Store answers, checked before anything is built on it: a Store may be anyone's.

What it answers against the contract is its failure, like what it raises, and must neither end a task nor leave a
cached operation half changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._errors import CorruptEntry, InvalidValue, StoreError
from .._model._document import Document, Update
from .._model._text import check_opid
from .._store._contract import Changes, Found, Merged, Revision, Unchanged, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .._store._contract import Answer, AnswerOrError, MergeRequest


def check_merged(answer: object) -> Merged:
    """
    Return the answer to a merge.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(answer, Merged):
        raise _wrong(answer, "Merged")
    if not isinstance(answer.revision, Revision | None) or not isinstance(answer.document, Document | None):
        raise _wrong(answer, "Merged with a Revision and a Document, or None")
    return answer


def check_joint_answers(requests: Sequence[MergeRequest], answers: Iterable[object]) -> list[Merged | StoreError]:
    """
    Return the answers to a joint merge.

    Raises:
        TypeError: one is none.
        ValueError: they are not as many as the requests.
    """
    checked = [answer if isinstance(answer, StoreError) else check_merged(answer) for answer in answers]
    if len(checked) != len(requests):
        raise ValueError(f"the store gave {len(checked)} answers to {len(requests)} requests")
    return checked


def check_answer(opid: str, answer: object) -> Answer:
    """
    Return the answer to a read of one operation.

    Raises:
        TypeError: it is none.
        ValueError: it is about another operation.
    """
    checked = _check(answer)
    if isinstance(checked, Unreadable):
        raise checked.error
    if checked.opid != opid:
        raise ValueError(f"the store was asked for {opid!r} and answered with {checked.opid!r}")
    return checked


def check_answers(answers: Iterable[object]) -> list[AnswerOrError]:
    """
    Return the answers to a read of several operations; one about an operation that cannot be is unreadable.

    Raises:
        TypeError: one is none.
    """
    return [_readable(_check(answer)) for answer in answers]


def _check(answer: object) -> AnswerOrError:
    match answer:
        case Unreadable(error=Exception()):
            return answer
        case Found(revision=Revision(), document=Document()) | Unchanged(revision=Revision()):
            pass
        case Changes(since=Revision(), revision=Revision(), update=Update()):
            pass
        case _:
            raise _wrong(answer, "an answer to a read")
    return answer


def _readable(answer: AnswerOrError) -> AnswerOrError:
    try:
        check_opid(answer.opid)
    except InvalidValue:
        return Unreadable(opid=answer.opid, error=CorruptEntry(answer.opid, "no operation has such an id"))
    return answer


def _wrong(answer: object, expected: str) -> TypeError:
    return TypeError(f"expected {expected} of the store, got {type(answer).__name__}")
