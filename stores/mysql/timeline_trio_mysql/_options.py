"""
How a server is reached: the options and their spelling in a URL.
"""

from __future__ import annotations

from math import isfinite
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import TYPE_CHECKING, Final, final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from timeline_trio.model import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

_URL_FORM: Final = (
    "expected mysql://user:password@host:port/database, percent-encoded (? as %3F, # as %23), with options as "
    "?name=value"
)
_OPTIONS: Final = frozenset(("pool_size", "create", "connect_timeout", "ssl", "unix_socket"))
_BOOLEANS: Final = {"true": True, "false": False}
_GREATEST_PORT: Final = 65_535


@final
class MySQLAddress(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where a database is, and as whom to enter it.

    Attributes:
        database: its name.
        user: the account.
        password: its password; never shown.
        host: a name or an address. A name is looked up in a thread of Trio's; an address needs none.
        port: the port there.
        unix_socket: the path of the server's socket on this machine, instead of host and port.
        ssl: how to use TLS, such as `ssl.create_default_context()`; None for none.
    """

    database: str
    user: str
    password: str = ""
    host: str = "127.0.0.1"
    port: int = 3306
    unix_socket: str = ""
    ssl: SSLContext | None = None

    def __repr__(self) -> str:
        return f"<MySQLAddress {self.name}>"  # no password in any traceback

    @property
    def name(self) -> str:
        """
        What messages call the database.
        """
        place = self.unix_socket or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        return f"{self.user}@{place}/{self.database}"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    How to reach and use a database, checked.

    Attributes:
        address: where it is.
        pool_size: how many connections there may be at once.
        connect_timeout: seconds within which one must be open.
        create: whether a missing table is made.
    """

    address: MySQLAddress
    pool_size: int = 4
    connect_timeout: float = 5.0
    create: bool = True

    @property
    def name(self) -> str:
        """
        What messages call the database.
        """
        return self.address.name


def check_options(address: MySQLAddress, *, pool_size: int, connect_timeout: float, create: bool) -> Options:
    """
    Check the arguments of `open_mysql`.

    Raises:
        InvalidValue: naming the argument.
    """
    _check_address(address)
    if type(pool_size) is not int or pool_size < 1:
        raise InvalidValue("pool_size", f"expected a whole number, 1 or more, got {pool_size!r}")
    if type(connect_timeout) not in {int, float} or not isfinite(connect_timeout) or connect_timeout <= 0:
        raise InvalidValue("connect_timeout", f"expected seconds, more than 0 and finite, got {connect_timeout!r}")
    return Options(address=address, pool_size=pool_size, connect_timeout=connect_timeout, create=create)


def _check_address(address: MySQLAddress) -> None:
    if not isinstance(address, MySQLAddress):
        raise InvalidValue("address", f"expected a MySQLAddress, got {type(address).__name__}")
    for field in ("database", "user"):
        if not getattr(address, field):
            raise InvalidValue(field, "expected a name")
    for field in ("database", "user", "password", "host", "unix_socket"):
        value: object = getattr(address, field)
        if not isinstance(value, str):
            raise InvalidValue(field, f"expected text, got {type(value).__name__}")
        if "\0" in value or not (value.isprintable() or field == "password"):
            raise InvalidValue(field, "expected no control characters")
    if not address.host and not address.unix_socket:
        raise InvalidValue("host", "expected a name or an address")
    if type(address.port) is not int or not 1 <= address.port <= _GREATEST_PORT:
        raise InvalidValue("port", f"expected 1 to {_GREATEST_PORT}, got {address.port!r}")
    if address.ssl is not None and not isinstance(address.ssl, SSLContext):
        raise InvalidValue("ssl", f"expected an ssl.SSLContext or None, got {type(address.ssl).__name__}")


def parse_url(url: str) -> Options:
    """
    Read `mysql://user:password@host:port/database`, with options such as `?pool_size=8&ssl=true`.

    Raises:
        InvalidValue: naming the part of the URL, or the option.
    """
    # No message has any of the URL: the password may be anywhere in one that is wrong.
    try:
        parts = urlsplit(url)
        port = parts.port
        user, password, host, database = map(_unquoted, _texts_of(parts))
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict")
    except ValueError:
        raise InvalidValue("url", _URL_FORM) from None
    if not user or parts.fragment:
        raise InvalidValue("url", _URL_FORM)
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidValue("url", "expected each option once")
    if unknown := given.keys() - _OPTIONS:
        raise InvalidValue(min(unknown), f"no such option; there are {', '.join(sorted(_OPTIONS))}")
    defaults = MySQLAddress(database=database, user=user)
    address = MySQLAddress(
        database=database,
        user=user,
        password=password,
        host=host or defaults.host,
        port=defaults.port if port is None else port,
        unix_socket=given.get("unix_socket", ""),
        ssl=_ssl_context(given.get("ssl", "false")),
    )
    return check_options(
        address,
        pool_size=_integer("pool_size", given.get("pool_size", "4")),
        connect_timeout=_seconds("connect_timeout", given.get("connect_timeout", "5")),
        create=_boolean("create", given),
    )


def _texts_of(parts: SplitResult) -> tuple[str, str, str, str]:
    return parts.username or "", parts.password or "", parts.hostname or "", parts.path.removeprefix("/")


def _unquoted(text: str) -> str:
    return unquote(text, errors="strict")


def _ssl_context(value: str) -> SSLContext | None:
    if value == "false":
        return None
    if value not in {"true", "unverified"} and "/" not in value:
        raise InvalidValue(
            "ssl", "expected false, true, unverified, or the path of a file of authorities, such as /etc/ssl/mine.pem"
        )
    try:
        context = create_default_context(cafile=value if "/" in value else None)
    except OSError as error:
        raise InvalidValue("ssl", f"the file of authorities cannot be used: {error}") from error
    if value == "unverified":
        context.check_hostname = False
        context.verify_mode = CERT_NONE
    return context


def _boolean(name: str, given: Mapping[str, str]) -> bool:
    value = given.get(name, "true")
    if value not in _BOOLEANS:
        raise InvalidValue(name, f"expected true or false, got {value!r}")
    return _BOOLEANS[value]


def _integer(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidValue(name, f"expected a whole number, 1 or more, got {text!r}")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(name, f"expected seconds, more than 0 and finite, got {text!r}") from None
