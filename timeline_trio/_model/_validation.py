"""
What a stage must be to be accepted. Parents are never checked: they may be unknown, or come late.
"""

from __future__ import annotations

import msgspec

from .._errors import InvalidStage, InvalidValue
from ._json import MAX_DEPTH, canonical_object
from ._text import check_text
from ._time import NO_TIME, to_ns
from ._values import ROOT_PREFIX, RUNNING, SUCCEEDED, Finish, Stage, Start, Status, check_actor, root_id


def check_stage(stage: Stage, opid: str = "") -> None:
    """
    Refuse a stage that no process could have recorded.

    Raises:
        InvalidStage: naming the field.
    """
    try:
        check_text(stage.id, "id")
        check_text(stage.name, "name")
        for field in ("parent_id", "error", "code"):
            check_text(getattr(stage, field), field)
        check_actor(stage.actor)
        to_ns(stage.started_at, "started_at")
        if stage.finished_at is not None:
            to_ns(stage.finished_at, "finished_at")
    except InvalidValue as error:
        raise InvalidStage(error.field, str(error).partition(": ")[2]) from None
    check_state(stage, opid)


def check_state(stage: Stage, opid: str) -> None:
    """
    Refuse a stage whose parts contradict each other; its texts and times are known to be valid.

    Raises:
        InvalidStage: naming the field.
    """
    check_stage_id(stage.id, stage.parent_id, opid)
    if not stage.name:
        raise InvalidStage("name", "expected at least one character")
    status = stage.status
    if stage.finished_at is None:
        if status is not RUNNING:
            raise InvalidStage("status", "expected running while there is no finished_at")
    elif stage.finished_at == NO_TIME:
        raise InvalidStage("finished_at", "the first instant of the year 1 stands for no finish at all")
    elif status is not SUCCEEDED and (not isinstance(status, Status) or not status.is_terminal):
        raise InvalidStage("status", "expected succeeded, failed or canceled for a stage that has finished")
    if stage.elapsed_ns is not None and (type(stage.elapsed_ns) is not int or stage.elapsed_ns < 0):
        raise InvalidStage("elapsed_ns", "expected nanoseconds, 0 or more")


def check_stage_id(stage_id: str, parent_id: str, opid: str, field: str = "id") -> None:
    """
    Refuse a stage id that is empty, its own parent's, or the operation's; `field` is what the caller knows it as.
    """
    if not stage_id:
        raise InvalidStage(field, "expected at least one character")
    if stage_id == parent_id:
        raise InvalidStage("parent_id", "a stage cannot be its own parent")
    if stage_id.startswith(ROOT_PREFIX) and stage_id == root_id(opid):
        raise InvalidStage(field, "this id stands for the operation itself; it can be a parent, never a stage")


def check_completed(stage: Stage, opid: str = "") -> Stage:
    """
    Return a finished interval that another program measured, in canonical form.

    Raises:
        InvalidStage: naming the field.
        InvalidAttribute: naming the key.
    """
    if not isinstance(stage, Stage):
        raise InvalidStage("stage", f"expected a Stage, got {type(stage).__name__}")
    if isinstance(stage.status, str) and not isinstance(stage.status, Status):
        try:
            stage = msgspec.structs.replace(stage, status=Status(stage.status))
        except ValueError:
            raise InvalidStage("status", "expected succeeded, failed or canceled") from None
    if stage.finished_at is None:
        raise InvalidStage("finished_at", "expected the finish of a completed stage; use begin for a live one")
    check_stage(stage, opid)
    if stage.finished_at < stage.started_at:
        raise InvalidStage("finished_at", "expected a finish that is not before the start")
    if not stage.attributes_json:
        return stage
    check_text(stage.attributes_json, "attributes_json")
    canonical = canonical_object(stage.attributes_json, "attributes_json", depth=MAX_DEPTH)
    return msgspec.structs.replace(stage, attributes_json=canonical)


def check_boundary(boundary: Start | Finish) -> None:
    """
    Refuse a boundary that no process could have recorded.

    Raises:
        InvalidValue: naming the field.
    """
    to_ns(boundary.at, "at")
    if isinstance(boundary, Start):
        check_text(boundary.name, "name")
        if not boundary.name:
            raise InvalidValue("name", "expected at least one character")
    else:
        if boundary.at == NO_TIME:
            raise InvalidValue("at", "the first instant of the year 1 stands for no finish at all")
        check_text(boundary.error, "error")
        if not boundary.status.is_terminal:
            raise InvalidValue("status", "expected succeeded, failed or canceled")
