"""
What the driver's errors mean: send the script, the content is damaged, or the server needs attention.
"""

from __future__ import annotations

from typing import Final

from coredis.exceptions import (
    AskError,
    AuthenticationFailureError,
    AuthenticationRequiredError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    NoScriptError,
    ProtocolError,
    ReadOnlyError,
    TryAgainError,
    UnknownCommandError,
    WrongTypeError,
)
from coredis.exceptions import (
    ConnectionError as ConnectionFailed,
)

from timeline_trio.store import StoreUnavailable

from ._server import ContentDamaged, ScriptUnknown

_REPLICA: Final = "is a replica that may not be written to; connect to the primary"

_BY_TYPE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (AuthenticationRequiredError, "asks for a password; put redis://user:password@host into the URL"),
    (AuthenticationFailureError, "refuses the user or the password; check both in the URL"),
    (
        AuthorizationError,
        "does not let this user do that; allow it the keys {prefix:*, the channel and the scripting commands",
    ),
    (BusyLoadingError, "is loading its data; it will answer when it is through"),
    (ReadOnlyError, _REPLICA),
    (ClusterDownError, "says that the cluster is down; check that all of its slots are served"),
    (TryAgainError, "is moving this slot to another node; try again when it is through"),
    (AskError, "sends commands to other nodes; if it is part of a cluster, put ?cluster=true into the URL"),
    (ProtocolError, "does not speak RESP3; it must be Redis 6 or newer"),
    (UnknownCommandError, "lacks a command; it must be Redis 6 or newer, with scripting allowed"),
    (ConnectionFailed, "cannot be reached, or the connection was lost; check that it runs, and its address"),
    (TimeoutError, "did not answer in time"),
)

# Codes that the driver has no class for, as they begin the text of its error.
_BY_CODE: Final = {
    "OOM": "is out of memory; raise maxmemory, or let it evict or expire something",
    "MISCONF": "refuses writes since it could not save to disk; check its disk and log",
    "NOREPLICAS": "refuses writes since too few replicas are there",
    "MASTERDOWN": "is a replica whose primary is down",
    "BUSY": "is busy with a script that does not end; see SCRIPT KILL",
    "This instance has cluster support disabled": "is not part of a cluster; leave cluster=true out of the URL",
    "READONLY": _REPLICA,
    "NOPROTO": "does not speak RESP3; it must be Redis 6 or newer",
}


def translate(error: BaseException, server: str) -> Exception:
    """
    Return what stands for a driver's error, which becomes its cause.

    The server's own text may quote what was stored, so it stays in the cause.
    """
    text = str(error)
    failure: Exception
    if isinstance(error, NoScriptError):
        failure = ScriptUnknown()
    elif isinstance(error, WrongTypeError) or text.startswith("DAMAGED") or "WRONGTYPE" in text:
        failure = ContentDamaged()
    else:
        failure = unavailable(server, _advice(error, text))
    failure.__cause__ = error
    return failure


def unavailable(server: str, problem: str) -> StoreUnavailable:
    """
    Return the error that says what is wrong with a server.
    """
    return StoreUnavailable("", f"the Redis server {server} {problem}")


def _advice(error: BaseException, text: str) -> str:
    # Before Redis 7 an error inside of a script comes behind other words.
    for code, advice in _BY_CODE.items():
        if text.startswith(code) or f"-{code} " in text:
            return advice
    for kind, advice in _BY_TYPE:
        if isinstance(error, kind):
            return advice
    return "could not do that; the cause tells more"
