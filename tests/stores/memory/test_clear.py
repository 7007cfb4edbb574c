"""Forgetting everything between two tests of an application."""

from __future__ import annotations

import pytest

from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore


def test_a_cleared_store_counts_anew() -> None:
    """Every counter starts again, also by the fast path of a quota limiter; what was held is told and counted."""
    store = MemoryStore(ManualClock())
    limiter = Limiter.from_quota("2/minute", store=store)
    other = Limiter.from_quota("1/hour", algorithm="sliding_log", store=store, name="other")
    assert [limiter.hit("k") for _ in range(3)] == [True, True, False]
    assert other.check("k")
    assert store.clear() == 2
    assert len(store) == 0
    assert store.stats.resets == 2
    assert [limiter.hit("k") for _ in range(3)] == [True, True, False]
    assert other.check("k")
    assert not other.check("k")


def test_a_closed_store_cannot_be_cleared() -> None:
    """After ``close`` there is nothing to forget, and every call says so."""
    store = MemoryStore(ManualClock())
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.clear()
