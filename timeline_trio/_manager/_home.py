"""
Where a manager may be used.
"""

from __future__ import annotations

from typing import final

import trio

from .._errors import WrongThread
from .._process import ProcessGuard


@final
class Home:
    """
    Remembers the process and the Trio run that it was made in.
    """

    def __init__(self) -> None:
        self._guard = ProcessGuard()
        self._token = trio.lowlevel.current_trio_token()

    def check_process(self) -> None:
        """
        Refuse to go on in a forked child, at once: a lock may be held there by a thread that does not exist.

        Raises:
            WrongProcess: this is a child of that process.
        """
        self._guard.check()

    def check_run(self) -> None:
        """
        Refuse to go on outside of that Trio run: an event of one run that is waited for in another breaks both.

        Raises:
            WrongProcess: this is a child of that process.
            WrongThread: this is another Trio run, or none.
        """
        self._guard.check()
        try:
            token = trio.lowlevel.current_trio_token()
        except RuntimeError:
            raise WrongThread from None
        if token is not self._token:
            raise WrongThread
