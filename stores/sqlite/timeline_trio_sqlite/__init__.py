"""
The SQLite store for timeline_trio: instances on one machine share their timelines through a database file.
"""

from ._open import open_sqlite as open_sqlite
from ._open import open_store as open_store
from ._options import Journal as Journal
from ._options import Synchronous as Synchronous
from ._schema import SCHEMA as SCHEMA
from ._store import SQLiteStatistics as SQLiteStatistics
from ._store import SQLiteStore as SQLiteStore

__all__ = ["SCHEMA", "Journal", "SQLiteStatistics", "SQLiteStore", "Synchronous", "open_sqlite", "open_store"]
