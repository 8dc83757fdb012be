"""
A timeline in one process, with an end: for a run whose parts are all known here.
"""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, final

import trio

from .._errors import ActiveStages
from .._manager._reporter import LogErrors
from .._manager._signal import Signal
from .._model._snapshot import Snapshot
from .._model._values import NO_ACTOR, StageRef
from .._model._wire import Collection
from .._record._blocks import record_result
from .._record._handles import StageHandle, inert_handle
from .._record._operation import OperationRecorder
from .._record._recorder import Recorder
from ._standalone import make_cache, recorder_options

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from datetime import datetime

    from .._cache._live import LiveStage
    from .._model._values import Actor
    from .._record._recorder import Parent


@asynccontextmanager
async def open_sealed(
    opid: str, name: str, *, actor: Actor | None = None, attributes: Mapping[str, object] | None = None
) -> AsyncGenerator[Sealed]:
    """
    Open a timeline that lives in this process alone, from now to its end.

    A block that is left without `finish` finishes the timeline by how it is left, and does not wait for stages. It
    raises nothing by that: what is refused is logged.

    Args:
        opid: the operation.
        name: what the operation is called.
        actor: who executes what is begun without an actor.
        attributes: of the operation, name to JSON value.

    Raises:
        InvalidValue: naming the field.
    """
    timeline = Sealed(opid, name, NO_ACTOR if actor is None else actor, attributes)
    try:
        await trio.lowlevel.checkpoint()
        yield timeline
    except BaseException as error:
        timeline.leave(error)
        raise
    timeline.leave(None)


class _SealableRecorder(Recorder):
    """
    A recorder that begins and starts nothing once it is sealed.
    """

    sealed = False

    def begin(
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
        Begin a stage; once sealed, return an inert handle.
        """
        if self.sealed:
            return inert_handle(self, opid)
        return super().begin(
            opid,
            name,
            stage_id=stage_id,
            parent=parent,
            actor=actor,
            started_at=started_at,
            attributes=attributes,
        )

    def start(
        self, opid: str, name: str, *, at: int | datetime | None, attributes: Mapping[str, object] | None
    ) -> None:
        """
        Record the operation's start; once sealed, do nothing.
        """
        if not self.sealed:
            super().start(opid, name, at=at, attributes=attributes)

    def set_operation_attributes(self, opid: str, attributes: Mapping[str, object]) -> None:
        """
        Lay attributes over those of the operation; once sealed, do nothing.
        """
        if not self.sealed:
            super().set_operation_attributes(opid, attributes)


@final
class Sealed(OperationRecorder):
    """
    Records one operation in memory, until it is finished. Made by `open_sealed`.

    From the first finish on, its result and its start stand and begins are inert; whole intervals can still be
    recorded, and live stages still end. Its snapshots are complete: both flags of `collection` are true.
    """

    def __init__(self, opid: str, name: str, actor: Actor, attributes: Mapping[str, object] | None) -> None:
        """
        Not to be called: use `open_sealed`.
        """
        report = LogErrors()
        self._cache = make_cache(report, sys.maxsize)
        self._sealable = _SealableRecorder(self._cache, **recorder_options(actor, report))
        super().__init__(opid, self._sealable, self._sealable.begin)
        self._sealable.start(opid, name, at=None, attributes=attributes)

    def __repr__(self) -> str:
        return f"<Sealed {self._opid!r}, {'sealed' if self._sealable.sealed else 'open'}>"

    @property
    def is_sealed(self) -> bool:
        """
        Whether the result stands.
        """
        return self._sealable.sealed

    def seal(self, error: BaseException | str | None, at: int | datetime | None = None) -> None:
        """
        Record the finish, if none is recorded yet, and let begins be inert from now on.

        Args:
            error: None if the operation succeeded, else what it failed or was canceled with.
            at: nanoseconds since the epoch or an aware `datetime`; now if left out.
        """
        if not self._sealable.sealed:
            self._sealable.finish(self._opid, error, at=at)
            self._sealable.sealed = True

    def leave(self, error: BaseException | None) -> None:
        """
        Seal the timeline by how its block was left, and raise nothing.
        """
        record_result(self.seal, error, self._opid, self._sealable)

    async def finish(
        self,
        error: BaseException | str | None = None,
        *,
        at: int | datetime | None = None,
        deadline: float = float("inf"),
    ) -> Snapshot:
        """
        Seal the timeline with its result, then wait until the stages that were begun here have ended.

        The result of the first call stands; later calls wait likewise, and return it. Cancelled, the seal holds.

        Args:
            error: None if the operation succeeded, else what it failed or was canceled with.
            at: nanoseconds since the epoch or an aware `datetime`; now if left out.
            deadline: how long to wait for stages, by the Trio clock.

        Raises:
            ActiveStages: some still run at the deadline; call again once they have ended.
        """
        self.seal(error, at)
        signal = Signal()
        entry = self._cache.pin(self._opid)
        self._cache.watch(entry, signal.notify)
        try:
            with trio.move_on_at(deadline):
                await trio.lowlevel.checkpoint()
                while self._cache.live_stages(self._opid):
                    await signal.wait()
        finally:
            self._cache.unwatch(entry, signal.notify)
            self._cache.unpin(entry)
        running = self._cache.live_stages(self._opid)
        if running:
            raise ActiveStages(self._opid, tuple(StageRef(self._opid, *_identity(live)) for live in running))
        return self._capture()

    async def flush(self) -> None:
        """
        Do nothing: there is no Store.
        """
        await trio.lowlevel.checkpoint()

    async def snapshot(self) -> Snapshot:
        """
        Return the operation as it is now.
        """
        await trio.lowlevel.checkpoint()
        return self._capture()

    def _capture(self) -> Snapshot:
        entry = self._cache.peek(self._opid)
        assert entry is not None
        document, _ = self._cache.view(entry)
        return Snapshot(document, time.time_ns(), Collection(local_flushed=True, store_read=True))


def _identity(live: LiveStage) -> tuple[str, Actor]:
    return live.key[0], NO_ACTOR if live.begun is None else live.begun.actor
