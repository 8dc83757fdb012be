"""
The values that are recorded: actors, stages, and the two boundaries of an operation.

They are immutable records without parts that the garbage collector tracks, so that a process can keep many
thousands of them at no cost to its collections. All of them are normalised: instants are integers, attributes are
canonical JSON text, absent text is "". So equality by meaning is equality of fields.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec

from .._errors import InvalidValue
from ._json import JSONValue, contains_object, decode_object, encode_attributes
from ._text import check_opid, check_text
from ._time import to_datetime, to_ns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


_Kind = TypeVar("_Kind")


class Status(StrEnum):
    """
    What is known of the result of a stage or an operation.
    """

    UNKNOWN = "unknown"
    """An operation without a recorded finish. Never a stage's."""
    RUNNING = "running"
    """A stage that has begun and not ended, as far as is known. Never an operation's."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        """
        Whether this is a result: succeeded, failed or canceled.
        """
        return self in _TERMINAL


_TERMINAL = frozenset((Status.SUCCEEDED, Status.FAILED, Status.CANCELED))

# In Python 3.11 looking a member up in its Enum class takes longer than a call.
RUNNING: Final = Status.RUNNING
SUCCEEDED: Final = Status.SUCCEEDED

ROOT_PREFIX: Final = "operation:"

StageKey = tuple[str, str]
"""What makes a stage unique in its operation: stage id and actor key."""


class Actor(msgspec.Struct, frozen=True, gc=False):
    """
    Who executes a stage: an instance, a host, a worker. Never the user on whose behalf it happens.

    With an id, the name is only a label. `Actor()` is the default actor, shared by all who name none.
    """

    id: str = ""
    name: str = ""

    @property
    def key(self) -> str:
        """
        The identity: ids and names are separate namespaces.
        """
        if self.id:
            return f"id:{self.id}"
        return f"name:{self.name}" if self.name else ""


NO_ACTOR = Actor()


def check_actor(actor: object, field: str = "actor") -> None:
    """
    Refuse what is not an `Actor` with text in it.
    """
    if not isinstance(actor, Actor):
        raise InvalidValue(field, f"expected an Actor, got {type(actor).__name__}")
    check_text(actor.id, f"{field}.id")
    check_text(actor.name, f"{field}.name")


class Stage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """
    The state of one stage as it was last recorded.

    Use `Stage.completed` to build one from a finished interval; live stages are built by `begin`.

    Attributes:
        id: unique in the operation together with the actor.
        name: what the stage is called; several stages may share it.
        started_at: nanoseconds since the epoch, UTC.
        finished_at: the same, None while the stage runs.
        status: running, succeeded, failed or canceled.
        parent_id: id of the stage that this one is part of, "" for none; it need not be known.
        actor: who executes it.
        error: text of the failure or cancellation.
        code: the recorder's own value, never interpreted.
        elapsed_ns: monotonic length in nanoseconds, if one process both began and ended the stage.
        attributes_json: the attributes as canonical JSON text, "" for none.
        extra_json: members that a newer version wrote, kept and written back.
    """

    id: str
    name: str
    started_at: int
    finished_at: int | None = None
    status: Status = Status.RUNNING
    parent_id: str = ""
    actor: Actor = NO_ACTOR
    error: str = ""
    code: str = ""
    elapsed_ns: int | None = None
    attributes_json: str = ""
    extra_json: str = ""

    @classmethod
    def completed(  # noqa: PLR0913 - a record has as many fields as it has
        cls,
        name: str,
        started_at: int | datetime,
        finished_at: int | datetime,
        *,
        id: str,  # noqa: A002 - the field's name
        status: Status = Status.SUCCEEDED,
        parent_id: str = "",
        actor: Actor = NO_ACTOR,
        error: str = "",
        code: str = "",
        elapsed_ns: int | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> Stage:
        """
        Build a finished interval to hand to `record`.

        Args:
            name: what the stage is called.
            started_at: nanoseconds since the epoch, or an aware `datetime`.
            finished_at: the same; not before the start.
            id: the stage's id. Recording the same id and actor again replaces the stage.
            status: succeeded, failed or canceled.
            parent_id: id of the stage that it is part of.
            actor: who executed it.
            error: text of the failure.
            code: your own value.
            elapsed_ns: length in nanoseconds by a clock that never steps, if one was read.
            attributes: name to JSON value.

        Raises:
            InvalidStage: naming the field that breaks a rule.
            InvalidAttribute: naming the key that JSON cannot hold.
        """
        from ._validation import check_completed  # noqa: PLC0415 - validation is written in terms of these values

        stage = cls(
            id=id,
            name=name,
            started_at=to_ns(started_at, "started_at"),
            finished_at=to_ns(finished_at, "finished_at"),
            status=status,
            parent_id=parent_id,
            actor=actor,
            error=error,
            code=code,
            elapsed_ns=elapsed_ns,
            attributes_json=encode_attributes(attributes),
        )
        return check_completed(stage)

    @property
    def key(self) -> StageKey:
        """
        What makes the stage unique in its operation.
        """
        return (self.id, self.actor.key)

    @property
    def attributes(self) -> dict[str, JSONValue]:
        """
        The attributes, in a new dict.
        """
        return decode_object(self.attributes_json)

    def attribute(self, name: str, kind: type[_Kind]) -> _Kind | None:
        """
        Return one attribute if it is there and of that type, else None. A boolean is no number.
        """
        value = self.attributes.get(name)
        if not isinstance(value, kind):
            return None
        return None if type(value) is bool and kind is not bool else value

    @property
    def started(self) -> datetime:
        """
        The start as an aware UTC `datetime`, cut to microseconds.
        """
        return to_datetime(self.started_at)

    @property
    def finished(self) -> datetime | None:
        """
        The finish as an aware UTC `datetime`, cut to microseconds; None while the stage runs.
        """
        return None if self.finished_at is None else to_datetime(self.finished_at)

    def duration(self, now: int) -> int:
        """
        Return the length in nanoseconds: the monotonic one if known, else finish or `now` less the start.
        """
        if self.elapsed_ns is not None:
            return self.elapsed_ns
        return (now if self.finished_at is None else self.finished_at) - self.started_at


class Start(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """
    An operation's start.

    Attributes:
        name: what the operation is called.
        at: nanoseconds since the epoch, UTC.
        attributes_json: the operation's attributes as canonical JSON text, "" for none.
        live: the time is that of the call; a stored start that says the same keeps its own.
    """

    name: str
    at: int
    attributes_json: str = ""
    live: bool = False

    def says_no_more_than(self, known: Start) -> bool:
        """
        Whether the known start has this name and all these attributes already.
        """
        return self.name == known.name and contains_object(known.attributes_json, self.attributes_json)


class Finish(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """
    An operation's finish.

    Attributes:
        at: nanoseconds since the epoch, UTC. It may lie before the start.
        status: succeeded, failed or canceled.
        error: text of the failure or cancellation.
        live: the time is that of the call; a stored finish that says the same keeps its own.
    """

    at: int
    status: Status
    error: str = ""
    live: bool = False

    def says_no_more_than(self, known: Finish) -> bool:
        """
        Whether the known finish has this result already.
        """
        return self.status is known.status and self.error == known.error


Fact = Stage | Start | Finish
"""One stage state or one boundary: the unit that is recorded, counted and saved."""


class StageRef(msgspec.Struct, frozen=True, gc=False):
    """
    Names one stage of one operation: plain data to hand to another process as a parent.

    With an empty `stage_id` it stands for no stage, as the reference of an inert handle does: it can be handed over
    like any other, and as a parent it means none. Its `opid` is then not looked at.
    """

    opid: str
    stage_id: str
    actor: Actor = NO_ACTOR

    def to_json(self) -> str:
        """
        Write the reference as a JSON object.

        Raises:
            InvalidValue: naming the part that no stage can have.
        """
        return msgspec.json.encode(_checked_ref(self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> StageRef:
        """
        Read what `to_json` wrote.

        Raises:
            InvalidValue: not such a reference.
        """
        try:
            return _checked_ref(msgspec.json.decode(text, type=cls))
        except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError) as error:
            raise InvalidValue("ref", f"expected what StageRef.to_json wrote: {error}") from error

    def to_header(self) -> str:
        """
        Write the reference as one printable header value: four percent-encoded parts, joined by semicolons.

        Raises:
            InvalidValue: naming the part that no stage can have.
        """
        _checked_ref(self)
        return ";".join(quote(part, safe="") for part in (self.opid, self.stage_id, self.actor.id, self.actor.name))

    @classmethod
    def from_header(cls, value: str) -> StageRef:
        """
        Read what `to_header` wrote.

        Raises:
            InvalidValue: not such a reference.
        """
        check_text(value, "ref")
        parts = value.strip().split(";")
        if len(parts) != 4:  # noqa: PLR2004
            raise InvalidValue("ref", "expected what StageRef.to_header wrote: four parts joined by semicolons")
        try:
            opid, stage_id, actor_id, actor_name = map(_unquoted, parts)
        except ValueError:
            raise InvalidValue("ref", "expected percent-encoded UTF-8") from None
        return _checked_ref(cls(opid, stage_id, Actor(actor_id, actor_name)))


def _unquoted(part: str) -> str:
    if re.search("%(?![0-9A-Fa-f]{2})", part):  # which `unquote` lets pass
        raise ValueError(part)
    return unquote(part, errors="strict")


def _checked_ref(ref: StageRef) -> StageRef:
    check_text(ref.stage_id, "stage_id")
    check_actor(ref.actor)
    if ref.stage_id:
        check_opid(ref.opid)
    else:
        check_text(ref.opid, "opid")
    return ref


def root_id(opid: str) -> str:
    """
    Return the id that stands for the operation itself, for use as an explicit parent.
    """
    return f"{ROOT_PREFIX}{opid}"
