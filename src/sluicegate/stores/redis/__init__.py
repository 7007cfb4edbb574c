"""Counters in Redis or Valkey, shared by all processes that use it. Needs the extra ``redis``."""

from __future__ import annotations

from sluicegate.stores.redis.settings import RedisSettings
from sluicegate.stores.redis.stats import RedisStats
from sluicegate.stores.redis.store import RedisStore

__all__ = ["RedisSettings", "RedisStats", "RedisStore"]
