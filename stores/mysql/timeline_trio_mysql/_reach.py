"""
Why a server was not reached, by what the operating system and TLS said.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

_OTHER_NAME: Final = frozenset((62, 64))  # OpenSSL's, for a certificate that is good, and another host's
_ENCRYPT_ONLY: Final = "or use ssl=unverified, which encrypts only"
_HINTS: Final[tuple[tuple[type[OSError], str], ...]] = (
    (
        ssl.SSLCertVerificationError,
        f"has a certificate that is not trusted here; name the file of its authority by ssl=PATH, {_ENCRYPT_ONLY}",
    ),
    (ssl.SSLError, "does not agree on TLS; if it has none, leave the option ssl out"),
    (socket.gaierror, "cannot be reached: its host name is not known here; check the address"),
    (FileNotFoundError, "cannot be reached: no such socket; check the path unix_socket, and that the server runs"),
    (PermissionError, "cannot be reached: this process may not use the socket; check the rights on its path"),
    (OSError, "cannot be reached; check the address, and that the server runs"),
)


def problem_of_connecting(cause: OSError) -> str:
    """
    Return what was wrong and what to do, with the system's own words.
    """
    if isinstance(cause, ssl.SSLCertVerificationError):
        words = cause.verify_message
        if cause.verify_code in _OTHER_NAME:
            return f"has a certificate for another name; connect by the name that is in it, {_ENCRYPT_ONLY} ({words})"
    else:
        words = (cause.reason if isinstance(cause, ssl.SSLError) else cause.strerror) or str(cause)
    return next(f"{hint} ({words})" for kind, hint in _HINTS if isinstance(cause, kind))
