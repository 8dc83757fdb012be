"""
The workers' processes, as whoever started them sees them: started, listened to, killed if the play wants it.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio

from timeline_trio.demo._messages import Flushed, Inbox, Left, Message, Orders, to_line
from timeline_trio.demo._play import PLAY, VICTIM, VICTIM_SECONDS, VICTIM_STEP
from timeline_trio.model import Stage, StageKey, decode_stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_COMMAND: Final = (sys.executable, "-m", "timeline_trio.demo._worker")
_PATIENCE: Final = 3.0
"""Seconds that a dismissed worker has to end what it does."""


@final
class Crew:
    """
    Starts a worker for each host, and passes on what they tell each other.

    Args:
        store: URL of the store that they share.
        opid: the operation.
        speed: how many times faster than written they play.
        command: what starts a worker.

    Attributes:
        flushed: the last state of each stage of which a worker has said that it is in the store.
        killed: the host whose process was killed, as the play wants it; "" until then.
        failed: which process ended otherwise than it should, and how; "" if none did.
    """

    def __init__(self, store: str, opid: str, speed: float, command: Sequence[str] = _COMMAND) -> None:
        self._orders = {host: Orders(store, opid, host, speed) for host in PLAY}
        self._speed = speed
        self._command = command
        self._processes: dict[str, trio.Process] = {}
        self._sending = trio.Lock()
        self.flushed: dict[StageKey, Stage] = {}
        self.killed = ""
        self.failed = ""

    async def run(self) -> None:
        """
        Let the workers play until all have left. If one fails, and if this is cancelled, all are dismissed.
        """
        async with trio.open_nursery() as nursery:
            for host, orders in self._orders.items():
                process: trio.Process = await nursery.start(
                    partial(
                        trio.run_process,
                        self._command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        check=False,
                        deliver_cancel=dismiss,
                        start_new_session=True,  # the terminal's Ctrl-C is for the observer alone
                    )
                )
                await self._send([process], orders)
                self._processes[host] = process
            for host in self._orders:
                nursery.start_soon(self._follow, host, nursery)

    async def _follow(self, host: str, nursery: trio.Nursery) -> None:
        process = self._processes[host]
        assert process.stdout is not None
        inbox = Inbox()
        async for data in process.stdout:
            for message in inbox.feed(data):
                if isinstance(message, Flushed):
                    self._note(decode_stage(message.stage), nursery)
                else:
                    await self._send(self._processes.values(), message)
        code = await process.wait()
        if code != 0 and host != self.killed:
            self.failed = f"the worker process of {host} ended with exit code {code}"
            nursery.cancel_scope.cancel()
        await self._send(self._processes.values(), Left(host))

    def _note(self, stage: Stage, nursery: trio.Nursery) -> None:
        self.flushed[stage.key] = stage
        if (stage.actor.name, stage.name) == (VICTIM, VICTIM_STEP):
            nursery.start_soon(self._kill)

    async def _kill(self) -> None:
        await trio.sleep(VICTIM_SECONDS / self._speed)
        self.killed = VICTIM
        self._processes[VICTIM].kill()

    async def _send(self, processes: Iterable[trio.Process], message: Message) -> None:
        async with self._sending:
            for process in processes:
                assert process.stdin is not None
                with suppress(trio.BrokenResourceError):  # it has left
                    await process.stdin.send_all(to_line(message))


async def dismiss(process: trio.Process, patience: float = _PATIENCE) -> None:
    """
    Let a worker end what it does, by the end of its input, and kill it if that takes longer than `patience` seconds.
    """
    assert process.stdin is not None
    await process.stdin.aclose()
    await trio.sleep(patience)
    process.kill()
