"""
What PostgreSQL's errors mean: start anew, the server needs attention, or never.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from timeline_trio.store import RaceLost, StoreRejected, StoreUnavailable

_RACES: Final = frozenset(
    (
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available, by lock_timeout
    )
)

# The server has ended the session, or has forgotten what was prepared in it: a new connection serves.
_LOST: Final = frozenset(
    (
        "57P01",  # admin_shutdown, pg_terminate_backend too
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P05",  # idle_session_timeout
        "25P03",  # idle_in_transaction_session_timeout
        "26000",  # invalid_sql_statement_name: somebody deallocated it
        "42P05",  # duplicate_prepared_statement: somebody else's session, by a pooler
        "0A000",  # feature_not_supported: "cached plan must not change result type", after a migration
    )
)
_CONNECTION_CLASS: Final = "08"
FORBIDDEN: Final = "42501"  # insufficient_privilege
# The table is not what it was: no table, no column, no index.
_MOVED: Final = frozenset(("42P01", "42703", "42P10"))
_READ_ONLY: Final = "25006"
_DATA_CLASSES: Final = frozenset(
    (
        "22",  # data exception: text or numbers that the column does not take
        "23",  # integrity constraint violation, by a constraint of the application's own
        "54",  # program limit exceeded
    )
)

# Classes of errors in which the server's words are of names, numbers and settings. Those of others may quote a row, as
# in the classes 22 and 23, or say what a trigger has them say.
_PLAIN_CLASSES: Final = frozenset(("08", "0A", "25", "26", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX"))
_LONGEST_WORDS: Final = 200  # characters

_ADVICE: Final = {
    "42P01": "has no table 'timelines', or no 'timeline_changes'; call create_schema() once, or open it with "
    "create=True",
    "3F000": "has no such schema; make it by CREATE SCHEMA, or check the option schema",
    "42P10": "has no unique index on the ids; run: CREATE UNIQUE INDEX ON timelines (id)",
    "42703": "lacks a column of the table 'timelines'; compare it with timeline_trio_postgres.SCHEMA",
    _READ_ONLY: "is read-only; connect to the primary, as target_session_attrs=read-write does among several hosts",
    "53100": "cannot grow; free some space on its disk",
    "53200": "is out of memory",
    "57014": "cancelled the statement, by its statement_timeout or an administrator",
    "57P01": "closed the connection; it is shutting down, or an administrator ended the session",
    "57P02": "closed the connection; it is starting anew after a crash",
    "26000": "has forgotten a prepared statement; behind a pooler of transactions, use prepare=false",
    "42P05": "has mixed up prepared statements; behind a pooler of transactions, use prepare=false",
}

_PLACE: Final = re.compile(r"connection to (server (?:at|on socket) .*?) failed: ")
_SEVERITY: Final = re.compile(r"^(?:FATAL|ERROR|PANIC):\s+")


def is_lost(error: BaseException | None) -> bool:
    """
    Tell whether psycopg's error means that the session is gone, so that another one may do better.
    """
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate in _LOST or error.sqlstate.startswith(_CONNECTION_CLASS)


def is_spent(error: psycopg.Error) -> bool:
    """
    Tell whether the session is not to be used again: gone, or on a server that has become a replica.
    """
    return is_lost(error) or error.sqlstate == _READ_ONLY


def rejection_of(error: psycopg.Error, opid: str) -> StoreRejected | None:
    """
    Return the rejection of a row that can never be written, with the error as its cause; None for other failures.
    """
    if error.sqlstate is None:
        if not isinstance(error, psycopg.DataError):
            return None
        problem = "the document cannot be sent to PostgreSQL"
    elif error.sqlstate[:2] not in _DATA_CLASSES:
        return None
    else:
        # PostgreSQL's own text may quote the row, so it stays in the cause.
        problem = f"PostgreSQL refuses the row, with the error {words_of(error)}; the cause tells more"
    rejection = StoreRejected(opid, problem)
    rejection.__cause__ = error
    return rejection


def has_moved(error: psycopg.Error) -> bool:
    """
    Tell whether the tables are not what they were.
    """
    return error.sqlstate in _MOVED


def words_of(error: psycopg.Error) -> str:
    """
    Return the error's code, and what the server says to it or what it is about, unless that may quote a row.
    """
    code, diagnosis = error.sqlstate or "", error.diag
    if code[:2] in _PLAIN_CLASSES:
        about = " ".join((diagnosis.message_primary or "").split())[:_LONGEST_WORDS]
    else:
        names = (("constraint", diagnosis.constraint_name), ("column", diagnosis.column_name))
        about = ", ".join(f"{kind} {name}" for kind, name in names if name)
    return f"{code}: {about}" if about else code


def reason_of(text: str, *, with_place: bool) -> str:
    """
    Return what libpq says to a connection that could not be opened, as one sentence.

    Args:
        text: libpq's text, of one line or several.
        with_place: whether to keep of which address it is.
    """
    reasons: list[str] = []
    for line in text.splitlines():
        if line[:1].isspace():  # a hint that asks whether the server runs
            continue
        place, reason = _PLACE.match(line), _PLACE.sub("", line)
        reason = _SEVERITY.sub("", reason).strip()
        if place and with_place:
            reason = f"{place[1]}: {reason}"
        if reason and reason not in reasons:
            reasons.append(reason)
    return "; ".join(reasons)


def translate(error: psycopg.Error, name: str, rights: str = "") -> RaceLost | StoreUnavailable:
    """
    Return what to raise instead of psycopg's error, which becomes its cause.

    Args:
        error: psycopg's.
        name: what messages call the database.
        rights: the statements that give the user what it needs.
    """
    if error.sqlstate in _RACES:
        return RaceLost()
    if error.sqlstate is None:
        return StoreUnavailable("", f"{name} {_client_problem(error)}")
    if error.sqlstate == FORBIDDEN:
        problem = "refuses access; " + (f"run: {rights}" if rights else "check the user's rights")
    else:
        problem = _ADVICE.get(error.sqlstate, "could not be used; the cause tells more")
    # What is to be pasted stays at the end.
    fact, mark, remedy = problem.partition("; ")
    return StoreUnavailable("", f"{name} {fact} ({words_of(error)}){mark}{remedy}")


def _client_problem(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.OperationalError):
        said = reason_of(str(error), with_place=False)
        return "closed the connection, or it broke" + (f": {said}" if said else "; the cause tells more")
    # What the driver says of parameters may quote them.
    return f"could not be used ({type(error).__name__}); the cause tells more"
