"""
What a raw driver's loop does beside its statements: the same merge and the same JSON as a store.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, TypeVar

from documents import Writer

from timeline_trio.model import decode_document, encode_document, merge

if TYPE_CHECKING:
    from timeline_trio.model import Document

StampT = TypeVar("StampT")

OVERLAP = 1_000_000  # microseconds, as the stores' own


class RowWriter(Writer, Generic[StampT]):
    """
    Changes one row, on and on, with statements of its own.

    Args:
        opid: the operation, whose row is there.
        reads: whether the row is read before each write.
    """

    document: Document
    version: int
    created_at: StampT

    def __init__(self, opid: str, *, reads: bool) -> None:
        super().__init__(opid)
        self.reads = reads

    def load(self, version: int, created_at: StampT, payload: str) -> None:
        """
        Take over the row.
        """
        self.version, self.created_at = version, created_at
        self.document = decode_document(payload)

    def next_payload(self) -> str:
        """
        Merge the next change, and return the row's payload.
        """
        self.document, changed = merge(self.document, self.update())
        assert changed
        return encode_document(self.document)

    def note(self, rows: int) -> None:
        """
        Know that the row was written, by the number of rows that were.
        """
        assert rows == 1
        self.version += 1


def now_us() -> int:
    """
    Return microseconds since the epoch.
    """
    return time.time_ns() // 1_000
