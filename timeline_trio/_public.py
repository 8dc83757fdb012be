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

    The first public module that names something keeps it. Records keep their private home: msgspec looks there for
    the types of their fields.
    """
    for name, value in namespace.items():
        is_private = "._" in getattr(value, "__module__", "")
        if is_private and not name.startswith("_") and not hasattr(value, "__struct_fields__"):
            with suppress(AttributeError):
                setattr(value, "__module__", module)  # noqa: B010 - a plain assignment is a type error
