"""
The PostgreSQL store for timeline_trio: instances on many machines share their timelines through a database.
"""

from ._open import open_postgres as open_postgres
from ._open import open_store as open_store
from ._schema import SCHEMA as SCHEMA
from ._store import PostgresStatistics as PostgresStatistics
from ._store import PostgresStore as PostgresStore

__all__ = ["SCHEMA", "PostgresStatistics", "PostgresStore", "open_postgres", "open_store"]
