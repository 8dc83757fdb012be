"""
What the errors of MySQL and MariaDB mean: start anew, the server needs attention, or never.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from timeline_trio.store import RaceLost, StoreRejected, StoreUnavailable

from ._reach import problem_of_connecting

if TYPE_CHECKING:
    from ._driver import MySQLError

DUPLICATE_KEY: Final = 1062
PACKET_TOO_LARGE: Final = 1153

_RACES: Final = frozenset(
    (
        1020,  # MariaDB, innodb_snapshot_isolation: the row has changed since the transaction's first read
        1205,  # lock wait timeout
        1213,  # deadlock; Galera also answers so where another node was first
        3101,  # Group Replication: another member was first
        9007,  # TiDB: write conflict
    )
)

# The session has ended, or has forgotten what was prepared in it: a new connection serves.
_LOST: Final = frozenset(
    (
        1053,  # server shutdown in progress
        1243,  # unknown prepared statement
        1927,  # MariaDB: connection was killed
        2006,  # server has gone away
        2013,  # lost connection during query
        2014,  # commands out of sync
        2055,  # lost connection, with the system's error
        3169,  # session was killed
        4031,  # MySQL: disconnected for inactivity
    )
)
# The server has become a replica: others of its name may serve, by a new connection.
_READ_ONLY: Final = frozenset((1290, 1792, 1836))
_FORBIDDEN: Final = frozenset((1044, 1142, 1143, 1227))
_UNCHANGEABLE: Final = _FORBIDDEN | _READ_ONLY | {1060, 1205}  # another one was first, or the table is in use
_MOVED: Final = frozenset((1054, 1146))  # no column, no table
# Their words name accounts, tables and limits, and never what is stored.
_HARMLESS: Final = frozenset(
    (1044, 1045, 1049, 1129, 1130, 1142, 1143, 1146, 1203, 1226, 1227, 1251, 1698, 1820, 1862, 3118, 4151)
)
_UNEXPECTED: Final = (
    "gave what the driver does not understand; check that this is the address of a MySQL or MariaDB server; the cause "
    "tells more"
)
_CONNECTING: Final = frozenset((2003, 2026))
_INDEX: Final = re.compile(r"'([^']+)'[^']*$")  # a duplicate's last name; before it stands what is stored
_FIRST_CLIENT_CODE: Final = 2000
_FIRST_SERVER_CODE: Final = 1000
_LATER_SERVER_CODES: Final = 3000

_REJECTIONS: Final = {
    1264: "a number is out of the range of its column",
    1292: "a time is not one that the column takes",
    1366: "the text does not fit the character set of its column; compare the table with timeline_trio_mysql.SCHEMA",
    1406: "the document is longer than its column; compare the table with timeline_trio_mysql.SCHEMA",
    3140: "MySQL does not take the document as JSON",
    3141: "MySQL does not take a number of the document",
    3157: "the document is nested deeper than MySQL's JSON can be",
    3819: "a CHECK of the table refuses the document; MySQL's JSON_VALID does so for numbers beyond a double's",
    3903: "MySQL does not take a number of the document",
    4025: "a CHECK of the table refuses the document; MariaDB's JSON_VALID does so beyond 31 levels",
}

_ADVICE: Final = {
    1021: "cannot grow; free some space on its disk",
    1040: "has no connection left; lower pool_size, or raise the server's max_connections",
    1044: "is a database that the user may not enter, or that does not exist; create it, or check its name, and grant "
    "the user SELECT, INSERT, UPDATE and DELETE on it",
    1045: "refuses the user; check its name and password, from where it may come, and add ssl=true if it may come by "
    "TLS only",
    1046: "is reached without a database; name one",
    1049: "does not have the database; create it, or check the name",
    1054: "has a table without a column that it needs; compare 'timelines' and 'timeline_changes' with "
    "timeline_trio_mysql.SCHEMA",
    1114: "cannot grow; free some space on its disk",
    1129: "has blocked this machine after too many failed connections; run: FLUSH HOSTS",
    1130: "lets no user in from this machine; create one as 'user'@'%', or for this machine's address",
    1146: "has no table 'timelines', or no 'timeline_changes'; call create_schema() once, or open it with create=True",
    PACKET_TOO_LARGE: "has lowered max_allowed_packet; the next connection takes it into account",
    1203: "has no connection left for the user; lower pool_size, or raise max_user_connections",
    1226: "has no connection left for the user; lower pool_size, or raise the user's limits",
    1290: "is read-only; connect to the primary",
    1317: "was told by somebody to end the statement",
    1461: "holds too many prepared statements; raise its max_prepared_stmt_count",
    1665: "logs statements, which READ COMMITTED cannot be used with; set binlog_format to MIXED or ROW",
    1698: "refuses the user; check its name and password, and how it is authenticated",
    1792: "is read-only; connect to the primary",
    1836: "is read-only; connect to the primary",
    1969: "ended the statement by its max_statement_time",
    3024: "ended the statement by its max_execution_time",
    2003: "cannot be reached; check the address, and that the server runs",
    2026: "does not agree on TLS; check the option ssl, and the certificates",
    3159: "takes connections by TLS only; add ssl=true",
}


def code_of(error: BaseException) -> int:
    """
    Return the number of an error; 0 where it has none.
    """
    code: object = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


def is_race(error: MySQLError) -> bool:
    """
    Tell whether the server has ended a transaction, or a statement, in favour of another one.
    """
    return code_of(error) in _RACES


def is_lost(error: MySQLError) -> bool:
    """
    Tell whether the session is gone, so that another one may do better.
    """
    return code_of(error) in _LOST


def is_forbidden(error: MySQLError) -> bool:
    """
    Tell whether the account may not do that.
    """
    return code_of(error) in _FORBIDDEN


def is_read_only(error: MySQLError) -> bool:
    """
    Tell whether nobody may write there now.
    """
    return code_of(error) in _READ_ONLY


def is_unchangeable(error: MySQLError) -> bool:
    """
    Tell whether a table cannot be altered now, and can be used as it is.
    """
    return code_of(error) in _UNCHANGEABLE


def has_moved(error: MySQLError) -> bool:
    """
    Tell whether the tables are not what they were.
    """
    return code_of(error) in _MOVED


def is_spent(error: MySQLError) -> bool:
    """
    Tell whether the session is not to be used again.

    It is not after what the driver itself found wrong either: it may have lost its place in the stream.
    """
    code = code_of(error)
    is_servers = _FIRST_SERVER_CODE <= code < _FIRST_CLIENT_CODE or code >= _LATER_SERVER_CODES
    return not is_servers or code in _LOST or code in _READ_ONLY or code == PACKET_TOO_LARGE


def rejection_of(error: MySQLError, opid: str) -> StoreRejected | None:
    """
    Return the rejection of a row that can never be written, with the error as its cause; None for other failures.
    """
    # The server's own text may quote the row, so it stays in the cause.
    problem = _REJECTIONS.get(code_of(error))
    if index := _index_of(error):
        problem = f"the unique index {index!r} of the table, which is not ours, refuses it; drop that index"
    if problem is None:
        return None
    rejection = StoreRejected(opid, problem)
    rejection.__cause__ = error
    return rejection


def translate(error: MySQLError, name: str) -> RaceLost | StoreUnavailable:
    """
    Return what to raise instead of the driver's error, which becomes its cause.
    """
    if is_race(error):
        return RaceLost()
    code = code_of(error)
    cause = error.__cause__
    problem = _ADVICE.get(code)
    if code in _CONNECTING and isinstance(cause, OSError):
        problem = problem_of_connecting(cause)
    elif problem is None:
        problem = f"could not be used: error {code}; the cause tells more" if code else _UNEXPECTED
        problem = "closed the connection" if is_lost(error) else problem
    return StoreUnavailable("", f"{name} {problem} {words_of(error)}".rstrip())


def words_of(error: MySQLError) -> str:
    """
    Return the server's own words, in brackets; "" where they may quote what is stored.
    """
    return f"(the server: {error.args[1]})" if code_of(error) in _HARMLESS and len(error.args) > 1 else ""


def translate_other(error: Exception, name: str) -> StoreUnavailable:
    """
    Return what to raise instead of an error that is none of MySQL's: the driver has met what it does not expect.
    """
    problem = problem_of_connecting(error) if isinstance(error, OSError) else _UNEXPECTED
    return StoreUnavailable("", f"{name} {problem}")


def _index_of(error: MySQLError) -> str:
    """
    Return the name of a unique index that is not the primary key, by which a row is a duplicate.
    """
    if code_of(error) != DUPLICATE_KEY or len(error.args) < len(("code", "words")):
        return ""
    found = _INDEX.search(str(error.args[1]))
    index = found.group(1).rpartition(".")[2] if found else ""
    return "" if index == "PRIMARY" else index
