"""
Stages and operations as `with` blocks: the result comes from how the block is left.

A block never lets a failure to record replace the outcome of its body: what was refused is counted and reported. An
end whose error text is refused is recorded without the text.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

from trio.lowlevel import enable_ki_protection

from .._errors import InvalidValue, TimelineError
from ._handles import StageHandle, StageRecorder, inert_handle
from ._outcome import without_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from .._model._values import Actor
    from ._handles import Begin
    from ._recorder import Error, Parent, Recorder

HandleT = TypeVar("HandleT")

_current: Final[ContextVar[StageHandle | None]] = ContextVar("timeline_trio.current_stage", default=None)


def current_stage() -> StageHandle | None:
    """
    Return the handle of the innermost stage block around the caller, in this task or thread; None outside of any.

    Nothing reads it to guess a parent: `parent=current_stage()` is how to ask for it.
    """
    return _current.get()


@final
class StageBlock:
    """
    A stage that lasts as long as the block. Made by `stage` and `child`; to be entered once.
    """

    __slots__ = ("_arguments", "_begin", "_handle", "_name", "_opid", "_recorder", "_token")

    def __init__(
        self,
        recorder: StageRecorder,
        begin: Begin,
        opid: str,
        name: str,
        *,
        stage_id: str | None,
        parent: Parent,
        actor: Actor | None,
        attributes: Mapping[str, object] | None,
    ) -> None:
        self._recorder = recorder
        self._begin: Begin = begin
        self._opid = opid
        self._name = name
        self._arguments = (stage_id, parent, actor, attributes)
        self._handle: StageHandle | None = None
        self._token: Token[StageHandle | None] | None = None

    @enable_ki_protection
    def __enter__(self) -> StageHandle:
        """
        Begin the stage, and bind it as `current_stage()`.
        """
        stage_id, parent, actor, attributes = self._arguments
        try:
            handle = self._begin(
                self._opid, self._name, stage_id=stage_id, parent=parent, actor=actor, attributes=attributes
            )
        except Exception as error:  # noqa: BLE001 - the observed program goes on whatever went wrong here
            self._recorder.report(self._opid, error)
            handle = inert_handle(self._recorder, self._opid)
        self._handle = handle
        self._token = _current.set(handle)
        return handle

    @enable_ki_protection
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """
        End the stage by how the block is left. The exception goes on.
        """
        del kind, traceback
        assert self._handle is not None
        assert self._token is not None
        try:  # noqa: SIM105 - entering `suppress` costs a microsecond, about a twentieth of a block
            _current.reset(self._token)
        except ValueError:  # left in another context than it was entered in, as generators may be
            pass
        record_result(self._handle.end, error, self._opid, self._recorder)


@final
class OperationBlock(Generic[HandleT]):
    """
    An operation that this block starts and finishes, for everybody. Made by `operation`; to be entered once.
    """

    __slots__ = ("_attributes", "_handle", "_name", "_opid", "_recorder")

    def __init__(
        self,
        recorder: Recorder,
        opid: str,
        name: str,
        attributes: Mapping[str, object] | None,
        handle: Callable[[], HandleT],
    ) -> None:
        self._recorder = recorder
        self._opid = opid
        self._name = name
        self._attributes = attributes
        self._handle = handle

    @enable_ki_protection
    def __enter__(self) -> HandleT:
        """
        Record the start.
        """
        try:
            self._recorder.start(self._opid, self._name, at=None, attributes=self._attributes)
        except Exception as error:  # noqa: BLE001 - the observed program goes on whatever went wrong here
            self._recorder.report(self._opid, error)
        return self._handle()

    @enable_ki_protection
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """
        Record the finish by how the block is left. The exception goes on.
        """
        del kind, traceback
        finish = self._recorder.finish
        record_result(lambda error: finish(self._opid, error, at=None), error, self._opid, self._recorder)


def record_result(
    record: Callable[[Error], None], error: BaseException | None, opid: str, recorder: StageRecorder
) -> None:
    """
    Record how a block was left, and raise nothing: where the text of its error is refused, record it without.
    """
    try:
        record(error)
    except Exception as failure:  # noqa: BLE001 - the observed program goes on whatever went wrong here
        recorder.report(opid, failure)
        # Redacting may raise anything. All other errors of the library have nothing to do with the text.
        if error is not None and (isinstance(failure, InvalidValue) or not isinstance(failure, TimelineError)):
            with suppress(Exception):
                record(without_text(error))
