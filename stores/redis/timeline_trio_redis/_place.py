"""
What messages need to know of a server: what it is called, and what its user must be allowed.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_COMMANDS: Final = (
    "+@connection +@hash +@sortedset +eval +evalsha +get +set +exists +del +persist +pexpire +time +publish +subscribe"
)
_CLUSTER_COMMANDS: Final = " +cluster|slots"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """
    A server, for messages.

    Attributes:
        name: without a password.
        prefix: begins the store's keys and names its channel.
        tls: whether the connection is encrypted.
        cluster: whether it is a node of a cluster.
    """

    name: str
    prefix: str
    tls: bool = False
    cluster: bool = False

    @property
    def acl_line(self) -> str:
        """
        The command that allows a user all that the store does, and nothing else.
        """
        # Beside a rule for all keys or channels, which Redis 6.2 gives each new user, another one is refused.
        keys = _rule(f"~{{{_escaped(self.prefix)}:*")
        commands = _COMMANDS + (_CLUSTER_COMMANDS if self.cluster else "")
        return f"ACL SETUSER <user> resetkeys {keys} resetchannels {self.channel_rule} {commands}"

    @property
    def channel_rule(self) -> str:
        """
        The rule that allows the channel.
        """
        return _rule(f"&{_escaped(self.prefix)}:changes")


def _escaped(prefix: str) -> str:
    # A rule may have no spaces; the other sign stands for any one character.
    return re.sub(r"([*?\[\\])", r"\\\1", prefix).replace(" ", "?")


def _rule(text: str) -> str:
    """
    Return a rule as redis-cli reads it.
    """
    if re.fullmatch(r"[^\s\"'\\]+", text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'
