"""
Where things are kept: the names of keys and of a hash's fields. All of this is the stored format.

Operations are spread over a fixed number of buckets. What belongs to one bucket has the same hash tag, so that on a
cluster it is in one slot, where one script may touch all of it at once.
"""

from __future__ import annotations

from binascii import crc32, crc_hqx
from typing import TYPE_CHECKING, Final

import msgspec

from timeline_trio.model import InvalidValue
from timeline_trio.store import StoreUnavailable

if TYPE_CHECKING:
    from timeline_trio.model import StageKey

BUCKETS: Final = 64
START: Final = b"start"
FINISH: Final = b"finish"

_SLOTS: Final = 16_384
_MAX_PREFIX_LENGTH: Final = 100


class OperationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """
    The keys of one operation, with those of its bucket.

    Attributes:
        slot: the cluster's slot that all of them are in.
        facts: a hash: the head and one field a fact.
        versions: a sorted set: each fact's field by the version that brought its present state.
        index: a sorted set of the bucket: opids by update time.
        due: a sorted set of the bucket: opids by the time that they expire.
        incarnation: text of the bucket: the last incarnation that was given out.
    """

    slot: int
    facts: str
    versions: str
    index: str
    due: str
    incarnation: str


class Layout:
    """
    The names under one prefix.

    Raises:
        InvalidValue: the prefix cannot be part of a key's hash tag.
    """

    def __init__(self, prefix: str) -> None:
        if not isinstance(prefix, str) or not 1 <= len(prefix) <= _MAX_PREFIX_LENGTH:
            raise InvalidValue("prefix", f"expected text of 1 to {_MAX_PREFIX_LENGTH} characters")
        if not prefix.isprintable() or not {"{", "}"}.isdisjoint(prefix):
            raise InvalidValue("prefix", "expected printable characters without braces, which mark the hash tag")
        self.prefix: str = prefix
        self.channel: str = f"{prefix}:changes"
        self._tags = [f"{prefix}:b{number:02d}" for number in range(BUCKETS)]
        # The cluster's CRC16 is the one that Python calls CRC-CCITT.
        self._slots = [crc_hqx(tag.encode(), 0) % _SLOTS for tag in self._tags]

    def keys(self, opid: str) -> OperationKeys:
        """
        Return the keys of an operation.
        """
        bucket = crc32(opid.encode()) % BUCKETS
        tag = f"{{{self._tags[bucket]}}}"
        return OperationKeys(
            slot=self._slots[bucket],
            facts=f"{tag}:op:{opid}",
            versions=f"{tag}:versions:{opid}",
            index=f"{tag}:index",
            due=f"{tag}:due",
            incarnation=f"{tag}:incarnation",
        )

    def sequence_key(self, opid: str, writer: str) -> str:
        """
        Return the key of the last sequence number that a writer had for an operation.
        """
        # The length keeps apart what a separator in either part would join.
        tag = self._tags[crc32(opid.encode()) % BUCKETS]
        return f"{{{tag}}}:sequence:{len(writer)}:{writer}:{opid}"

    def indexes(self) -> list[tuple[int, str]]:
        """
        Return the slot and the key of each bucket's index.
        """
        return [(slot, f"{{{tag}}}:index") for slot, tag in zip(self._slots, self._tags, strict=True)]


def foreign_key(key: str) -> StoreUnavailable:
    """
    Return the error about a key that holds something else, which is left alone.
    """
    return StoreUnavailable("", f"the key {key!r} holds what is not this store's; rename or delete it, and try again")


def stage_field(key: StageKey) -> bytes:
    """
    Return the field of a stage: a JSON array, in which no id runs into an actor's key.
    """
    return msgspec.json.encode(key)


def is_stage_field(field: bytes) -> bool:
    """
    Tell a stage's field from those of the head and of the boundaries.
    """
    return field.startswith(b"[")
