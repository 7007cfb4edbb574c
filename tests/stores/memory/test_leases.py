"""Leases in the memory store, beside exact charges of the same counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, OnChange, TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant, LeaseReport, LeaseTerms
from sluicegate.bounds import LEASED_KEEP_US
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore

SECOND = 1_000_000
TERMS = LeaseTerms(ttl_us=1_000_000)
COUNTER = Counter("rule", TokenBucket(100, 100, SECOND), counter_prefix("test", "rule", "token_bucket", "-"))


def lease(store: MemoryStore, *reports: tuple[Any, ...], counter: Counter = COUNTER, **wish: Any) -> LeaseGrant:
    """One step of a holder; by default it answers for it that nothing was lost."""
    ask = LeaseAsk([LeaseReport(*report) for report in reports], **{"settled": True, **wish})
    (grant,) = store.lease("holder-a", TERMS, [LeaseItem(counter, "*", ask)])
    assert isinstance(grant, LeaseGrant)
    return grant


@pytest.mark.parametrize(
    "admits",
    [
        lambda store, charge: store.decide_one([charge]).admitted,
        lambda store, charge: store.decide([[charge]])[0].admitted,
        lambda store, charge: store.decide_singles([charge])[1][0][0],
        lambda store, charge: store.decide_alike(charge[0], [charge[0].prefix + charge[1]], charge[2])[0][0],
        lambda store, charge: store.decide_one([charge], peek=True).admitted,
    ],
    ids=["one", "batch", "singles", "alike", "peek"],
)
def test_every_way_to_decide_sees_what_is_out(admits: Callable[..., bool]) -> None:
    """With 61 of 100 used or out, each deciding call charges at most 39."""
    store = MemoryStore(ManualClock())
    store.decide_one([(COUNTER, "*", 1)])
    assert lease(store, serial=1, want=60).granted == 60
    assert not admits(store, (COUNTER, "*", 40))
    assert admits(store, (COUNTER, "*", 39))


def test_time_gives_back_only_what_is_not_out() -> None:
    """A second fills the bucket to 40, with 60 out whose lease has not ended."""
    clock = ManualClock()
    store = MemoryStore(clock)
    lease(store, serial=1, want=60)
    clock.advance(SECOND)
    assert store.decide_one([(COUNTER, "*", 40)]).admitted
    assert not store.decide_one([(COUNTER, "*", 1)]).admitted


def test_a_leased_counter_is_not_swept_for_a_day() -> None:
    """It goes a day after its last use, and is taken for lost then."""
    clock = ManualClock()
    store = MemoryStore(clock)
    lease(store, serial=1, want=60)
    clock.advance(LEASED_KEEP_US - SECOND)
    assert not lease(store, settled=False).lost
    clock.advance(LEASED_KEEP_US + 120 * SECOND)
    for _ in range(20):
        store.decide_one([(COUNTER, "tenant:1", 1)])
    assert lease(store, settled=False).lost


def test_a_change_of_numbers_keeps_leases() -> None:
    """A raised limit helps at once; what is out stays out."""
    store = MemoryStore(ManualClock())
    lease(store, serial=1, want=60)
    raised = COUNTER._replace(spec=TokenBucket(200, 100, SECOND), on_change=OnChange.KEEP)
    assert store.decide_one([(raised, "*", 140)]).admitted
    assert lease(store, (1, 60), counter=raised).out == 0


def test_a_refusal_that_counts_is_charged_beside_leases() -> None:
    """A counter with ``denied_counts`` uses up what is not granted."""
    store = MemoryStore(ManualClock())
    counting = COUNTER._replace(denied_counts=True)
    lease(store, serial=1, want=60)
    assert not store.decide_one([(counting, "*", 41)]).admitted
    assert lease(store).level == 0


def test_a_retired_counter_is_an_exact_one_again() -> None:
    """When nothing is out, the fast path decides it."""
    store = MemoryStore(ManualClock())
    lease(store, serial=1, want=60)
    lease(store, (1, 60, True), retire=True)
    assert store.decide_one([(COUNTER, "*", 40)]).admitted
    assert not store.decide_one([(COUNTER, "*", 1)]).admitted


def test_operators_give_back_what_was_charged_only() -> None:
    """A grant of all gives back 30 charged, not 60 that are out."""
    store = MemoryStore(ManualClock())
    lease(store, serial=1, want=60)
    answer = store.decide_one([(COUNTER, "*", 30)])
    assert store.grant([(COUNTER, "*", 100)]) == [30]
    assert store.refund(answer.receipts()) == 0
    assert lease(store).level == 40


def test_an_exact_counter_is_taken_over() -> None:
    """A window that was charged 30 exactly grants of the other 70."""
    store = MemoryStore(ManualClock())
    counter = Counter("w", FixedWindow(100, SECOND), counter_prefix("test", "w", "fixed_window", "1000000"))
    store.decide_one([(counter, "*", 30)])
    assert lease(store, counter=counter, serial=1, want=100).granted == 70


def test_coroutines_lease_too() -> None:
    """``alease`` is ``lease``."""
    store = MemoryStore(ManualClock())
    item = LeaseItem(COUNTER, "*", LeaseAsk((), 1, 5, settled=True))
    (grant,) = asyncio.run(store.alease("holder-a", TERMS, [item]))
    assert isinstance(grant, LeaseGrant)
    assert grant.granted == 5


def test_a_bad_holder_is_named() -> None:
    """The error names the value."""
    with pytest.raises(ValueError, match="'me'"):
        MemoryStore(ManualClock()).lease("me", TERMS, [])
