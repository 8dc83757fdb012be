"""
Where failures go that nobody can catch: to `on_error`, on the Trio thread, or to the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, final

import trio

from .._errors import DrainError, StoreRejected, TimelineError

_LOG: Final = logging.getLogger("timeline_trio")
_QUIET_SECONDS: Final = 10.0

OnError = Callable[[str, Exception], None]


@final
class LogErrors:
    """
    The default `on_error`: a line for the opid and the error, never with any content.

    At most one in ten seconds tells of failures, and one of losses, so that no failure hides a loss; what has no line
    of its own is counted in the next one. What is lost at the end always has its line.
    """

    def __init__(self) -> None:
        self._quiet_until = {False: float("-inf"), True: float("-inf")}
        self._suppressed = 0

    def __call__(self, opid: str, error: Exception, *, is_loss: bool = False) -> None:
        """
        Log one failure or loss, or count it.
        """
        is_loss = is_loss or isinstance(error, DrainError | StoreRejected)
        now = time.monotonic()
        if now < self._quiet_until[is_loss] and not isinstance(error, DrainError):
            self._suppressed += 1
            return
        self._quiet_until[is_loss] = now + _QUIET_SECONDS
        # Our own messages hold no content; other libraries' may quote the very values that they failed on.
        text = str(error) if isinstance(error, TimelineError) else "see on_error for the exception itself"
        what = "updates are lost: " if is_loss else ""
        where = repr(opid) if opid else "several operations"
        _LOG.warning("timeline of %s: %s%s: %s%s", where, what, type(error).__name__, text, self._more())

    def close(self) -> None:
        """
        Say how many failures were not logged, if any.
        """
        if self._suppressed:
            _LOG.warning("timeline: at the end%s", self._more())

    def _more(self) -> str:
        suppressed, self._suppressed = self._suppressed, 0
        return f" ({suppressed} further failures were not logged)" if suppressed else ""


@final
class Reporter:
    """
    Calls `on_error` on the thread of the Trio run that the reporter was made in.

    While `on_error` runs, further failures that it causes itself, say by logging to a handler that records, are left
    out: they would go round for ever.
    """

    def __init__(self, on_error: OnError | None) -> None:
        self._log = LogErrors()
        self._on_error = on_error
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        self._calling = False
        self._refused = 0
        self._refusing = False

    def report(self, opid: str, error: Exception, *, is_loss: bool = False) -> None:
        """
        Pass a failure on, from any thread; `is_loss` says that updates are lost for good by it.
        """
        if threading.get_ident() == self._thread:
            self._call(opid, error, is_loss)
            return
        try:
            self._token.run_sync_soon(self._call, opid, error, is_loss)
        except trio.RunFinishedError:
            self._log(opid, error, is_loss=is_loss)

    def _call(self, opid: str, error: Exception, is_loss: bool) -> None:  # noqa: FBT001 - a token passes no names
        if self._calling:
            return
        self._calling = True
        try:
            if self._on_error is None:
                self._log(opid, error, is_loss=is_loss)
            else:
                self._on_error(opid, error)
        except Exception:  # noqa: BLE001 - a monitor's own callback must not stop the monitor
            _LOG.exception("timeline: on_error raised")
        finally:
            self._calling = False

    def note_refusals(self, refused: int, last: str) -> None:
        """
        Log the beginning and the end of a streak of refusals, given how many there were so far, and the last one.
        """
        if refused > self._refused and not self._refusing:
            self._refusing = True
            self._streak_began_at = self._refused
            _LOG.warning("timeline: updates are refused: %s", last)
        elif refused == self._refused and self._refusing:
            self._refusing = False
            _LOG.warning("timeline: %d updates were refused", refused - self._streak_began_at)
        self._refused = refused

    def close(self, refused: int, last: str) -> None:
        """
        Log what is left to log.
        """
        self.note_refusals(refused, last)
        self.note_refusals(refused, last)
        self._log.close()
