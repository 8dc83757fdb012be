"""
How a database is reached and used: the options and their spelling in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from timeline_trio.model import InvalidValue

DEFAULT_CONNECT_TIMEOUT: Final = 5.0  # seconds
_URL_FORM: Final = "expected postgres://user:password@host:port/database, percent-encoded, with options as ?name=value"
_BOOLEANS: Final = {"true": True, "false": False}
_OWN: Final = ("connect_timeout", "create", "notify", "pool_size", "prepare", "schema")
_GREATEST_PORT: Final = 65_535
_LONGEST_NAME: Final = 63  # bytes; PostgreSQL cuts longer ones off

_TLS_VERSIONS: Final = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_CHOICES: Final = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslnegotiation": ("postgres", "direct"),
    "sslcertmode": ("disable", "allow", "require"),
    "ssl_min_protocol_version": _TLS_VERSIONS,
    "ssl_max_protocol_version": _TLS_VERSIONS,
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    "load_balance_hosts": ("disable", "random"),
}
_NUMBERS: Final = frozenset(
    ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
)
_WHOLE_NUMBER: Final = re.compile("[0-9]{1,9}")

_DEFAULTS: Final = {
    "fallback_application_name": "timeline-trio",
    # A host that is gone says nothing: without these, its connections are found out after two hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Kerberos blocks where nothing can be cancelled; who needs it asks for it.
    "gssencmode": "disable",
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    How to reach and use a database, checked.

    Attributes:
        parameters: libpq's connection parameters, which may hold a password.
        pool_size: how many connections there may be at once.
        connect_timeout: seconds within which one must be open.
        create: whether a missing table is made.
        notify: whether commits are told to whoever watches.
        prepare: whether statements are prepared on the server.
        schema: the schema of the table; "" for the one that the search path finds.
    """

    parameters: Mapping[str, str]
    pool_size: int
    connect_timeout: float
    create: bool
    notify: bool
    prepare: bool
    schema: str

    def __repr__(self) -> str:
        return f"<Options for {self.name}>"  # no password in any traceback

    @property
    def name(self) -> str:
        """
        What messages call the database.
        """
        # What is not said is in the environment, unless a service file says it.
        known = self.parameters if "service" in self.parameters else {**surroundings(), **self.parameters}
        user = known.get("user", "")
        database = known.get("dbname") or f"the service {known.get('service', '')}"
        hosts = (known.get("host") or known.get("hostaddr") or "[local]").split(",")
        ports = known.get("port", "").split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        places = [
            f"{f'[{host}]' if ':' in host else host}{':' if port else ''}{port}"
            for host, port in zip(hosts, ports, strict=False)
        ]
        return f"{user}{'@' if user else ''}{','.join(places)}/{database}"


def check_options(
    conninfo: str | Mapping[str, str | int],
    *,
    pool_size: int,
    connect_timeout: float | None,
    create: bool,
    notify: bool,
    prepare: bool,
    schema: str,
) -> Options:
    """
    Check the arguments of `open_postgres`.

    Raises:
        InvalidValue: naming the argument.
    """
    if isinstance(conninfo, str):
        try:
            given = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
        except (psycopg.Error, ValueError):  # its text may quote the password
            raise InvalidValue(
                "conninfo", "expected postgres://user:password@host:port/database, or host=... dbname=... as for libpq"
            ) from None
    else:
        given = {name: str(value) for name, value in conninfo.items()}
    _check_names(given)
    if connect_timeout is None:
        connect_timeout = _seconds(given.get("connect_timeout", str(DEFAULT_CONNECT_TIMEOUT)))
    if type(connect_timeout) not in {int, float} or not isfinite(connect_timeout) or connect_timeout <= 0:
        raise InvalidValue("connect_timeout", f"expected seconds, more than 0 and finite, got {connect_timeout!r}")
    if type(pool_size) is not int or pool_size < 1:
        raise InvalidValue("pool_size", f"expected a whole number, 1 or more, got {pool_size!r}")
    for name, value in (("create", create), ("notify", notify), ("prepare", prepare)):
        if type(value) is not bool:
            raise InvalidValue(name, f"expected True or False, got {value!r}")
    if not isinstance(schema, str) or "\0" in schema or len(schema.encode(errors="replace")) > _LONGEST_NAME:
        raise InvalidValue("schema", f"expected a name of at most {_LONGEST_NAME} bytes")
    _check_addresses(given)
    _check_values(given)
    if not given.keys() & {"dbname", "service"} and not surroundings().keys() & {"dbname", "service"}:
        # libpq would take the user's name for it, mostly by mistake.
        raise InvalidValue(
            "dbname", "expected the name of a database, as in postgres://user:password@host:port/database"
        )
    given.pop("connect_timeout", None)
    return Options(
        parameters=_DEFAULTS | given | {"client_encoding": "UTF8"},
        pool_size=pool_size,
        connect_timeout=connect_timeout,
        create=create,
        notify=notify,
        prepare=prepare,
        schema=schema,
    )


