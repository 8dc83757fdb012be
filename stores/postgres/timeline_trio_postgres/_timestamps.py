"""
Times as PostgreSQL sends them in binary: microseconds since 2000, UTC.

So they are exact from the first year to the last, and the session's time zone has no say. By way of `datetime` it would
shift them, out of range at both ends; by way of arithmetic in SQL they would pass through doubles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import msgspec
from psycopg import DataError, pq
from psycopg.adapt import Dumper, Loader
from psycopg.postgres import types

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.abc import Buffer

_OID: Final = types["timestamptz"].oid
_EPOCH: Final = 946_684_800 * 1_000_000  # 2000-01-01 in microseconds since 1970
_EARLIEST: Final = -211_813_488_000_000_000  # 4714-11-24 BC, in microseconds since 2000
_LATEST: Final = 9_223_371_331_199_999_999  # the end of the year 294276


@final
class Timestamp(msgspec.Struct, frozen=True):
    """
    A parameter of the type timestamptz: microseconds since 1970, UTC.
    """

    microseconds: int

    @classmethod
    def nearest(cls, microseconds: int) -> Timestamp:
        """
        Return the time, or the end of what PostgreSQL knows as time that is nearest to it.
        """
        return cls(max(_EARLIEST, min(microseconds - _EPOCH, _LATEST)) + _EPOCH)


class _TimestampDumper(Dumper):
    format = pq.Format.BINARY
    oid = _OID

    def dump(self, obj: Timestamp) -> Buffer:
        try:
            return (obj.microseconds - _EPOCH).to_bytes(8, "big", signed=True)
        except OverflowError as error:
            raise DataError("no time that PostgreSQL knows") from error


class _TimestampLoader(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> int:
        return int.from_bytes(data, "big", signed=True) + _EPOCH


def register(connection: Connection) -> None:
    """
    Let a connection take `Timestamp`, and return times as microseconds since 1970.
    """
    connection.adapters.register_dumper(Timestamp, _TimestampDumper)
    connection.adapters.register_loader(_OID, _TimestampLoader)
