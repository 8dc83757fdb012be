"""
A manager for the whole program, for those who want one: installed on request, never by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from .._errors import InvalidValue, NoDefaultManager
from .._manager._manager import Manager

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .._model._snapshot import Snapshot
    from .._model._values import Actor, Stage
    from .._record._blocks import OperationBlock, StageBlock
    from .._record._handles import StageHandle
    from .._record._operation_handle import Handle
    from .._record._recorder import Parent


@final
class _Default:
    """
    Holds the default: the one place that a program may choose to make global.
    """

    manager: Manager | None = None


def set_default(manager: Manager | None) -> Manager | None:
    """
    Install the manager that the module's functions use, and return the previous one.

    No state moves by that, and handles stay with the manager that made them.

    Raises:
        InvalidValue: this is no manager.
    """
    if not isinstance(manager, Manager | None):
        raise InvalidValue("manager", f"expected a Manager, as open_manager gives, got {type(manager).__name__}")
    previous, _Default.manager = _Default.manager, manager
    return previous


def get_default() -> Manager:
    """
    Return the default manager.

    Raises:
        NoDefaultManager: none is installed.
    """
    manager = _Default.manager
    if manager is None:
        raise NoDefaultManager
    return manager


def begin(
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
    Begin a stage with the default manager; see `Manager.begin`.
    """
    return get_default().begin(
        opid,
        name,
        stage_id=stage_id,
        parent=parent,
        actor=actor,
        started_at=started_at,
        attributes=attributes,
    )


async def end(
    opid: str,
    name: str,
    error: BaseException | str | None = None,
    *,
    actor: Actor | None = None,
    code: str = "",
    ended_at: int | datetime | None = None,
    attributes: Mapping[str, object] | None = None,
) -> None:
    """
    End a stage by name with the default manager; see `Manager.end`.
    """
    manager = get_default()
    await manager.end(opid, name, error, actor=actor, code=code, ended_at=ended_at, attributes=attributes)


def record(opid: str, stage: Stage) -> None:
    """
    Record a finished interval with the default manager; see `Manager.record`.
    """
    get_default().record(opid, stage)


async def read(opid: str, *, fresh: bool = False) -> Snapshot:
    """
    Read an operation with the default manager; see `Manager.read`.
    """
    return await get_default().read(opid, fresh=fresh)


def start(
    opid: str, name: str, *, at: int | datetime | None = None, attributes: Mapping[str, object] | None = None
) -> None:
    """
    Record an operation's start with the default manager; see `Manager.start`.
    """
    get_default().start(opid, name, at=at, attributes=attributes)


def finish(opid: str, error: BaseException | str | None = None, *, at: int | datetime | None = None) -> None:
    """
    Record an operation's finish with the default manager; see `Manager.finish`.
    """
    get_default().finish(opid, error, at=at)


def stage(
    opid: str,
    name: str,
    *,
    stage_id: str | None = None,
    parent: Parent = None,
    actor: Actor | None = None,
    attributes: Mapping[str, object] | None = None,
) -> StageBlock:
    """
    Return a stage block on the default manager; see `Manager.stage`.
    """
    return get_default().stage(opid, name, stage_id=stage_id, parent=parent, actor=actor, attributes=attributes)


def operation(opid: str, name: str, *, attributes: Mapping[str, object] | None = None) -> OperationBlock[Handle]:
    """
    Return an operation block on the default manager; see `Manager.operation`.
    """
    return get_default().operation(opid, name, attributes=attributes)
