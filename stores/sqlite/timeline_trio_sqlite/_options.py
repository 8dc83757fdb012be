"""
How a database file is opened: the options and their spelling in a URL.
"""

from __future__ import annotations

from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from timeline_trio.model import InvalidValue

if TYPE_CHECKING:
    from os import PathLike

Synchronous = Literal["normal", "full"]
"""What a commit survives: `full` a loss of power too; `normal`, in WAL mode, may lose the last ones to it."""

Journal = Literal["wal", "delete"]
"""SQLite's journal: `wal`, or `delete` for file systems without shared memory."""

_URL_FORM: Final = "expected sqlite:///relative.db or sqlite:////absolute/path.db"
_BOOLEANS: Final = {"true": True, "false": False}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    How to open a file, checked.

    Attributes:
        path: the file, absolute, so that a later change of the working directory changes nothing.
        synchronous: what a commit survives.
        journal: SQLite's journal mode.
        create: whether a missing file and table are made.
    """

    path: Path
    synchronous: str = "normal"
    journal: str = "wal"
    create: bool = True


def check_options(path: str | PathLike[str], *, synchronous: str, journal: str, create: bool) -> Options:
    """
    Check the arguments of `open_sqlite`.

    Raises:
        InvalidValue: naming the argument.
    """
    name = fspath(path)
    if not name or name == ":memory:":
        raise InvalidValue("path", "expected the path of a file; for a store in memory use open_store('memory:')")
    if "\0" in name:
        raise InvalidValue("path", "a file name cannot hold a null character")
    _check_choice("synchronous", synchronous, get_args(Synchronous))
    _check_choice("journal", journal, get_args(Journal))
    return Options(path=Path(name).absolute(), synchronous=synchronous, journal=journal, create=create)


def parse_url(url: str) -> Options:
    """
    Read `sqlite:///relative.db` or `sqlite:////absolute/path.db`, with options such as `?synchronous=full`.

    Raises:
        InvalidValue: naming the part of the URL, or the option.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets around what is no IPv6 address
        raise InvalidValue("url", _URL_FORM) from None
    if parts.netloc or parts.fragment:
        found = "a fragment; write # in a path as %23" if parts.fragment else f"the host {parts.netloc!r}"
        raise InvalidValue("url", f"{_URL_FORM}, got {found}")
    try:
        path = unquote(parts.path, errors="strict").removeprefix("/")
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict")
    except ValueError:
        raise InvalidValue("url", f"{_URL_FORM}, with percent-encoded UTF-8 and options as ?name=value") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        raise InvalidValue("url", "expected each option once")
    if unknown := values.keys() - {"synchronous", "journal", "create"}:
        raise InvalidValue(min(unknown), "no such option; there are synchronous, journal and create")
    create = values.get("create", "true")
    _check_choice("create", create, tuple(_BOOLEANS))
    return check_options(
        path,
        synchronous=values.get("synchronous", "normal"),
        journal=values.get("journal", "wal"),
        create=_BOOLEANS[create],
    )


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidValue(option, f"expected {' or '.join(choices)}, got {value!r}")
