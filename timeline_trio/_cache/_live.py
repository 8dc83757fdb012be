"""
A stage that was begun in this process, for as long as this process can end it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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


class LiveStage:
    """
    What the cache knows of a stage that was begun here; handles are its subclass.

    Attributes:
        opid: the operation.
        key: the stage's key.
        begun: the stage as it was begun or last changed through this record; outlives the cached entry.
        began_ns: monotonic nanoseconds at the begin; None where the start was given and so not now.
        phase: what has become of it.
    """

    __slots__ = ("__weakref__", "began_ns", "begun", "key", "opid", "phase")

    def __init__(self, opid: str, key: StageKey, begun: Stage | None, began_ns: int | None) -> None:
        self.opid: str = opid
        self.key: StageKey = key
        self.begun: Stage | None = begun
        self.began_ns: int | None = began_ns
        self.phase = RUNNING if begun else Phase.REFUSED
