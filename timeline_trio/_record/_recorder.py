"""
Turns calls into facts in the cache: synchronous, local, without any I/O, from any thread.

All that a fact needs is checked and encoded first, outside of the lock; then one call commits it. A call either
takes effect as a whole or raises and leaves nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec
from trio.lowlevel import enable_ki_protection

from .._cache._entry import FINISH, START
from .._cache._live import RUNNING
from .._errors import InvalidStage, InvalidValue
from .._model._codec import encode_stage
from .._model._json import encode_attributes, merge_objects
from .._model._text import check_opid, check_text
from .._model._time import to_ns
from .._model._validation import check_completed, check_stage_id
from .._model._values import Actor, Finish, Stage, StageRef, Start, Status, check_actor
from ._handles import StageHandle
from ._outcome import outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from .._cache._cache import Cache
    from .._cache._live import Journaled

    Time = int | datetime
    Parent = str | StageRef | StageHandle | None
    Error = BaseException | str | None
    Attributes = Mapping[str, object] | None
    Redact = Callable[[str, object], object]

replace: Final = msgspec.structs.replace
_monotonic_ns: Final = time.monotonic_ns
_ESCAPED_LENGTH: Final = 6  # the most bytes that JSON makes of one character
_ID_LENGTH: Final = 36  # of a UUID as text
_FIXED_LENGTH: Final = 512  # the most bytes of a fact's member names, times and numbers


def make_id_source() -> Callable[[], str]:
    """
    Return a function that makes UUID text, unique to this process and much cheaper than `uuid4`.

    A random prefix and a counter that starts at random: what matters is that no two processes meet.
    """
    seed = random.SystemRandom()
    bits = f"{seed.getrandbits(80):020x}"
    prefix = f"{bits[:8]}-{bits[8:12]}-4{bits[12:15]}-{8 + seed.getrandbits(2):x}{bits[15:18]}-"
    numbers = count(seed.getrandbits(47))

    def new_id() -> str:
        # `next` of a counter cannot be torn by another thread or a signal; formatting the number as text takes
        # three times as long as `hex` of its bytes.
        return prefix + next(numbers).to_bytes(6, "big").hex()

    return new_id


class Recorder:
    """
    Records into one cache, under one set of options.

    Args:
        cache: where facts go.
        actor: who executes what is begun without an actor.
        clock: returns wall time in nanoseconds since the epoch.
        new_id: returns ids for stages.
        max_fact_bytes: the most that one fact may take, encoded.
        redact: changes attribute values and error texts before they are encoded.
        report: called with the failures of blocks, which never raise.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        actor: Actor,
        clock: Callable[[], int],
        new_id: Callable[[], str] | None,
        max_fact_bytes: int,
        redact: Redact | None,
        report: Callable[[str, Exception], None],
    ) -> None:
        self.cache = cache
        self.clock = clock
        self.new_id: Callable[[], str] = new_id or make_id_source()
        self.report = report
        self._max_fact_bytes = max_fact_bytes
        self._max_characters = (max_fact_bytes - _FIXED_LENGTH) // _ESCAPED_LENGTH  # what is surely no more than that
        self._redact = redact
        self.is_plain: bool = new_id is None and redact is None  # nothing of the application's has a say in a begin
        self._act_as(actor)

    def acting_as(self, actor: Actor) -> Recorder:
        """
        Return a recorder on the same cache whose default actor is another one.
        """
        check_actor(actor)
        other = copy(self)
        other._act_as(actor)  # noqa: SLF001 - a copy of this very object
        return other

    def _act_as(self, actor: Actor) -> None:
        self.actor: Actor = actor
        # As long as name and attributes have no more characters, a new stage of this actor is surely not too large.
        self.small: int = self._max_characters - _ID_LENGTH - len(actor.id) - len(actor.name)

    @enable_ki_protection
    def begin(
        self,
        opid: str,
        name: str,
        *,
        stage_id: str | None = None,
        parent: Parent = None,
        actor: Actor | None = None,
        started_at: Time | None = None,
        attributes: Attributes = None,
    ) -> StageHandle:
        """
        Begin a stage, whatever is special about it.
        """
        check_text(name, "name")
        if not name:
            raise InvalidStage("name", "expected at least one character")
        parent_id = parent_id_of(parent, opid)
        if stage_id is None:
            stage_id = self.new_id()
        check_text(stage_id, "stage_id")
        check_stage_id(stage_id, parent_id, opid, "stage_id")
        if actor is None:
            actor = self.actor
        else:
            check_actor(actor)
        if started_at is None:
            at, began_ns = self.clock(), _monotonic_ns()
        else:
            at, began_ns = to_ns(started_at, "started_at"), None
        stage = Stage(
            id=stage_id,
            name=name,
            started_at=at,
            parent_id=parent_id,
            actor=actor,
            attributes_json=self.encode(attributes),
        )
        self.check_size(stage)
        handle = StageHandle(opid, stage.key, stage, began_ns, RUNNING, None, self)
        try:
            self.cache.begin(handle, stage)
        except BaseException as error:
            handle.make_inert()
            if isinstance(error, TypeError):  # the opid cannot even be looked up
                check_opid(opid)
            raise
        return handle

    def begin_again(self, handle: StageHandle, stage: Stage, entry: Journaled) -> None:
        """
        Begin a stage that went into a journal which was closed at that moment. Raises as `begin` does.
        """
        try:
            self.cache.begin_again(handle, stage, entry)
        except BaseException:
            handle.make_inert()
            raise

    @enable_ki_protection
    def record(self, opid: str, stage: Stage) -> None:
        """
        Record a finished interval as it was given.
        """
        check_opid(opid)
        stage = check_completed(stage, opid)
        if self._redact is not None:
            error = self.redacted_error(stage.error)
            stage = replace(stage, error=error, attributes_json=self.encode(stage.attributes))
        self.check_size(stage)
        self.cache.accept(opid, stage.key, stage)

    @enable_ki_protection
    def start(self, opid: str, name: str, *, at: Time | None, attributes: Attributes) -> None:
        """
        Record the operation's start.
        """
        check_opid(opid)
        check_text(name, "name")
        if not name:
            raise InvalidValue("name", "expected at least one character")
        moment = self.clock() if at is None else to_ns(at, "at")
        start = Start(name=name, at=moment, attributes_json=self.encode(attributes), live=at is None)
        self.check_size(start)
        self._accept_boundary(opid, start)

    @enable_ki_protection
    def finish(self, opid: str, error: Error, *, at: Time | None) -> None:
        """
        Record the operation's finish. No stage is ended by it.
        """
        check_opid(opid)
        status, text = outcome_of(error)
        moment = self.clock() if at is None else to_ns(at, "at")
        finish = Finish(at=moment, status=status, error=self.redacted_error(text), live=at is None)
        self.check_size(finish)
        self._accept_boundary(opid, finish)

    def _accept_boundary(self, opid: str, boundary: Start | Finish) -> None:
        slot = START if isinstance(boundary, Start) else FINISH
        entry = self.cache.peek(opid)
        pending = entry.pending.get(slot) if entry else None
        # Said already and not saved yet: its time stays.
        if isinstance(boundary, Start):
            if boundary.live and isinstance(pending, Start) and boundary.says_no_more_than(pending):
                boundary = pending
        elif boundary.live and isinstance(pending, Finish) and boundary.says_no_more_than(pending):
            boundary = pending
        self.cache.accept(opid, slot, boundary)

    @enable_ki_protection
    def set_operation_attributes(self, opid: str, attributes: Mapping[str, object]) -> None:
        """
        Lay attributes over those of the operation, by recording its known start again.

        Raises:
            InvalidValue: this process does not know the start.
        """
        self._lay_over_start(opid, self.encode(attributes))

    def _lay_over_start(self, opid: str, encoded: str) -> None:
        while True:
            entry = self.cache.peek(opid)
            known = entry.start if entry else None
            if known is None:
                raise InvalidValue(
                    "start", "this process does not know the operation's start yet; start it, or read it first"
                )
            merged = merge_objects(known.attributes_json, encoded)
            start = replace(known, attributes_json=merged)
            self.check_size(start)
            accepted = self.cache.replace_start(opid, known, start)
            if accepted is None:
                self.cache.put_off(opid, partial(self._lay_over_start, opid, encoded))
            if accepted is not False:
                return

    @enable_ki_protection
    def set_attributes(self, handle: StageHandle, attributes: Mapping[str, object]) -> None:
        """
        Lay attributes over those of a live stage; do nothing if it has ended.
        """
        self._lay_over_stage(handle, self.encode(attributes))

    def _lay_over_stage(self, handle: StageHandle, encoded: str) -> None:
        while (current := self.cache.current(handle)) is not None:
            merged = merge_objects(current.attributes_json, encoded)
            stage = replace(current, attributes_json=merged)
            self.check_size(stage)
            accepted = self.cache.advance(handle, current, stage, ends=False)
            if accepted is None:
                self.cache.put_off(handle.opid, partial(self._lay_over_stage, handle, encoded))
            if accepted is not False:
                return

    @enable_ki_protection
    def end(self, handle: StageHandle, error: Error, code: str, ended_at: Time | None, attributes: Attributes) -> None:
        """
        End a live stage; do nothing if it has ended.
        """
        if ended_at is not None:
            finished_at, elapsed_ns = to_ns(ended_at, "ended_at"), None
        else:
            finished_at, elapsed_ns = self.clock(), handle.began_ns
            if elapsed_ns is not None:
                elapsed_ns = _monotonic_ns() - elapsed_ns
        begun = handle.begun
        encoded = self.encode(attributes)
        check_text(code, "code")
        status, text = outcome_of(error)
        error_text = self.redacted_error(text) if text else ""
        self._end(handle, begun, End(finished_at, status, error_text, code, elapsed_ns, encoded))

    def _end(self, handle: StageHandle, begun: Stage | None, end: End) -> None:
        # Nearly always it is as it was begun or last changed here; `advance` finds out.
        current = begun if handle.phase is RUNNING else None
        while current is not None:
            # Another process may have begun the same stage anew; our clock says nothing of that one's length.
            same = current is begun or (begun is not None and begun.started_at == current.started_at)
            stage = end.of(current, timed=same)
            fits = self._fits(handle, current, stage, end)
            accepted = fits and self.cache.advance(handle, current, stage, ends=True)
            if accepted is None:
                self.cache.put_off(handle.opid, partial(self._end, handle, begun, end))
            if accepted is not False:
                return
            current = self.cache.current(handle)

    def _fits(self, handle: StageHandle, current: Stage, stage: Stage, end: End) -> bool:
        """
        Check the size of an ended stage; False if it is too large, but was made from a state that is not the present.

        A plain end always fits: finished work must not be left shown as running for a few bytes.
        """
        if not (end.error or end.code or end.attributes_json):
            return True
        try:
            self.check_size(stage)
        except InvalidValue:
            if current is self.cache.current(handle):
                raise
            return False
        return True

    def end_again(self, handle: StageHandle, stage: Stage, entry: Journaled) -> None:
        """
        End a stage whose end went into a journal which was closed at that moment. Raises as `end` does.
        """
        if self.cache.end_again(handle, stage, entry) is True:
            return
        assert stage.finished_at is not None
        self._end(handle, handle.begun, End(stage.finished_at, stage.status, "", "", stage.elapsed_ns, ""))

    @enable_ki_protection
    def end_stage(
        self,
        opid: str,
        current: Stage,
        error: Error,
        code: str,
        ended_at: Time | None,
        attributes: Attributes,
    ) -> bool:
        """
        End a stage that was begun elsewhere; False if it has changed since `current` was read.
        """
        check_text(code, "code")
        status, text = outcome_of(error)
        finished_at = self.clock() if ended_at is None else to_ns(ended_at, "ended_at")
        end = End(finished_at, status, self.redacted_error(text), code, None, self.encode(attributes))
        stage = end.of(current, timed=False)
        self.check_size(stage)
        return bool(self.cache.replace_stage(opid, current, stage))

    def encode(self, attributes: Attributes) -> str:
        """
        Encode attributes, redacted.
        """
        if self._redact is not None and isinstance(attributes, Mapping):
            attributes = {name: self._redact(name, value) for name, value in attributes.items()}
        return encode_attributes(attributes)

    def redacted_error(self, text: str) -> str:
        """
        Return an error's text, redacted.
        """
        if not text or self._redact is None:
            return text
        redacted = self._redact("error", text)
        check_text(redacted, "redact")
        return str(redacted)

    def check_size(self, fact: Stage | Start | Finish) -> None:
        """
        Refuse a fact over `max_fact_bytes`, measuring it only where a bound that is quick to get is not enough.
        """
        if isinstance(fact, Stage):
            actor = fact.actor
            # Joining texts that are mostly short takes half as long as asking each one for its length.
            texts = f"{fact.id}{fact.name}{fact.parent_id}{fact.error}{fact.code}{actor.id}{actor.name}"
            characters = len(texts) + len(fact.attributes_json)
        elif isinstance(fact, Start):
            characters = len(fact.name) + len(fact.attributes_json)
        else:
            characters = len(fact.error)
        if characters <= self._max_characters:
            return
        size = len(encode_stage(fact).encode() if isinstance(fact, Stage) else msgspec.json.encode(fact))
        if size > self._max_fact_bytes:
            raise InvalidValue(
                "fact",
                f"expected at most max_fact_bytes={self._max_fact_bytes} encoded, got {size}; shorten its texts",
            )


