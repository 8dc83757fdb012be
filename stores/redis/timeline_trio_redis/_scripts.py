"""
The Lua scripts, and calls of them.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import msgspec

from ._server import Command, Reply, ScriptUnknown, Server

if TYPE_CHECKING:
    from collections.abc import Sequence

Argument = str | bytes | int


class Script:
    """
    One script: its source and the digest that Redis knows it by.
    """

    def __init__(self, name: str) -> None:
        self.source: bytes = files("timeline_trio_redis").joinpath(name).read_bytes()
        self.digest: str = sha1(self.source, usedforsecurity=False).hexdigest()


MERGE: Final = Script("merge.lua")
READ: Final = Script("read.lua")
REMOVE: Final = Script("remove.lua")


class ScriptCall(msgspec.Struct, frozen=True):
    """
    A call of a script on keys of one slot.
    """

    script: Script
    slot: int
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]

    def by_digest(self) -> Command:
        """
        Return the command that relies on the server's knowing the script.
        """
        return self._command(b"EVALSHA", self.script.digest)

    def by_source(self) -> Command:
        """
        Return the command that brings the script with it.
        """
        return self._command(b"EVAL", self.script.source)

    def _command(self, name: bytes, script: str | bytes) -> Command:
        return Command(self.slot, name, (script, len(self.keys), *self.keys, *self.arguments))


async def call_scripts(server: Server, calls: Sequence[ScriptCall]) -> list[Reply]:
    """
    Call scripts, and return a reply each, which may be a failure.

    A server that was restarted knows no script; those calls are sent again with their source.
    """
    replies = await server.run([call.by_digest() for call in calls])
    unknown = [number for number, reply in enumerate(replies) if isinstance(reply, ScriptUnknown)]
    if unknown:
        again = await server.run([calls[number].by_source() for number in unknown])
        for number, reply in zip(unknown, again, strict=True):
            replies[number] = reply
    return replies
