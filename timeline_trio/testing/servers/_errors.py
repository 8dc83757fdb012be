"""
Why a server is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 4_000


@final
class ServerMissing(Exception):
    """
    A program that a server needs is not on this machine: a reason to skip a test, aloud.

    Attributes:
        program: the program that was not found.
        packages: the Debian packages that bring it.
    """

    def __init__(self, program: str, packages: str, problem: str = "is not on this machine") -> None:
        super().__init__(f"{program} {problem}. On Debian or Ubuntu: apt-get install {packages}")
        self.program: str = program
        self.packages: str = packages


@final
class ServerFailed(Exception):
    """
    A server did not come up, did not answer in time, or refused a statement. The message ends with its own words.
    """

    @classmethod
    def after(cls, problem: str, log: Path) -> ServerFailed:
        """
        Describe a problem together with the end of the server's log.
        """
        tail = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip() if log.exists() else ""
        return cls(f"{problem}. The end of its log:\n{tail or '(it is empty)'}")
