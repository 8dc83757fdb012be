"""
What the timelines of one operation have in common: how they record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._model._values import root_id
from ._blocks import StageBlock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .._model._values import Actor, Stage
    from ._handles import Begin, StageHandle
    from ._recorder import Parent, Recorder


class OperationRecorder:
    """
    Records into one operation: synchronously, locally, and from any thread.
    """

    def __init__(self, opid: str, recorder: Recorder, begin: Begin) -> None:
        self._opid = opid
        self._recorder = recorder
        self._begin: Begin = begin

    @property
    def opid(self) -> str:
        """
        The operation's id.
        """
        return self._opid

    @property
    def root_id(self) -> str:
        """
        The id that stands for the operation itself, for use as an explicit parent.
        """
        return root_id(self._opid)

    @property
    def actor(self) -> Actor:
        """
        Who executes what is begun without an actor.
        """
        return self._recorder.actor

    def begin(
        self,
        name: str,
        *,
        stage_id: str | None = None,
        parent: Parent = None,
        actor: Actor | None = None,
        started_at: int | datetime | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> StageHandle:
        """
        Begin a stage; arguments and errors are those of `Manager.begin`.
        """
        return self._begin(
            self._opid,
            name,
            stage_id=stage_id,
            parent=parent,
            actor=actor,
            started_at=started_at,
            attributes=attributes,
        )

    def stage(
        self,
        name: str,
        *,
        stage_id: str | None = None,
        parent: Parent = None,
        actor: Actor | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> StageBlock:
        """
        Return a block that is a stage; see `Manager.stage`.
        """
        return StageBlock(
            self._recorder,
            self._begin,
            self._opid,
            name,
            stage_id=stage_id,
            parent=parent,
            actor=actor,
            attributes=attributes,
        )

    def record(self, stage: Stage) -> None:
        """
        Record a finished interval; errors are those of `Manager.record`.
        """
        self._recorder.record(self._opid, stage)

    def start(
        self, name: str, *, at: int | datetime | None = None, attributes: Mapping[str, object] | None = None
    ) -> None:
        """
        Record the operation's start; see `Manager.start`.
        """
        self._recorder.start(self._opid, name, at=at, attributes=attributes)

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        """
        Lay attributes over those of the operation, whose start must be known here.

        Raises:
            InvalidValue: the start is not known in this process; start the operation, or take a snapshot first.
            BufferFull: a bound on unsaved updates is reached; nothing was set.
        """
        self._recorder.set_operation_attributes(self._opid, attributes)
