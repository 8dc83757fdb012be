"""
The MySQL and MariaDB store for timeline-trio: instances on any number of machines share their timelines.
"""

from ._open import open_mysql as open_mysql
from ._open import open_mysql_on as open_mysql_on
from ._open import open_store as open_store
from ._options import MySQLAddress as MySQLAddress
from ._schema import SCHEMA as SCHEMA
from ._store import MySQLStatistics as MySQLStatistics
from ._store import MySQLStore as MySQLStore

__all__ = [
    "SCHEMA",
    "MySQLAddress",
    "MySQLStatistics",
    "MySQLStore",
    "open_mysql",
    "open_mysql_on",
    "open_store",
]
