"""
A stage that was begun in this process, for as long as this process can end it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol, TypeAlias

import msgspec

from .._model._values import Stage, StageKey


class Phase(Enum):
    """
    What has become of a stage that was begun here. Each phase but the first is final.
    """

    RUNNING = "running"
    """Begun here; moved on by the cache alone, under its lock."""
    ENDED = "ended"
    """An end was accepted: from its handle, by name, by a recorded interval, or loaded from the Store."""
    REPLACED = "replaced"
    """Its key was begun anew; only the newer handle acts on the stage."""
    REFUSED = "refused"
    """Never accepted: an inert handle."""


# In Python 3.11 looking a member up in its Enum class takes longer than a call.
RUNNING: Final = Phase.RUNNING
ENDED: Final = Phase.ENDED


class Journaled(Protocol):
    """
    A cached operation, as those see it who record into it without the lock.

    Attributes:
        journal: what was recorded so, and not yet taken over.
        room: it may be appended to as long as it is shorter.
    """

    journal: list[Recorded]
    room: int


class LiveStage(msgspec.Struct, eq=False, weakref=True):
    """
    What the cache knows of a stage that was begun here; handles are its subclass.

    It is a Struct because that is made in a third of the time that an `__init__` of its own takes.

    Attributes:
        opid: the operation.
        key: the stage's key.
        begun: the stage as it was begun or last changed through this record; outlives the cached entry.
        began_ns: monotonic nanoseconds at the begin; None where the start was given and so not now.
        phase: what has become of it.
        entry: the cached operation, as long as that has the stage as `begun`; its end may then go to the journal.
    """

    opid: str
    key: StageKey
    begun: Stage | None
    began_ns: int | None
    phase: Phase
    entry: Journaled | None


Recorded: TypeAlias = LiveStage | tuple[LiveStage, Stage]
"""What a journal holds: a stage that began, or one and the state that it ended in."""
