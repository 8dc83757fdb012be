"""
How Redis is reached: the options and their spelling in a URL.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from timeline_trio.model import InvalidValue

from ._layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PREFIX: Final = "timeline"
DEFAULT_TIMEOUT: Final = 5.0

_URL_FORM: Final = "expected redis://user:password@host:port/number, or rediss:// for TLS"
_DEFAULT_PORT: Final = 6379
_BOOLEANS: Final = {"true": True, "false": False}
_ADDRESS_OPTIONS: Final = frozenset(("cluster", "ca_file"))
_STORE_OPTIONS: Final = frozenset(("prefix", "expire_after", "timeout"))
_LONGEST_EXPIRY: Final = 1e9  # seconds; in milliseconds it must stay exact in Lua


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """
    Which server to connect to, and as whom.

    Attributes:
        host: name or address.
        port: of TCP.
        database: its number; a cluster has only 0.
        user: "" for the default one.
        password: "" for none.
        tls: whether the connection is encrypted, and the server's certificate checked.
        ca_file: certificates to trust instead of the system's, "" for those.
        cluster: whether this is a node of a Redis Cluster.
    """

    host: str
    port: int = _DEFAULT_PORT
    database: int = 0
    user: str = ""
    password: str = ""
    tls: bool = False
    ca_file: str = ""
    cluster: bool = False

    @property
    def name(self) -> str:
        """
        The address as it may be shown.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        database = f"/{self.database}" if self.database else ""
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}{database}"

    def __repr__(self) -> str:
        return f"<Address {self.name}>"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    How the store keeps operations, checked.

    Attributes:
        prefix: begins all keys, and names the channel.
        expire_after: seconds after its last change that an operation is kept; None for good.
        timeout: seconds for connecting, and for an answer.
        overlap: seconds by which an update time may be ahead of the clock and still be stepped past.
    """

    prefix: str = DEFAULT_PREFIX
    expire_after: float | None = None
    timeout: float = DEFAULT_TIMEOUT
    overlap: float = 1.0


def check_options(*, prefix: str, expire_after: float | None, timeout: float, overlap: float) -> Options:
    """
    Check the arguments of `open_redis`.

    Raises:
        InvalidValue: naming the argument.
    """
    Layout(prefix)
    if expire_after is not None:
        _check_seconds("expire_after", expire_after)
        if not 0.001 <= expire_after <= _LONGEST_EXPIRY:  # noqa: PLR2004 - Redis counts milliseconds
            raise InvalidValue("expire_after", "expected seconds, from a millisecond to some thirty years, or None")
    _check_seconds("timeout", timeout)
    if timeout <= 0:
        raise InvalidValue("timeout", f"expected seconds, more than 0, got {timeout!r}")
    _check_seconds("overlap", overlap)
    return Options(prefix=prefix, expire_after=expire_after, timeout=timeout, overlap=overlap)


def parse_url(url: str) -> tuple[Address, Options]:
    """
    Read `redis://user:password@host:port/number` with all options, such as `?prefix=ops&expire_after=86400`.

    Raises:
        InvalidValue: naming the part of the URL, or the option.
    """
    address, values = _split_url(url, _ADDRESS_OPTIONS | _STORE_OPTIONS)
    options = check_options(
        prefix=values.get("prefix", DEFAULT_PREFIX),
        expire_after=_number("expire_after", values["expire_after"]) if "expire_after" in values else None,
        timeout=_number("timeout", values["timeout"]) if "timeout" in values else DEFAULT_TIMEOUT,
        overlap=1.0,
    )
    return address, options


def parse_address(url: str) -> Address:
    """
    Read a URL that may have options about the connection only: `cluster` and `ca_file`.

    Raises:
        InvalidValue: naming the part of the URL, or the option.
    """
    return _split_url(url, _ADDRESS_OPTIONS)[0]


def _split_url(url: str, names: frozenset[str]) -> tuple[Address, Mapping[str, str]]:
    # No message quotes the URL: it may hold a password.
    try:
        parts = urlsplit(url)
        port = _DEFAULT_PORT if parts.port is None else parts.port
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict")
        user = unquote(parts.username or "", errors="strict")
        password = unquote(parts.password or "", errors="strict")
        host = unquote(parts.hostname or "", errors="strict")
    except ValueError:
        raise InvalidValue("url", f"{_URL_FORM}, with percent-encoded UTF-8 and options as ?name=value") from None
    if parts.scheme not in {"redis", "rediss"} or not host or not port:
        raise InvalidValue("url", _URL_FORM)
    if parts.fragment:
        raise InvalidValue("url", f"{_URL_FORM}, got a fragment; write # in a password as %23")
    database = parts.path.strip("/") or "0"
    if not (database.isascii() and database.isdigit()):
        raise InvalidValue("url", f"{_URL_FORM}; the path is the number of a database")
    values = dict(pairs)
    if len(values) < len(pairs):
        raise InvalidValue("url", "expected each option once")
    if unknown := values.keys() - names:
        there_are = ", ".join(sorted(names))
        raise InvalidValue(min(unknown), f"no such option in this URL; there are {there_are}")
    cluster = values.get("cluster", "false")
    if cluster not in _BOOLEANS:
        raise InvalidValue("cluster", f"expected true or false, got {cluster!r}")
    address = Address(
        host=host,
        port=port,
        database=int(database),
        user=user,
        password=password,
        tls=parts.scheme == "rediss",
        ca_file=values.get("ca_file", ""),
        cluster=_BOOLEANS[cluster],
    )
    if address.cluster and address.database:
        raise InvalidValue("url", "a cluster has the database 0 only")
    if address.ca_file and not address.tls:
        raise InvalidValue("ca_file", "only rediss:// checks certificates")
    return address, values


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(option, f"expected a number of seconds, got {text!r}") from None


def _check_seconds(option: str, value: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value) or value < 0:
        raise InvalidValue(option, f"expected seconds, 0 or more and finite, got {value!r}")
