"""Counters in Redis or Valkey, shared by all processes that use it. The names here need the extra ``redis``.

They are imported when they are first asked for: what tells the scripts of a counter (``definitions``, ``scripts``) needs no client,
and serves programs where none is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluicegate.stores.redis.settings import RedisSettings
    from sluicegate.stores.redis.stats import RedisStats
    from sluicegate.stores.redis.store import RedisStore

__all__ = ["RedisSettings", "RedisStats", "RedisStore"]

_MODULES = {"RedisSettings": "settings", "RedisStats": "stats", "RedisStore": "store"}


def __getattr__(name: str) -> Any:
    """Import a public name; raises MissingExtra where it needs what is not installed."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
