"""
Every error of the library, in one place.

A class tells whose fault it is and what can be done: `InvalidValue` is the caller's, `StoreUnavailable` is the
world's, `StoreRejected` and `CorruptEntry` are the data's. No message that the library logs carries names, attributes
or error texts that were recorded; `StageNotFound` and `AmbiguousStage`, which are raised to the caller and never
logged, say what was looked for. What a program needs to act on is an attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._model._snapshot import Snapshot
    from ._model._values import StageRef

__all__ = [
    "ActiveStages",
    "AmbiguousStage",
    "BufferFull",
    "CorruptEntry",
    "DrainError",
    "FlushError",
    "InvalidAttribute",
    "InvalidStage",
    "InvalidValue",
    "ManagerClosed",
    "NoDefaultManager",
    "NotFound",
    "StageNotFound",
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "TimelineError",
    "WrongProcess",
    "WrongThread",
]


class TimelineError(Exception):
    """
    The root of the library's errors.
    """


class InvalidValue(TimelineError, ValueError):
    """
    A value that cannot be accepted; nothing was.

    Attributes:
        field: the name of the argument or payload member.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class InvalidStage(InvalidValue):
    """
    A stage that breaks a rule of stages; nothing was accepted.
    """


class InvalidAttribute(InvalidValue):
    """
    An attribute that JSON cannot hold exactly; nothing was accepted.

    Attributes:
        key: the attribute's name.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"attributes[{key!r}]", problem)
        self.key = key


class NotFound(TimelineError, LookupError):
    """
    Neither this process nor the Store knows the operation.
    """

    def __init__(self, opid: str, problem: str = "no such operation, neither here nor in the store") -> None:
        super().__init__(f"{opid!r}: {problem}")
        self.opid = opid


class StageNotFound(NotFound):
    """
    No stage of that name and actor runs in the operation.

    Attributes:
        name: the stage name that was looked for.
        actor_key: the key of the actor that was looked for, "" for no actor.
    """

    def __init__(self, opid: str, name: str, actor_key: str) -> None:
        super().__init__(
            opid, f"no stage {name!r} {_of_actor(actor_key)} is running; begin it first, or end it by its handle"
        )
        self.name = name
        self.actor_key = actor_key


class AmbiguousStage(TimelineError):
    """
    Several stages of that name and actor run in the operation.

    Attributes:
        name: the stage name that was looked for.
        actor_key: the key of the actor that was looked for, "" for no actor.
        candidates: the stages that could be meant.
    """

    def __init__(self, opid: str, name: str, actor_key: str, candidates: tuple[StageRef, ...]) -> None:
        super().__init__(
            f"{opid!r}: {len(candidates)} stages {name!r} {_of_actor(actor_key)} are running; "
            "end the one you mean by its handle"
        )
        self.opid = opid
        self.name = name
        self.actor_key = actor_key
        self.candidates = candidates


def _of_actor(actor_key: str) -> str:
    return f"of actor {actor_key!r}" if actor_key else "of no actor"


class ActiveStages(TimelineError):
    """
    A sealed timeline could not be finished in time: stages still run.

    Attributes:
        running: the stages that have not ended.
    """

    def __init__(self, opid: str, running: tuple[StageRef, ...]) -> None:
        super().__init__(f"{opid!r}: {len(running)} stages are still running; end them, then finish again")
        self.opid = opid
        self.running = running


class BufferFull(TimelineError):
    """
    A bound on unsaved facts is reached; this one was not accepted, and can be tried again.

    Attributes:
        option: the name of the bounding option of `Config`.
        limit: its value.
    """

    def __init__(self, opid: str, option: str, limit: int) -> None:
        super().__init__(
            f"{opid!r}: {option}={limit} is reached; wait until the store has taken what is pending "
            f"(await manager.flush(opid)), or raise {option}"
        )
        self.opid = opid
        self.option = option
        self.limit = limit


class ManagerClosed(TimelineError, RuntimeError):
    """
    The manager has closed, or is closing; nothing was accepted.
    """

    def __init__(self) -> None:
        super().__init__("the manager is closed; record inside its 'async with' block")


class WrongProcess(TimelineError, RuntimeError):
    """
    The manager, or the store, belongs to the process that this one was forked from.
    """

    def __init__(self, what: str = "manager") -> None:
        super().__init__(
            f"this {what} was opened before a fork, by the parent process; open another one in this process"
        )


class WrongThread(TimelineError, RuntimeError):
    """
    The manager belongs to another Trio run, in another thread or before this one; nothing was done.
    """

    def __init__(self) -> None:
        super().__init__(
            "this manager's async methods belong to the Trio run that it was opened in; from a thread of that run call "
            "trio.from_thread.run(manager.flush, ...), or open another manager in this run"
        )


class NoDefaultManager(TimelineError, RuntimeError):
    """
    No default manager is installed.
    """

    def __init__(self) -> None:
        super().__init__("no default manager; install one with set_default(manager), or call the manager's own method")


class StoreError(TimelineError):
    """
    The Store could not do what it was asked to. The failure of the driver is the cause.

    Attributes:
        opid: the operation, "" where several were asked for.
        problem: what went wrong, and what to do about it.
        snapshot: after a failed fresh read, what this process itself knows; else None.
    """

    def __init__(self, opid: str, problem: str, *, snapshot: Snapshot | None = None) -> None:
        super().__init__(f"{opid!r}: {problem}" if opid else problem)
        self.opid = opid
        self.problem = problem
        self.snapshot = snapshot


class StoreUnavailable(StoreError):
    """
    The Store did not answer, or not in time: the same call may succeed later, and the failed one may yet be done.
    """


class StoreRejected(StoreError):
    """
    The Store will never accept this update.
    """


class CorruptEntry(StoreRejected):
    """
    What the Store holds for the operation cannot be read.
    """


class FlushError(StoreError):
    """
    Some operations could not be saved; background saves go on trying.

    Attributes:
        causes: the failure of each operation, by opid.
    """

    def __init__(self, causes: Mapping[str, StoreError]) -> None:
        super().__init__("", f"{len(causes)} operations could not be saved: {', '.join(map(repr, causes))}")
        self.causes: dict[str, StoreError] = dict(causes)


class DrainError(TimelineError):
    """
    The manager closed before everything was saved.

    Attributes:
        lost: how many accepted updates of each operation were not saved, by opid.
    """

    def __init__(self, lost: Mapping[str, int]) -> None:
        names = ", ".join(f"{opid!r} ({count})" for opid, count in lost.items())
        super().__init__(f"{sum(lost.values())} updates were not saved before the deadline: {names}")
        self.lost: dict[str, int] = dict(lost)
