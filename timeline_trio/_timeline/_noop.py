"""
The timeline that is none: for programs that record only if somebody wants to look.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

import trio

from .._manager._reporter import LogErrors
from .._model._document import Document
from .._model._snapshot import Snapshot
from .._model._text import check_opid
from .._model._values import NO_ACTOR
from .._model._wire import Collection
from .._record._handles import StageHandle, inert_handle
from .._record._operation import OperationRecorder
from .._record._recorder import Recorder
from ._standalone import make_cache, recorder_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .._model._values import Actor, Stage
    from .._record._recorder import Parent


class _NullRecorder(Recorder):
    """
    Takes everything and keeps nothing; not even its arguments are looked at.
    """

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
        Return an inert handle.
        """
        del name, stage_id, parent, actor, started_at, attributes
        return inert_handle(self, opid)

    def record(self, opid: str, stage: Stage) -> None:
        """
        Do nothing.
        """

    def start(
        self, opid: str, name: str, *, at: int | datetime | None, attributes: Mapping[str, object] | None
    ) -> None:
        """
        Do nothing.
        """

    def set_operation_attributes(self, opid: str, attributes: Mapping[str, object]) -> None:
        """
        Do nothing.
        """


@final
class Noop(OperationRecorder):
    """
    A timeline where everything succeeds and nothing is kept. Made by `noop`.
    """

    def __repr__(self) -> str:
        return f"<Noop {self._opid!r}>"

    async def finish(self, error: BaseException | str | None = None, *, at: int | datetime | None = None) -> Snapshot:
        """
        Return an empty snapshot.
        """
        del error, at
        return await self.snapshot()

    async def flush(self) -> None:
        """
        Do nothing.
        """
        await trio.lowlevel.checkpoint()

    async def snapshot(self) -> Snapshot:
        """
        Return an empty snapshot.
        """
        await trio.lowlevel.checkpoint()
        collection = Collection(local_flushed=True, store_read=True)
        return Snapshot(Document(opid=self._opid), time.time_ns(), collection)


def noop(opid: str) -> Noop:
    """
    Return a timeline where everything succeeds and nothing is kept.

    Raises:
        InvalidValue: what the opid breaks.
    """
    check_opid(opid)
    report = LogErrors()
    recorder = _NullRecorder(make_cache(report, 1), **recorder_options(NO_ACTOR, report))
    return Noop(opid, recorder, recorder.begin)
