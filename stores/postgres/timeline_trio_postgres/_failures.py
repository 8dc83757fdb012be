"""
What PostgreSQL's errors mean: start anew, the server needs attention, or never.
"""

from __future__ import annotations

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
_READ_ONLY: Final = "25006"
_DATA_CLASSES: Final = frozenset(
    (
        "22",  # data exception: text or numbers that the column does not take
        "23",  # integrity constraint violation, by a constraint of the application's own
        "54",  # program limit exceeded
    )
)

_ADVICE: Final = {
    "42P01": "has no table 'timelines'; call create_schema() once, or open it with create=True",
    "3F000": "has no such schema; make it by CREATE SCHEMA, or check the option schema",
    "42P10": "has no unique index on the ids; run: ALTER TABLE timelines ADD PRIMARY KEY (id)",
    "42703": "lacks a column of the table 'timelines'; compare it with timeline_trio_postgres.SCHEMA",
    "42501": "refused access; run: GRANT SELECT, INSERT, UPDATE ON timelines TO the user",
    _READ_ONLY: "is read-only; connect to the primary, as target_session_attrs=read-write does among several hosts",
    "53100": "cannot grow; free some space on its disk",
    "53200": "is out of memory",
    "57014": "cancelled the statement, by its statement_timeout or an administrator",
    "57P01": "closed the connection; it is shutting down, or an administrator ended the session",
    "57P02": "closed the connection; it is starting anew after a crash",
    "26000": "has forgotten a prepared statement; behind a pooler of transactions, use prepare=false",
    "42P05": "has mixed up prepared statements; behind a pooler of transactions, use prepare=false",
}


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
        problem = f"PostgreSQL refuses the row, with the error {error.sqlstate}; the cause tells more"
    rejection = StoreRejected(opid, problem)
    rejection.__cause__ = error
    return rejection


def translate(error: psycopg.Error, name: str) -> RaceLost | StoreUnavailable:
    """
    Return what to raise instead of psycopg's error, which becomes its cause.
    """
    if error.sqlstate in _RACES:
        return RaceLost()
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return StoreUnavailable("", f"{name} closed the connection, or it broke; the cause tells more")
    problem = _ADVICE.get(error.sqlstate or "", "could not be used; the cause tells more")
    return StoreUnavailable("", f"{name} {problem}")
