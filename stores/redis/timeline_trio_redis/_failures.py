"""
What the driver's errors mean: send the script, the content is damaged, or the server needs attention.
"""

from __future__ import annotations

import re
import ssl
from socket import gaierror
from typing import TYPE_CHECKING, Final

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
    RedisError,
    TryAgainError,
    UnknownCommandError,
    WrongTypeError,
)
from coredis.exceptions import (
    ConnectionError as ConnectionFailed,
)

from timeline_trio.store import StoreUnavailable

from ._server import ContentDamaged, KeyForeign, ScriptUnknown, StoreClosed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._place import Place


class NotConnected(TimeoutError):
    """
    A connection was not open in time.
    """


class LoginCut(ConnectionFailed):
    """
    The server closed the connection before it was ready, without a word.
    """


class LoginRefused(RedisError):
    """
    The server closed the connection before it was ready; the text is its own.
    """


_REPLICA: Final = "is a replica that may not be written to; connect to the primary"
_OLD: Final = "does not speak RESP3; it must be Redis 6 or newer"

_BY_TYPE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (AuthenticationRequiredError, "asks for a password; put redis://user:password@host into the URL"),
    (AuthenticationFailureError, "refuses the user or the password; check both in the URL"),
    (BusyLoadingError, "is loading its data; it will answer when it is through"),
    (ReadOnlyError, _REPLICA),
    (ClusterDownError, "says that the cluster is down; check that all of its slots are served"),
    (TryAgainError, "is moving this slot to another node; try again when it is through"),
    (AskError, "sends commands to other nodes; if it is part of a cluster, put ?cluster=true into the URL"),
    (ProtocolError, _OLD),
    (UnknownCommandError, "lacks a command; it must be Redis 6 or newer, with scripting allowed"),
)

# What is behind a connection that could not be made.
_BY_CAUSE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (gaierror, "cannot be reached: its host name is not known, or could not be looked up; check it in the address"),
    (FileNotFoundError, "cannot be reached: there is no such socket file; check that the server runs, and the path"),
    (PermissionError, "cannot be reached: the system does not permit it; of a socket file, check the rights"),
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
    "NOPROTO": _OLD,
    "max number of clients": "has as many clients as it allows; close some, or raise its option `maxclients`",
    "DENIED": "is in protected mode, where it serves its own machine only; set a password, or change protected-mode",
    "DB index is out of range": (
        "has no database of that number; the number in the URL must be less than its option `databases`, which is 16 "
        "by default"
    ),
}

_DISTRUST: Final = "; with rediss://, name the file of the authority that signed it with ?ca_file=PATH"
_SPEAKS_TLS: Final = "if its port speaks TLS, use rediss://"
_ASKS_FOR_CERTIFICATE: Final = "if it asks clients for a certificate, open the store over a coredis.Redis that has one"
_LOST: Final = "cannot be reached, or the connection was lost"
_FOREIGN: Final = "FOREIGN "


def translate(error: BaseException, place: Place) -> Exception:
    """
    Return what stands for a driver's error, which becomes its cause.

    The server's own text may quote what was stored, so it stays in the cause.
    """
    text = str(error)
    failure: Exception
    if isinstance(error, NoScriptError):
        failure = ScriptUnknown()
    elif text.startswith(_FOREIGN):
        failure = KeyForeign(int(text.removeprefix(_FOREIGN)))
    elif isinstance(error, WrongTypeError) or text.startswith("DAMAGED") or "WRONGTYPE" in text:
        failure = ContentDamaged()
    elif isinstance(error, StoreClosed):
        failure = closed(place)
    else:
        failure = unavailable(place.name, _advice(error, text, place))
    failure.__cause__ = error
    return failure


def unavailable(server: str, problem: str) -> StoreUnavailable:
    """
    Return the error that says what is wrong with a server.
    """
    return StoreUnavailable("", f"the Redis server {server} {problem}")


def closed(place: Place) -> StoreUnavailable:
    """
    Return the error of a call that the end of the store's block has cut.
    """
    return StoreUnavailable("", f"the store of {place.name} is closed")


def _advice(error: BaseException, text: str, place: Place) -> str:
    # Before Redis 7 an error inside of a script comes behind other words.
    for code, advice in _BY_CODE.items():
        if text.startswith(code) or f"-{code} " in text:
            return advice
    # Inside of a script a refusal has no code of its own before Redis 7.2.
    if isinstance(error, AuthorizationError) or "executing the script can't" in text or "ACL failure" in text:
        return _advice_of_refusal(text, place)
    for kind, advice in _BY_TYPE:
        if isinstance(error, kind):
            return advice
    if isinstance(error, ConnectionFailed | OSError):
        return _advice_of_connection(error, place)
    words = re.match(r"[A-Za-z]+(?:[ ,][A-Za-z]+)*", text) if isinstance(error, RedisError) else None
    return f"could not do that ({words[0] if words else type(error).__name__}); the cause tells more"


def _advice_of_refusal(text: str, place: Place) -> str:
    said = text.rpartition("permissions")[2]  # behind the user's name
    command = re.search(r"to run the '([A-Za-z|_-]+)'", said)
    if command is None and "channel" in said:
        rule = place.channel_rule
        return (
            f"does not let this user have the channel, so changes are found by polling only; allow {rule} to hear of "
            f"them at once: ACL SETUSER <user> {rule}"
        )
    if command:
        what = f"run {command[1].upper()}"
    elif " key" in said:
        what = "touch the keys"
    else:
        what = "run a command"
    return f"does not let this user {what}; a user for the store alone needs: {place.acl_line}"


def _advice_of_connection(error: BaseException, place: Place) -> str:
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _advice_of_tls(cause)
        for kind, advice in _BY_CAUSE:
            if isinstance(cause, kind):
                return advice
    if isinstance(error, LoginCut):
        return f"closed the connection before the login; {_ASKS_FOR_CERTIFICATE if place.tls else _SPEAKS_TLS}"
    if isinstance(error, NotConnected):
        plain = "; if its port speaks no TLS, use redis://" if place.tls else ""
        return f"cannot be reached: it did not answer in time; check that it runs, and its address{plain}"
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    said = next((cause.strerror for cause in reversed(causes) if isinstance(cause, OSError) and cause.strerror), "")
    return f"{_LOST}{f' ({said})' if said else ''}; check that it runs, and its address"


def _advice_of_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        if "mismatch" in said:
            return f"has a certificate for another name ({said}); use the name that it was made for"
        if "expired" in said or "not yet valid" in said:
            return f"has a certificate that is out of date ({said}); renew it"
        return f"has a certificate that is not trusted ({said}){_DISTRUST}"
    reason = error.reason or "no reason given"
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"closed the connection before the login ({reason}); {_ASKS_FOR_CERTIFICATE}"
    return f"could not be spoken to by TLS ({reason}); if its port speaks no TLS, use redis://"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """
    Return an error and all that led to it.
    """
    seen: list[BaseException] = [error]
    for each in seen:
        for other in (each.__cause__, each.__context__):
            if other is not None and all(other is not known for known in seen):
                seen.append(other)
        yield each
