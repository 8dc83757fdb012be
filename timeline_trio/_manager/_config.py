"""
The options of a manager, checked as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable  # noqa: TC003 - dataclass fields are read at run time by documentation tools
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, final

from .._errors import InvalidValue
from .._model._values import NO_ACTOR, Actor, check_actor

if TYPE_CHECKING:
    from .._record._recorder import Redact

_COUNTS = ("batch_limit", "max_timelines", "max_pending_timelines", "max_pending_updates", "max_fact_bytes")
_SECONDS = ("flush_interval", "load_interval", "export_timeout")
_CALLABLES = ("redact", "on_error", "clock", "new_id")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """
    The options of a manager. Durations are seconds.

    Attributes:
        actor: who executes what is begun, or ended by name, without an actor.
        batch_limit: operations in one save round, in one read of several, and in one look for recent changes.
        flush_interval: from one periodic save to the next.
        load_interval: from one periodic load to the next; also how far back each look for recent changes reaches
            again, to see what others committed late, and for how long a failed or empty read is remembered.
        export_timeout: the longest that one call of the Store may take.
        max_timelines: operations kept in memory; the least recently used one leaves first.
        max_pending_timelines: operations with unsaved updates.
        max_pending_updates: unsaved updates of one operation.
        max_fact_bytes: the size of one update, encoded.
        redact: `(name, value) -> value`, applied to each attribute, and to error texts under the name "error", before
            they are encoded.
        on_error: `(opid, exception)`, called on the Trio thread once for each streak of failures and for every
            final loss, with opid "" for loads of several operations. What it raises is contained. If left out,
            a log line is written, without any content, and at most one in ten seconds.
        clock: returns wall time in nanoseconds since the epoch.
        new_id: returns an id for a new stage; UUID text if left out.

    Raises:
        InvalidValue: naming the option.
    """

    actor: Actor = NO_ACTOR
    batch_limit: int = 64
    flush_interval: float = 1.0
    load_interval: float = 1.0
    export_timeout: float = 5.0
    max_timelines: int = 1024
    max_pending_timelines: int = 1024
    max_pending_updates: int = 1024
    max_fact_bytes: int = 256 * 1024
    redact: Redact | None = None
    on_error: Callable[[str, Exception], None] | None = None
    clock: Callable[[], int] = time.time_ns
    new_id: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        """
        Check every option.
        """
        check_actor(self.actor)
        for name in _COUNTS:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidValue(name, f"expected a whole number, 1 or more, got {value!r}")
        for name in _SECONDS:
            value = getattr(self, name)
            if type(value) not in {int, float} or not isfinite(value) or value <= 0:
                raise InvalidValue(name, f"expected seconds, more than 0 and finite, got {value!r}")
        for name in _CALLABLES:
            value = getattr(self, name)
            if not callable(value) and not (value is None and name != "clock"):
                raise InvalidValue(name, f"expected a function, got {type(value).__name__}")
