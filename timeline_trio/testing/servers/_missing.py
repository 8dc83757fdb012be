"""
Tells which servers this machine cannot start.
"""

from __future__ import annotations

from ._errors import ServerMissing
from ._mysql import find_mariadb
from ._postgres import find_postgres
from ._redis import find_redis


def missing_servers() -> list[ServerMissing]:
    """
    Return what `start_mariadb`, `start_postgres` and `start_redis` would raise here, without starting anything.

    Oracle MySQL is left out: Debian's releases have no package of it.
    """
    missing: list[ServerMissing] = []
    for find in (find_mariadb, find_postgres, find_redis):
        try:
            find()
        except ServerMissing as error:
            missing.append(error)
    return missing
