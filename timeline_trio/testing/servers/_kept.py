"""
A process and all that it starts, held from outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, final

from . import _keeper
from ._errors import ServerFailed

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from pathlib import Path

_END_SECONDS = 30.0


@final
class Kept:
    """
    One command below a keeper, which ends it when this process ends.

    Args:
        command: the program and its arguments.
        folder: where it runs; removed by the keeper when this process ends.
        log: what it prints is appended here.
        owner: "uid:gid" to run it as, empty for this process's own.
    """

    def __init__(self, command: Sequence[str], *, folder: Path, log: Path, owner: str = "") -> None:
        with log.open("ab") as output:
            # A session of its own, so that Ctrl-C in a terminal does not reach the server before the tests end.
            self._keeper = subprocess.Popen(  # noqa: S603 - programs that a caller named, or that were looked up
                [sys.executable, "-I", "-S", _keeper.__file__, str(os.getpid()), str(folder), owner, *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        assert self._keeper.stdout is not None
        with self._keeper.stdout as told:
            pid = told.readline()
        if not pid:
            self._keeper.wait()
            raise ServerFailed.after(f"{command[0]} could not be run", log)
        self.pid = int(pid)

    def is_running(self) -> bool:
        """
        Tell whether any of its processes is there.
        """
        return self._keeper.poll() is None

    def freeze(self) -> None:
        """
        Stop every process.
        """
        _keeper.freeze(self._keeper.pid)

    def thaw(self) -> None:
        """
        Let every process go on.
        """
        _keeper.thaw(self._keeper.pid)

    def kill(self) -> None:
        """
        Kill every process, and wait until they are gone.
        """
        if self.is_running():  # else the keeper's number may be another's by now
            _keeper.kill(self._keeper.pid)
            self._keeper.wait(_END_SECONDS)

    def finish(self, number: signal.Signals, timeout: float) -> bool:
        """
        Ask the main process to end, and tell whether all processes are gone within `timeout` seconds.
        """
        if self.pid in _keeper.processes_below(self._keeper.pid):
            os.kill(self.pid, number)
        return self.is_gone_within(timeout)

    def is_gone_within(self, timeout: float) -> bool:
        """
        Tell whether all processes are gone within `timeout` seconds.
        """
        try:
            self._keeper.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True
