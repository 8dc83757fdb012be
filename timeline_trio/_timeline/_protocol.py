"""
What every timeline of one operation can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime

    from .._model._snapshot import Snapshot
    from .._model._values import Actor, Stage
    from .._record._handles import StageHandle
    from .._record._recorder import Parent


@runtime_checkable
class Timeline(Protocol):
    """
    One operation to record into. `Handle`, `Sealed` and `Noop` are timelines.

    Recording is synchronous and local; only `finish`, `flush` and `snapshot` may wait.
    """

    @property
    def opid(self) -> str:
        """
        The operation's id.
        """
        ...

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
        Begin a stage; see `Manager.begin`.
        """
        ...

    def stage(
        self,
        name: str,
        *,
        stage_id: str | None = None,
        parent: Parent = None,
        actor: Actor | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> AbstractContextManager[StageHandle]:
        """
        Return a block that is a stage; see `Manager.stage`.
        """
        ...

    def record(self, stage: Stage) -> None:
        """
        Record a finished interval; see `Manager.record`.
        """
        ...

    def start(
        self, name: str, *, at: int | datetime | None = None, attributes: Mapping[str, object] | None = None
    ) -> None:
        """
        Record the operation's start; see `Manager.start`.
        """
        ...

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        """
        Lay attributes over those of the operation.
        """
        ...

    async def finish(self, error: BaseException | str | None = None, *, at: int | datetime | None = None) -> Snapshot:
        """
        Record the operation's finish and return the view after it.
        """
        ...

    async def flush(self) -> None:
        """
        Wait until everything recorded before this call is saved.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """
        Return the operation as it is known now.
        """
        ...
