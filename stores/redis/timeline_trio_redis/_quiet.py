"""
Keeps what the driver logs about the store's own connections out of the application's log.

The driver logs each connection that could not be made or was lost, with all its tracebacks, on the logger that the
application's own clients have too. For the store's connections the same is told by an exception.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

_is_own: Final = ContextVar("timeline_trio_redis connection", default=False)


class _Foreign(logging.Filter):
    """
    Passes what is logged outside of the store's connections.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        del record
        return not _is_own.get()


@contextmanager
def quiet_driver() -> Generator[None, None, None]:
    """
    Drop what the driver logs within the block, in this task and those that it starts.
    """
    # One each, so that each can be taken away by itself.
    own = _Foreign()
    logger = logging.getLogger("coredis")
    token = _is_own.set(True)
    logger.addFilter(own)
    try:
        yield
    finally:
        logger.removeFilter(own)
        _is_own.reset(token)
