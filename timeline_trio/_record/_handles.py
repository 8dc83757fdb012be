"""
The handle of a live stage.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol, final

import msgspec
from trio.lowlevel import enable_ki_protection

from .._cache._live import ENDED, RUNNING, LiveStage, Phase
from .._errors import InvalidValue
from .._model._text import check_text
from .._model._values import NO_ACTOR, Actor, StageRef, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from .._cache._live import Journaled
    from .._model._values import Stage
    from ._blocks import StageBlock
    from ._recorder import Parent

_monotonic_ns: Final = time.monotonic_ns
_replace: Final = msgspec.structs.replace
_SUCCEEDED: Final = Status.SUCCEEDED


class Begin(Protocol):
    """
    What begins stages.
    """

    def __call__(
        self,
        opid: str,
        name: str,
        *,
        stage_id: str | None = None,
        parent: Parent = None,
        actor: Actor | None = None,
        started_at: int | datetime | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> StageHandle:
        """
        Begin a stage.
        """
        ...


class StageRecorder(Protocol):
    """
    What handles and stage blocks need of a recorder.
    """

    @property
    def begin(self) -> Begin:
        """
        Begins a stage.
        """
        ...

    @property
    def clock(self) -> Callable[[], int]:
        """
        Returns wall time in nanoseconds since the epoch.
        """
        ...

    def set_attributes(self, handle: StageHandle, attributes: Mapping[str, object]) -> None:
        """
        Lay attributes over those of a live stage.
        """
        ...

    def end(
        self,
        handle: StageHandle,
        error: BaseException | str | None,
        code: str,
        ended_at: int | datetime | None,
        attributes: Mapping[str, object] | None,
    ) -> None:
        """
        End a live stage.
        """
        ...

    def end_again(self, handle: StageHandle, stage: Stage, entry: Journaled) -> None:
        """
        End a stage whose end went into a journal which was closed at that moment.
        """
        ...

    def report(self, opid: str, error: Exception, /) -> None:
        """
        Pass on what a block must not raise.
        """
        ...


@final
class StageHandle(LiveStage, eq=False, weakref=True):
    """
    Stands for one stage that was begun here, with its own actor. Made by `begin` and by stage blocks.

    All methods are synchronous and may be called from any thread. The handle survives the eviction of its
    operation. It does nothing once the stage has ended, whoever ended it, or once its key was begun anew.
    """

    _recorder: StageRecorder

    def __repr__(self) -> str:
        name = self.begun.name if self.begun else ""
        return f"<StageHandle {name!r} of {self.opid!r}, {self.phase.value}>"

    @property
    def stage_id(self) -> str:
        """
        The stage's id; "" for an inert handle.
        """
        return self.key[0]

    @property
    def actor(self) -> Actor:
        """
        Who executes the stage.
        """
        return self.begun.actor if self.begun else NO_ACTOR

    @property
    def ref(self) -> StageRef:
        """
        Names the stage, to hand to another process as a parent; that of an inert handle means no parent there.
        """
        return StageRef(self.opid, self.stage_id if self.accepted else "", self.actor)

    @property
    def accepted(self) -> bool:
        """
        Whether the begin was accepted; False for the inert handle of a block whose begin was refused.
        """
        return self.phase is not Phase.REFUSED

    def make_inert(self) -> None:
        """
        Let the handle stand for nothing, since its begin was refused.
        """
        self.phase = Phase.REFUSED
        self.entry: Journaled | None = None

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        """
        Lay attributes over those of the stage.

        Args:
            attributes: name to JSON value.

        Raises:
            InvalidAttribute: JSON cannot hold a value; nothing was set.
            InvalidValue: not a mapping, or the stage would become too large; nothing was set.
            BufferFull: a bound on unsaved facts is reached; nothing was set.
            ManagerClosed: the manager is closed.
            WrongProcess: this process was forked from the manager's.
        """
        if self.phase is RUNNING:
            self._recorder.set_attributes(self, attributes)

    @enable_ki_protection
    def end(
        self,
        error: BaseException | str | None = None,
        *,
        code: str = "",
        ended_at: int | datetime | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> None:
        """
        End the stage. The first accepted end wins; another one does nothing.

        Args:
            error: None if it succeeded, else what it failed or was canceled with; see `outcome_of`.
            code: your own value, independent of the result.
            ended_at: nanoseconds since the epoch or an aware `datetime`; now if left out.
            attributes: laid over those of the stage.

        Raises:
            InvalidValue: naming the field; nothing was ended, and another try may use other arguments.
            ManagerClosed: the manager is closed.
            WrongProcess: this process was forked from the manager's.
        """
        if self.phase is not RUNNING:
            return
        entry, begun = self.entry, self.begun
        if (
            error is None
            and code == ""
            and ended_at is None
            and attributes is None
            and entry is not None
            and begun is not None
            and len(entry.journal) < entry.room
        ):
            # Most ends are such, of a stage that nobody else has touched: see `Beginner.begin`.
            recorder, began_ns = self._recorder, self.began_ns
            stage = _replace(
                begun,
                finished_at=recorder.clock(),
                status=_SUCCEEDED,
                elapsed_ns=None if began_ns is None else _monotonic_ns() - began_ns,
            )
            entry.journal.append((self, stage))
            if entry.room <= 0:  # closed while we were on our way
                recorder.end_again(self, stage, entry)
            else:
                self.phase: Phase = ENDED
            return
        self._recorder.end(self, error, code, ended_at, attributes)

    def child(
        self,
        name: str,
        *,
        stage_id: str | None = None,
        actor: Actor | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> StageBlock:
        """
        Return a stage block whose parent is this stage, and whose actor is this stage's unless given.
        """
        from ._blocks import StageBlock  # noqa: PLC0415 - a block makes handles

        return StageBlock(
            self._recorder,
            self._recorder.begin,
            self.opid,
            name,
            stage_id=stage_id,
            parent=self,
            actor=self.actor if actor is None else actor,
            attributes=attributes,
        )


def inert_handle(recorder: StageRecorder, opid: str) -> StageHandle:
    """
    Return a handle that stands for no stage. It keeps the opid, if that is text.
    """
    try:
        check_text(opid, "opid")
    except InvalidValue:
        opid = ""
    return StageHandle(opid, ("", ""), None, None, Phase.REFUSED, None, recorder)
