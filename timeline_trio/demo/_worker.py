"""
One host of the deployment, in a process of its own.

It records what it does as stages, and says on its standard output which of them the store has acknowledged. It
leaves when its play is over, and also when its standard input ends: then whoever started it is gone.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

import trio

from timeline_trio import (
    Actor,
    Config,
    Manager,
    StageHandle,
    StageRef,
    StoreError,
    TimelineError,
    open_manager,
    open_store,
)
from timeline_trio.demo._messages import Flushed, Handover, Inbox, Left, Message, Orders, to_line
from timeline_trio.demo._play import FAILURE, PLAY, Step
from timeline_trio.model import Stage, StageKey, encode_stage

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL: Final = 0.2
_DRAIN_TIMEOUT: Final = 2.0


class DeployError(Exception):
    """
    What goes wrong on purpose.
    """


@final
class Worker:
    """
    Plays one host's steps.

    Args:
        manager: where to record; its actor is the host.
        orders: the operation, and the speed.
        tell: sends a message to whoever started the worker.
    """

    def __init__(self, manager: Manager, orders: Orders, tell: Callable[[Message], None]) -> None:
        self._manager = manager
        self._orders = orders
        self._tell = tell
        self._told: dict[StageKey, Stage] = {}
        self._parents: dict[str, StageRef] = {}
        self._left: set[str] = set()
        self._news = trio.Event()

    def hear(self, message: Message) -> None:
        """
        Take note of what happened elsewhere.
        """
        if isinstance(message, Handover):
            self._parents[message.step] = StageRef.from_header(message.ref)
        else:
            assert isinstance(message, Left)
            self._left.add(message.host)
        self._news.set()
        self._news = trio.Event()

    async def play(self) -> None:
        """
        Play the host's steps.
        """
        await trio.lowlevel.checkpoint()
        for step in PLAY[self._orders.host]:
            await self._play(step, None)

    async def _play(self, step: Step, parent: StageHandle | StageRef | None) -> None:
        await trio.lowlevel.checkpoint()
        if step.below:
            await self._until(lambda: step.below in self._parents)
            parent = self._parents[step.below]
        # The failure has ended its stage when it leaves the block; the deployment goes on with the next step.
        with (
            suppress(DeployError),
            self._manager.stage(self._orders.opid, step.name, stage_id=step.stage_id or None, parent=parent) as stage,
        ):
            if step.hands_over:
                self._tell(Handover(step.name, stage.ref.to_header()))
            await trio.sleep(step.seconds / self._orders.speed)
            if step.parallel:
                async with trio.open_nursery() as nursery:
                    for each in step.steps:
                        nursery.start_soon(self._play, each, stage)
            else:
                for each in step.steps:
                    await self._play(each, stage)
            await self._until(lambda: step.waits_for <= self._left)
            if step.fails:
                raise DeployError(FAILURE)

    async def _until(self, holds: Callable[[], bool]) -> None:
        await trio.lowlevel.checkpoint()
        while not holds():
            await self._news.wait()

    async def report(self) -> None:
        """
        Flush, and tell which states of this host's stages are in the store now.
        """
        await trio.lowlevel.checkpoint()
        # Where the store does not answer, nothing is claimed: the manager goes on trying by itself.
        with suppress(StoreError):
            known = await self._manager.read(self._orders.opid)
            await self._manager.flush(self._orders.opid)
            for stage in known.stages:
                if stage.actor == self._manager.config.actor and self._told.get(stage.key) != stage:
                    self._told[stage.key] = stage
                    self._tell(Flushed(encode_stage(stage)))

    async def keep_reporting(self) -> None:
        """
        Report again and again, until cancelled.
        """
        while True:
            await self.report()
            await trio.sleep(_INTERVAL)


async def _receive() -> bytes:
    # Not through sys.stdin: its lock, held by the thread that is left waiting, would block the end of the process.
    return await trio.to_thread.run_sync(os.read, sys.stdin.fileno(), 65536, abandon_on_cancel=True)


async def _listen(inbox: Inbox, worker: Worker, scope: trio.CancelScope) -> None:
    while data := await _receive():
        for message in inbox.feed(data):
            worker.hear(message)
    scope.cancel()


def _tell(message: Message) -> None:
    with suppress(BrokenPipeError):  # nobody listens any more; the end of the input will say so
        os.write(sys.stdout.fileno(), to_line(message))


async def work() -> None:
    """
    Receive orders, and play them.

    Raises:
        TimelineError: the store could not be opened.
    """
    inbox = Inbox()
    messages = inbox.feed(await _receive())
    orders = messages.pop(0) if messages else None
    if not isinstance(orders, Orders):  # nobody is there any more
        return
    config = Config(actor=Actor(name=orders.host), flush_interval=_INTERVAL, load_interval=_INTERVAL)
    async with (
        open_store(orders.store) as store,
        open_manager(store, config=config, drain_timeout=_DRAIN_TIMEOUT) as manager,
    ):
        worker = Worker(manager, orders, _tell)
        for message in messages:
            worker.hear(message)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_listen, inbox, worker, nursery.cancel_scope)
            nursery.start_soon(worker.keep_reporting)
            await worker.play()
            nursery.cancel_scope.cancel()
        await worker.report()


def main() -> int:
    """
    Run a worker, and return its exit code.
    """
    try:
        trio.run(work)
    except TimelineError as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
