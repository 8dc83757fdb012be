"""
What a session must be set up as, that no document is changed or lost by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeline_trio.store import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

# MariaDB 10 and MySQL 8 have no name for the isolation level in common. The first comment is read by MariaDB only, the
# second by the others.
SELECT_SETTINGS: Final = """\
SELECT @@max_allowed_packet, @@character_set_client, @@character_set_connection, @@character_set_results,
    @@sql_mode, /*M! @@tx_isolation */ /*!50720 @@transaction_isolation */
"""

_CHARSET: Final = "utf8mb4"
_STRICT: Final = frozenset(("STRICT_ALL_TABLES", "STRICT_TRANS_TABLES"))
_DIRTY: Final = "READ-UNCOMMITTED"


def read_settings(row: Sequence[object], encoding: str, name: str) -> int:
    """
    Return how many bytes a packet may have.

    Args:
        row: the answer to `SELECT_SETTINGS`.
        encoding: what the driver encodes text in.
        name: what messages call the database.

    Raises:
        StoreUnavailable: telling how to make the connections.
    """
    limit, *charsets, modes, isolation = row
    problem = remedy = ""
    if foreign := [charset for charset in (encoding, *charsets) if charset != _CHARSET]:
        problem = f"the character set {foreign[0]}, by which text would be changed"
        remedy = f'make them with charset="{_CHARSET}", and no SET NAMES of another one'
    elif not _STRICT & set(str(modes).split(",")):
        problem = "an sql_mode that is not strict, by which values would be changed"
        remedy = "make them with init_command=\"SET SESSION sql_mode = 'STRICT_TRANS_TABLES'\""
    elif isolation == _DIRTY:
        problem = "the isolation level READ UNCOMMITTED, by which an update may be taken for saved that never is"
        remedy = 'make them with init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"'
    if problem:
        raise StoreUnavailable("", f"the connections of {name} have {problem}; {remedy}")
    assert isinstance(limit, int)
    return limit
