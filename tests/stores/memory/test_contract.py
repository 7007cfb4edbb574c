"""The memory store, and a wrapper around it, keep the contract of stores."""

from __future__ import annotations

from sluicegate.clock import ManualClock
from sluicegate.stores.base import Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, StoreContract


class TestMemoryStore(StoreContract):
    def new_store(self, clock: ManualClock) -> Store:
        return MemoryStore(clock)


class TestSmallMemoryStore(StoreContract):
    """With room for few counters the answers are the same, as long as they fit."""

    def new_store(self, clock: ManualClock) -> Store:
        return MemoryStore(clock, max_counters=64)


class TestFlakyStore(StoreContract):
    """A wrapper that never fails is as good as what it wraps."""

    def new_store(self, clock: ManualClock) -> Store:
        return FlakyStore(MemoryStore(clock))