class End(msgspec.Struct, frozen=True, gc=False):
    """
    How a stage ends, whatever it is like until then.
    """

    finished_at: int
    status: Status
    error: str
    code: str
    elapsed_ns: int | None
    attributes_json: str

    def of(self, current: Stage, *, timed: bool) -> Stage:
        """
        Return a running stage as ended; with its monotonic length if that is `timed`.
        """
        attributes_json = current.attributes_json
        if self.attributes_json:
            attributes_json = merge_objects(attributes_json, self.attributes_json)
        return replace(
            current,
            finished_at=self.finished_at,
            status=self.status,
            error=self.error,
            code=self.code,
            elapsed_ns=self.elapsed_ns if timed else None,
            attributes_json=attributes_json,
        )


def parent_id_of(parent: object, opid: str) -> str:
    """
    Return the id of an explicit parent; "" for a stage of another operation, which can be nobody's parent here.

    Raises:
        InvalidStage: not a stage id, StageRef or handle.
    """
    if parent is None:
        return ""
    if isinstance(parent, StageHandle):
        return parent.stage_id if parent.opid == opid and parent.accepted else ""
    if isinstance(parent, StageRef):
        parent = parent.stage_id if parent.opid == opid else ""
    if not isinstance(parent, str):
        raise InvalidStage("parent", f"expected a stage id, a StageRef or a handle, got {type(parent).__name__}")
    check_text(parent, "parent")
    return parent
