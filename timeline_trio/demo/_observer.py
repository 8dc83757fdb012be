"""
The process that the user started: it owns the operation, watches its timeline grow, and checks it at the end.
"""

from __future__ import annotations

import secrets
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from timeline_trio import (
    Canceled,
    Config,
    Manager,
    Snapshot,
    Statistics,
    TimelineError,
    open_manager,
    open_store,
)
from timeline_trio.demo._crew import Crew
from timeline_trio.demo._play import OPERATION, PLAY, VERDICT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from timeline_trio.demo._views import View
    from timeline_trio.model import Stage
    from timeline_trio.store import Store

    OpenStore = Callable[[str], AbstractAsyncContextManager[Store]]
    Recruit = Callable[[str, str, float], Crew]

_DRAIN_TIMEOUT: Final = 1.0
# What fails is raised where it matters, or counted; a log line would come in between the drawing.
_CONFIG: Final = Config(flush_interval=0.2, load_interval=0.2, on_error=lambda _opid, _error: None)


class Ended(Exception):
    """
    The play could not begin, or came to an early end.

    Attributes:
        code: the exit code.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """
    How the play went.

    Attributes:
        final: the operation as the store had it at the end.
        flushed: of how many stages a worker has said that they are in the store.
        missing: those of them that are not, or not as they were saved.
        killed: the host whose process was killed.
        statistics: the observer's own counters.
    """

    final: Snapshot
    flushed: int
    missing: tuple[Stage, ...]
    killed: str
    statistics: Statistics


async def observe(
    url: str, speed: float, view: View, opened: OpenStore = open_store, recruit: Recruit = Crew
) -> Played:
    """
    Play the deployment and show it, until its end or a signal.

    Args:
        url: where the workers share.
        speed: how many times faster to play.
        view: where to show it.
        opened: opens the store of the observer itself.
        recruit: makes the crew, from the URL, the operation's id and the speed.

    Raises:
        Ended: with code 2 if the store cannot be used, 1 if it or a worker failed, 128 and more after a signal.
    """
    outcome: Played | Ended | None = None
    received: list[int] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on_signal, signals, received, nursery.cancel_scope)
            try:
                outcome = await _observe(url, speed, view, opened, recruit)
            except Ended as error:
                outcome = error
            nursery.cancel_scope.cancel()
    if outcome is None:
        outcome = Ended(128 + received[0], f"ended by {signal.Signals(received[0]).name}, and so have all workers")
    if isinstance(outcome, Ended):
        raise outcome
    return outcome


async def _end_on_signal(signals: AsyncIterator[int], received: list[int], scope: trio.CancelScope) -> None:
    async for number in signals:
        received.append(number)
        scope.cancel()


async def _observe(url: str, speed: float, view: View, opened: OpenStore, recruit: Recruit) -> Played:
    opid = f"rollout-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    code = 2
    try:
        async with (
            opened(url) as store,
            open_manager(store, config=_CONFIG, drain_timeout=_DRAIN_TIMEOUT) as manager,
        ):
            manager.start(opid, OPERATION, attributes={"hosts": list(PLAY)})
            await manager.flush(opid)  # a store that cannot be used shows here, before anything else is started
            code = 1
            return await _play(manager, recruit(url, opid, speed), opid, view)
    except TimelineError as error:
        raise Ended(code, _say(error)) from error


def _say(error: BaseException) -> str:
    # The innermost error of ours is the store's own, which says what to do.
    while isinstance(error.__cause__, TimelineError):
        error = error.__cause__
    return str(error)


async def _play(manager: Manager, crew: Crew, opid: str, view: View) -> Played:
    async with manager.watch(opid, until="finished") as snapshots, trio.open_nursery() as nursery:
        nursery.start_soon(_deploy, manager, crew, opid)
        nursery.start_soon(keep_refreshing, view)
        async for snapshot in snapshots:
            view.show(snapshot)
        nursery.cancel_scope.cancel()
    if crew.failed:
        raise Ended(1, crew.failed)
    final = await manager.writer(opid).snapshot()  # saved and read anew: what anybody would see
    view.show(final)
    return Played(
        final=final,
        flushed=len(crew.flushed),
        missing=tuple(stage for stage in crew.flushed.values() if not is_kept(stage, final)),
        killed=crew.killed,
        statistics=manager.statistics(),
    )


async def _deploy(manager: Manager, crew: Crew, opid: str) -> None:
    verdict: Canceled | str = Canceled("the observer was ended by a signal")
    try:
        await crew.run()
        verdict = crew.failed or VERDICT
    finally:
        manager.finish(opid, verdict)


async def keep_refreshing(view: View) -> None:
    """
    Refresh a view at its interval, until cancelled.
    """
    while True:
        await trio.sleep(view.interval)
        view.refresh()


def is_kept(flushed: Stage, final: Snapshot) -> bool:
    """
    Tell whether a stage is in the final read as it was when it was saved, or as it became later.
    """
    found = final.stage(*flushed.key)
    if found is None or found == flushed:
        return found is not None
    return flushed.finished_at is None and found.finished_at is not None and found.started_at == flushed.started_at
