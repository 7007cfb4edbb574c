"""The store that fails when told to."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FakeClock, FlakyStore
from sluicegate.testing.store_contract import counter_for

CHARGE = (counter_for(TokenBucket(5, 5, 60 * US_PER_S)), "s", 1)


def test_down_fails_before_the_store() -> None:
    """While it is down every call fails without effect."""
    store = FlakyStore(MemoryStore(FakeClock()))
    store.down = True
    for call in (
        lambda: store.decide([[CHARGE]]),
        lambda: store.decide_one([CHARGE]),
        lambda: store.decide_singles([CHARGE]),
        lambda: store.refund([]),
        lambda: store.reset([]),
    ):
        with pytest.raises(StoreError, match="down"):
            call()
    assert (store.calls, store.failures) == (5, 5)
    store.down = False
    assert store.decide_one([CHARGE]).verdicts()[0].remaining == 4


def test_the_next_calls_fail() -> None:
    """``fail_next`` fails that many calls without effect, ``lose_next`` that many with effect."""
    store = FlakyStore(MemoryStore(FakeClock()))
    store.fail_next = 2
    for _ in range(2):
        with pytest.raises(StoreError, match="down"):
            store.decide_one([CHARGE])
    store.lose_next = 1
    with pytest.raises(StoreError, match="lost"):
        store.decide_one([CHARGE])
    assert store.decide_one([CHARGE]).verdicts()[0].remaining == 3
    assert (store.calls, store.failures) == (4, 3)
