"""
The Redis store for timeline_trio: processes anywhere share their timelines through a Redis server or cluster.
"""

from ._open import open_redis as open_redis
from ._open import open_store as open_store
from ._store import RedisStatistics as RedisStatistics
from ._store import RedisStore as RedisStore

__all__ = ["RedisStatistics", "RedisStore", "open_redis", "open_store"]
