"""
Which rights an account lacks, as statements for an administrator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from timeline_trio.store import StoreUnavailable

from ._failures import words_of

if TYPE_CHECKING:
    from ._driver import MySQLError


class Account(msgspec.Struct, frozen=True):
    """
    An account as the server names it, `app@%`, and the database that it is in.
    """

    user: str
    database: str

    @property
    def quoted(self) -> str:
        """
        The account as statements name it.
        """
        name, _, host = self.user.rpartition("@")
        return f"'{_doubled(name, chr(39))}'@'{_doubled(host, chr(39))}'"

    def grant(self, rights: str, table: str) -> str:
        """
        Return the statement that grants rights on a table of the database, or on `*`.
        """
        place = table if table == "*" else f"`{table}`"
        return f"GRANT {rights} ON `{_doubled(self.database, '`')}`.{place} TO {self.quoted};"


def cannot_use(error: MySQLError, account: Account, name: str) -> StoreUnavailable:
    """
    Tell of an account that may not use the tables.
    """
    rows = account.grant("SELECT, INSERT, UPDATE", "timelines")
    changes = account.grant("SELECT, INSERT, DELETE", "timeline_changes")
    return StoreUnavailable("", f"{name} refuses access to its tables; run: {rows} {changes} {words_of(error)}")


def cannot_create(error: MySQLError, account: Account, name: str) -> StoreUnavailable:
    """
    Tell of an account that may not make the tables.
    """
    create = account.grant("CREATE, ALTER, SELECT, INSERT, UPDATE, DELETE", "*")
    return StoreUnavailable(
        "",
        f"{name} has no table 'timelines' that the account may see, nor may the account make it; run "
        "timeline_trio_mysql.SCHEMA as an administrator, grant SELECT, INSERT and UPDATE on timelines and SELECT, "
        f"INSERT and DELETE on timeline_changes, and open with create=False; or run: {create} {words_of(error)}",
    )


def _doubled(text: str, quote: str) -> str:
    return text.replace(quote, 2 * quote)
