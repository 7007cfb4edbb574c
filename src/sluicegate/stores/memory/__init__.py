"""The store of one process."""

from __future__ import annotations

from sluicegate.stores.memory.stats import MemoryStats
from sluicegate.stores.memory.store import MemoryStore

__all__ = ["MemoryStats", "MemoryStore"]