def parse_url(url: str) -> Options:
    """
    Read `postgres://user:password@host:port/database`, with options such as `?pool_size=8&sslmode=require`.

    Raises:
        InvalidValue: naming the part of the URL, or the option.
    """
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict")
        given = conninfo_to_dict(f"postgresql://{parts.netloc}{parts.path}")
    except (psycopg.Error, ValueError):  # the text of either may quote the password
        raise InvalidValue("url", _URL_FORM) from None
    if parts.fragment:
        raise InvalidValue("url", "expected no fragment; write # as %23")
    options = dict(pairs)
    if len(options) < len(pairs):
        raise InvalidValue("url", "expected each option once")
    parameters = {name: str(value) for name, value in given.items()}
    parameters |= {name: value for name, value in options.items() if name not in _OWN}
    pool_size = options.get("pool_size", "4")
    timeout = options.get("connect_timeout")
    return check_options(
        parameters,
        pool_size=int(pool_size) if pool_size.isascii() and pool_size.isdigit() else _refuse_number(pool_size),
        connect_timeout=None if timeout is None else _seconds(timeout),
        create=_boolean("create", options),
        notify=_boolean("notify", options),
        prepare=_boolean("prepare", options),
        schema=options.get("schema", ""),
    )


def _check_names(parameters: Mapping[str, str]) -> None:
    """
    Refuse what is no connection parameter of the installed libpq, and what it would cut off.

    Raises:
        InvalidValue: naming the parameter.
    """
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    if unknown := parameters.keys() - known:
        raise InvalidValue(
            min(unknown), f"no such option; there are {', '.join(_OWN)} and the connection parameters of libpq"
        )
    for name, value in parameters.items():
        if "\0" in value:
            raise InvalidValue(name, "expected text without a null character")


def surroundings() -> dict[str, str]:
    """
    Return libpq's own parameters, and those that its environment variables say.
    """
    return {option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val}


def _check_values(parameters: Mapping[str, str]) -> None:
    """
    Refuse what libpq would refuse at each attempt to connect, as if a later one could do better.

    Raises:
        InvalidValue: naming the parameter.
    """
    for name, value in parameters.items():
        if name in _CHOICES and value not in _CHOICES[name]:
            raise InvalidValue(name, f"expected {' or '.join(_CHOICES[name])}, got {value!r}")
        if name in _NUMBERS and not _WHOLE_NUMBER.fullmatch(value):
            raise InvalidValue(name, f"expected a whole number, got {value!r}")


def _check_addresses(parameters: Mapping[str, str]) -> None:
    hosts, literal, ports = (parameters.get(name, "").split(",") for name in ("host", "hostaddr", "port"))
    for port in filter(None, ports):
        # Not quoted: a password with a / in it ends up here.
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= _GREATEST_PORT):
            raise InvalidValue(
                "port", f"expected a number from 1 to {_GREATEST_PORT}; percent-encode / : and @ in a password"
            )
    count = max(len(hosts), len(literal))
    both = "host" in parameters and "hostaddr" in parameters
    if (both and len(hosts) != len(literal)) or len(ports) not in {1, count}:
        raise InvalidValue("host", "expected as many hosts as hostaddr and port have, or one port for all")


def _boolean(name: str, options: Mapping[str, str]) -> bool:
    value = options.get(name, "true")
    if value not in _BOOLEANS:
        raise InvalidValue(name, f"expected true or false, got {value!r}")
    return _BOOLEANS[value]


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue("connect_timeout", f"expected seconds, more than 0 and finite, got {text!r}") from None


def _refuse_number(text: str) -> int:
    raise InvalidValue("pool_size", f"expected a whole number, 1 or more, got {text!r}")
