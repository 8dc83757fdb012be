"""
When to do again what is done at intervals, and when to try again what failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from random import Random

LONGEST_DELAY: Final = 30.0  # seconds
_STEADY_TRIES: Final = 3  # tries at the plain interval, before the delays grow


@final
class Period:
    """
    When a task does again what it does at intervals; jittered, so that managers opened together drift apart.

    Attributes:
        due_at: when that is, by the Trio clock.
    """

    def __init__(self, interval: float, random: Random) -> None:
        self._interval = interval
        self._random = random
        self.due_at: float = float("-inf")
        self._stalled = False

    def begin(self, now: float) -> None:
        """
        Begin the next interval.
        """
        self.due_at = now + self._interval * self._random.uniform(0.9, 1.1)
        self._stalled = False

    def spread(self, now: float) -> None:
        """
        Begin anywhere in an interval, after what came to many managers at one moment.
        """
        self.due_at = now + self._interval * self._random.random()

    def note_stall(self, began: float, now: float) -> None:
        """
        Spread out after work that took longer than an interval: a Store that stood still goes on for all at once.

        Only the first such work of an interval counts. With a Store that is slow for good, and something to do all the
        time, each one would put off again what is due, for ever.
        """
        if now - began > self._interval and not self._stalled:
            self._stalled = True
            self.spread(now)


@final
class Backoff:
    """
    A streak of failures, with a delay after each: the interval at first, then growing and jittered up to 30 seconds.

    Attributes:
        failures: how many there were in a row.
        tried_at: when the last one was, by the Trio clock.
        until: when to try again, by the Trio clock.
    """

    def __init__(self, interval: float, random: Random) -> None:
        self._interval = interval
        self._random = random
        self.failures = 0
        self.tried_at = float("-inf")
        self.until = float("-inf")

    def failed(self, now: float) -> None:
        """
        Note one more failure.
        """
        self.failures += 1
        self.tried_at = now
        growth = max(self.failures - _STEADY_TRIES, 0)
        if growth == 0:
            self.until = now + self._interval
        else:
            delay = min(self._interval * 2.0 ** min(growth, 32), max(LONGEST_DELAY, self._interval))
            self.until = now + delay * self._random.uniform(0.75, 1.0)

    def succeeded(self) -> bool:
        """
        End the streak; tell whether there was one.
        """
        was_failing = self.failures > 0
        self.failures = 0
        self.tried_at = self.until = float("-inf")
        return was_failing


@final
class Troubles:
    """
    The streaks of single operations.
    """

    def __init__(self, interval: float, random: Random) -> None:
        self._interval = interval
        self._random = random
        self._backoffs: dict[str, Backoff] = {}
        self._alone: set[str] = set()

    def __contains__(self, opid: object) -> bool:
        """
        Whether the operation's last try failed.
        """
        return opid in self._backoffs

    def failed(self, opid: str, now: float) -> bool:
        """
        Note a failure; tell whether it is the first of its streak.
        """
        first = opid not in self._backoffs
        if first:
            self._backoffs[opid] = Backoff(self._interval, self._random)
        self._backoffs[opid].failed(now)
        return first

    def succeeded(self, opid: str) -> None:
        """
        End the operation's streak.
        """
        self._backoffs.pop(opid, None)
        self._alone.discard(opid)

    def release(self) -> None:
        """
        Let every operation be tried again at once, without ending its streak. The outage of the Store is over.
        """
        self._alone.update(self._backoffs)
        for backoff in self._backoffs.values():
            backoff.until = float("-inf")

    def is_alone(self, opid: str) -> bool:
        """
        Whether the operation's streak has outlasted an outage, so that its failures say nothing of the Store.
        """
        return opid in self._alone

    def ready_at(self, opid: str) -> float:
        """
        Return when the operation may be tried again.
        """
        backoff = self._backoffs.get(opid)
        return backoff.until if backoff else float("-inf")

    def tried_at(self, opid: str) -> float:
        """
        Return when the operation was tried last, if that failed.
        """
        backoff = self._backoffs.get(opid)
        return backoff.tried_at if backoff else float("-inf")
