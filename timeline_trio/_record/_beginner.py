"""
How stages are begun where nothing is special about them, as nearly always: in one frame, and without the lock.

That is less than half the cost of the way through recorder and cache (scripts/bench record). What is special takes that
one: an id, a parent or an actor that was given, a text to look at closely, an operation that recorded nothing since it
was saved last, one that is watched, a bound that is near.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from trio.lowlevel import enable_ki_protection

from .._cache._live import RUNNING
from .._model._json import encode_attributes
from .._model._values import Stage
from ._handles import StageHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from .._cache._entry import Entry
    from .._model._values import Actor
    from ._recorder import Parent, Recorder

_monotonic_ns: Final = time.monotonic_ns


class Beginner:
    """
    Begins stages under the options of a recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder = recorder
        self._entries: Mapping[str, Entry] = recorder.cache.entries if recorder.is_plain else {}
        self._promote: Callable[[str], None] = recorder.cache.entries.move_to_end
        self._clock: Callable[[], int] = recorder.clock
        self._new_id: Callable[[], str] = recorder.new_id
        self._actor: Actor = recorder.actor
        self._actor_key: str = recorder.actor.key
        self._small: int = recorder.small

    @enable_ki_protection
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
        Begin a stage.

        Args:
            opid: the operation.
            name: what the stage is called; others of the same name may run at the same time.
            stage_id: the stage's id, unique in the operation together with the actor; made up if left out. A stage
                of the same id and actor is replaced by a fresh, running one.
            parent: the stage that this one is part of: its id, a `StageRef` or a handle. It need not be known.
                A stage of another operation is no parent.
            actor: who executes the stage; `Config.actor` if left out, and `Actor()` for nobody in particular.
            started_at: nanoseconds since the epoch or an aware `datetime`; now if left out.
            attributes: name to JSON value.

        Raises:
            InvalidValue: naming the field; nothing was accepted.
            BufferFull: a bound on unsaved updates is reached; nothing was accepted.
            ManagerClosed: the manager is closed.
            WrongProcess: this process was forked from the manager's.
        """
        if (
            stage_id is None
            and parent is None
            and actor is None
            and started_at is None
            and type(name) is str
            and name.isascii()
            and name
            and type(opid) is str
            and (entry := self._entries.get(opid)) is not None
            and len(entry.journal) < entry.room
        ):
            encoded = "" if attributes is None else encode_attributes(attributes)
            if len(name) + len(encoded) <= self._small:
                new_id = self._new_id()
                stage = Stage(
                    id=new_id, name=name, started_at=self._clock(), actor=self._actor, attributes_json=encoded
                )
                key = (new_id, self._actor_key)
                handle = StageHandle(opid, key, stage, _monotonic_ns(), RUNNING, entry, self._recorder)
                entry.journal.append(handle)
                if entry.room <= 0:  # closed while we were on our way
                    self._recorder.begin_again(handle, stage, entry)
                try:  # noqa: SIM105 - entering `suppress` costs as much as all the rest
                    self._promote(opid)
                except KeyError:  # evicted by another thread
                    pass
                return handle
        return self._recorder.begin(
            opid,
            name,
            stage_id=stage_id,
            parent=parent,
            actor=actor,
            started_at=started_at,
            attributes=attributes,
        )
