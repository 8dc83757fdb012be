"""
The unit of work: an operation of ten stages, about 2 KB, one of which changes.
"""

from __future__ import annotations

from random import getrandbits
from typing import TYPE_CHECKING
from uuid import uuid4

from timeline_trio.model import Actor, Stage, Start, Update
from timeline_trio.store import Found, Known, Merged, MergeRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeline_trio.store import Store, StoreError

STAGES = 10
_BEGAN = 1_790_000_000_123_456_789  # nanoseconds since the epoch


def stage_of(number: int, state: int) -> Stage:
    """
    Return a stage in one of its states, which differ from each other.
    """
    return Stage.completed(
        "copy files",
        _BEGAN + number,
        _BEGAN + number + 1_234_567_890,
        id=f"stage-{number:05}",
        actor=Actor("host-7"),
        attributes={"attempt": state},
    )


def whole_document(stages: int = STAGES) -> Update:
    """
    Return all facts of an operation.
    """
    return Update(start=Start(name="deploy", at=_BEGAN), stages=tuple(stage_of(number, 0) for number in range(stages)))


async def seed(store: Store, opid: str, stages: int = STAGES) -> Known:
    """
    Store an operation, and return it as it is now.
    """
    await store.merge(opid, whole_document(stages))
    answer = await store.read(opid)
    assert isinstance(answer, Found)
    return Known(answer.revision, answer.document)


class Writer:
    """
    Changes stages of one operation, on and on.

    Args:
        opid: the operation.
        numbers: of the stages to change, in turns.
        changes: how many of them one update changes.
    """

    def __init__(self, opid: str, numbers: Sequence[int] = range(STAGES), *, changes: int = 1) -> None:
        self.opid = opid
        self._numbers = numbers
        self._changes = changes
        self._name = uuid4().hex
        self._first_state = getrandbits(32)  # hardly one that an earlier writer left behind
        self._sequence = 0

    def update(self) -> Update:
        """
        Return the next change.
        """
        self._sequence += 1
        state = self._first_state + self._sequence
        due = range(self._sequence * self._changes, (self._sequence + 1) * self._changes)
        stages = tuple(stage_of(self._numbers[place % len(self._numbers)], state) for place in due)
        return Update(stages=stages, writer=self._name, sequence=self._sequence)


class StoreWriter(Writer):
    """
    Has a store merge each change.

    Args:
        store: the store.
        opid: the operation.
        known: what the writer knows of it; None to have the store read it each time.
        numbers: of the stages to change, in turns.
        changes: how many of them one update changes.
    """

    def __init__(
        self,
        store: Store,
        opid: str,
        known: Known | None,
        numbers: Sequence[int] = range(STAGES),
        *,
        changes: int = 1,
    ) -> None:
        super().__init__(opid, numbers, changes=changes)
        self._store = store
        self._known = known

    def request(self) -> MergeRequest:
        """
        Return the next change as a merge among others; its answer must be noted.
        """
        return MergeRequest(self.opid, self.update(), self._known)

    async def merge(self) -> None:
        """
        Merge the next change.
        """
        self.note(await self._store.merge(self.opid, self.update(), self._known))

    def note(self, answer: Merged | StoreError) -> None:
        """
        Know what was answered, if something was known before.
        """
        assert isinstance(answer, Merged)
        assert answer.changed
        if self._known is not None and answer.revision is not None:
            self._known = Known(answer.revision, answer.document or self._known.document)
