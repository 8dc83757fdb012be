"""
Gives public names their public home.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def publish(namespace: Mapping[str, object], module: str) -> None:
    """
    Let the classes and functions of a public module say where they are public, in tracebacks, docs and pickles.

    The first public module that names something keeps it. msgspec's records keep their private home: their types
    are immutable.
    """
    for name, value in namespace.items():
        if not name.startswith("_") and "._" in getattr(value, "__module__", ""):
            with suppress(AttributeError):
                setattr(value, "__module__", module)  # noqa: B010 - a plain assignment is a type error
