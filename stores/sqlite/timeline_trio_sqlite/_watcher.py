"""
One who watches: waits for a bell, then asks what has changed.

A bell tells that a file was written, neither what nor whether it was a commit. So

- what has changed is asked for: the heads of the rows whose update time is not much older than the newest one seen,
  compared with the answer before. All writers of a file are of one machine and one clock, and read it while they have
  the file locked: update times grow in the order of the commits. The overlap is for a clock that was set back.
- it is asked again a few times after the last bell. In WAL mode the file is written, and the bell rings, shortly before
  the commit takes effect: by some microseconds, or with `synchronous=full` by as long as the disk takes. Nothing rings
  after that. Once a change was found it was most likely the one that rang, and one more question will do.
- bells are answered together, with a rest after each question that grows while the bell goes on ringing. Where nothing
  rings, nothing is asked.

There is no task behind it: the one who waits for a change does all this, so that one who is busy elsewhere costs
nothing, and finds what happened meanwhile in one answer, each operation once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import trio

from timeline_trio.store import Change, StoreUnavailable

from ._failures import translate_watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from timeline_trio.store import RowHead

    from ._bell import Bell

MOST_HEADS: Final = 1024  # of the newest in one answer; what else changed at the same time is not told
_SHORTEST_REST: Final = 0.001  # seconds between two questions
_LONGEST_REST: Final = 0.01  # while the bell goes on ringing
_REST_SHARE: Final = 4  # where questions take longer, rests are that many times as long
_LONGEST_SHARE: Final = 0.02  # seconds; an answer that came late because the machine is busy makes nobody wait longer
_ECHOES: Final = (0.001, 0.005, 0.02, 0.1, 0.5)  # seconds from one question to the next, after the last bell
_ECHOES_OF_CHANGE: Final = (0.05,)
_MICROSECOND: Final = 1_000


@final
class Watcher:
    """
    Iterates over the changes of a file. A step that is cancelled loses nothing; hence no generator, which would end.

    Args:
        path: the file, for messages.
        open_bell: opens a bell of it, blocking.
        fetch: returns the heads that were updated after one time and up to another, the newest first and at most
            `MOST_HEADS`; in microseconds since the epoch.
        clock: returns nanoseconds since the epoch.
        overlap: microseconds by which update times may be out of order, or ahead of the clock.
    """

    def __init__(
        self,
        path: Path,
        *,
        open_bell: Callable[[Path], Bell],
        fetch: Callable[[int, int], Awaitable[Sequence[RowHead]]],
        clock: Callable[[], int],
        overlap: int,
    ) -> None:
        self._path = path
        self._open_bell = open_bell
        self._fetch = fetch
        self._clock = clock
        self._overlap = overlap
        self._bell: Bell | None = None
        self._scope = trio.CancelScope()
        self._failure: StoreUnavailable | None = None  # after which nothing is told any more
        self._newest = 0
        self._heads: dict[str, RowHead] = {}  # the last answer
        self._untold: deque[RowHead] = deque()
        self._is_due = False
        self._echoes: tuple[float, ...] = _ECHOES
        self._echo_at = float("inf")
        self._rest = _SHORTEST_REST
        self._rest_until = float("-inf")
        self._rang_at = float("-inf")

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> Change:
        if self._failure is None:
            try:
                with trio.CancelScope() as self._scope:
                    return await self._next()
            except StoreUnavailable as failure:
                self._failure = failure
        assert self._failure is not None  # otherwise nobody has cancelled the scope
        raise self._failure

    async def open(self) -> None:
        """
        Begin: what is committed once this returns is told.

        Raises:
            StoreUnavailable: the file is not there, or cannot be read or watched.
        """
        try:
            # In a thread, since a slow disk may hold it up; not left behind, since it has a descriptor then.
            self._bell = await trio.to_thread.run_sync(self._open_bell, self._path, limiter=trio.CapacityLimiter(1))
        except OSError as error:
            raise translate_watch(error, self._path) from error
        self._newest = self._clock() // _MICROSECOND
        await self._ask()
        self._untold.clear()
        # A commit that was written before the bell was there may take effect only now.
        self._is_due = True
        self._echoes = _ECHOES

    def end(self) -> None:
        """
        Let each step raise from now on, also one that waits.
        """
        if self._failure is None:
            self._failure = StoreUnavailable("", f"the watch of {str(self._path)!r} has ended, or its store is closed")
        self._scope.cancel()

    def close(self) -> None:
        """
        End, and close the bell.
        """
        self.end()  # first: nobody may wait for a descriptor that is closed
        if self._bell is not None:
            self._bell.close()

    async def _next(self) -> Change:
        await trio.lowlevel.checkpoint()
        while not self._untold:
            await self._wait_due()
            if self._is_due:
                await self._ask()
        head = self._untold.popleft()
        return Change(head.id, head.revision)

    async def _wait_due(self) -> None:
        assert self._bell is not None
        try:
            if not self._is_due:
                with trio.move_on_at(self._echo_at):
                    await self._bell.wait()
            await trio.sleep_until(self._rest_until)
            rang = self._bell.silence()
        except OSError as error:
            raise translate_watch(error, self._path) from error
        now = trio.current_time()
        self._rest_until = now + _SHORTEST_REST
        if rang:
            goes_on = now < self._rang_at + 2 * _LONGEST_REST
            self._rest = min(2 * self._rest, _LONGEST_REST) if goes_on else _SHORTEST_REST
            self._rang_at = now
            self._echoes = _ECHOES
        self._is_due = self._is_due or rang or now >= self._echo_at

    async def _ask(self) -> None:
        begun = trio.current_time()
        now = self._clock() // _MICROSECOND
        newest = min(self._newest, now)  # otherwise a clock that was set back would leave us deaf until then
        heads = await self._fetch(newest - self._overlap, now + self._overlap)
        changed = [head for head in reversed(heads) if self._heads.get(head.id) != head]
        self._untold.extend(changed)
        self._heads = {head.id: head for head in heads}
        self._newest = max(newest, heads[0].updated_at) if heads else newest
        self._is_due = False
        echoes = _ECHOES_OF_CHANGE if changed else self._echoes
        ended = trio.current_time()
        self._echo_at = ended + echoes[0] if echoes else float("inf")
        self._echoes = echoes[1:]
        self._rest_until = ended + max(self._rest, min(_REST_SHARE * (ended - begun), _LONGEST_SHARE))
