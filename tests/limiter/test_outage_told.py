"""Who wants to know is told when a limiter's store goes away and comes back."""

from __future__ import annotations

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore


@pytest.mark.parametrize("policy", ["local", "open", "closed"])
async def test_outages_are_told(policy: str) -> None:
    """Each failed call is told to everybody with its error, the first answered one after it with None, and no other."""
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_quota("9/minute", store=store, clock=clock, on_store_failure=policy)
    first: list[StoreError | None] = []
    second: list[StoreError | None] = []
    limiter.tell_outages(first.append)
    limiter.tell_outages(second.append)
    limiter.check("ann")
    assert first == []
    store.down = True
    limiter.check("ann")
    await limiter.acheck("ann")
    limiter.check_many(["ann"])
    assert [type(error) for error in first] == [StoreError] * 3
    store.down = False
    limiter.check("ann")
    limiter.check("ann")
    assert first[3:] == [None]
    clock.advance(3600 * US_PER_S)
    for _ in range(3):
        limiter.check("bob")
    store.fail_next = 1
    limiter.check("bob")
    await limiter.acheck("bob")
    assert [error is None for error in first[4:]] == [False, True]
    assert second == first
