"""Leases in Redis are those of the model, to the microsecond: the memory store, which is the model, gets the same history."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import FixedWindow, OnChange, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant, LeaseReport, LeaseTerms
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter, LeaseItem, Receipt
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import RedisStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("server", ["redis", "valkey", "redis cluster"], indirect=True),
]

MS = 1_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
TERMS = LeaseTerms(ttl_us=200 * MS)
HOLDERS = ("holder-a", "holder-b")

FAMILIES: tuple[tuple[Spec, ...], ...] = (
    (TokenBucket(60, 200, SECOND), TokenBucket(20, 90, SECOND), TokenBucket(600, 7_000, SECOND)),
    (TokenBucket(50, 7, 3 * SECOND), TokenBucket(37, 999_999_999_989, 10**9)),
    (TokenBucket(10**12, 999_999_999_989, 10**9), TokenBucket(10**12 - 3, 10**12 - 11, 10**9)),
    (FixedWindow(80, 500 * MS), FixedWindow(30, 500 * MS)),
    (FixedWindow(50, DAY, align="calendar", tz="Europe/Berlin", unit="day"),),
    (SlidingWindow(80, 500 * MS), SlidingWindow(30, 500 * MS)),
    (SlidingWindow(10**12, 3_650 * DAY), SlidingWindow(10**12 - 7, 3_650 * DAY)),
    (SlidingWindow(80, 600 * MS, sub_windows=3), SlidingWindow(30, 600 * MS, sub_windows=3)),
    (SlidingLog(80, 300 * MS), SlidingLog(30, 300 * MS)),
    (SlidingLog(300, 100 * MS), SlidingLog(200, 100 * MS)),
)
"""Per family, numbers that a rule may be changed between."""

run = itertools.count()

_ask = st.tuples(
    st.just("lease"),
    st.sampled_from(HOLDERS),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 50), st.booleans()), max_size=3),
    st.integers(0, 6),
    st.sampled_from((1, 3, 20, 1_000)),
    st.sampled_from((1, 2, 8)),
    st.booleans(),
    st.sampled_from((False, False, False, True)),
    st.booleans(),
    st.sampled_from(("", "", "another life")),
)
_steps = st.lists(
    st.one_of(
        _ask,
        _ask,
        st.tuples(st.just("exact"), st.sampled_from((1, 2, 7, 40)), st.booleans()),
        st.tuples(
            st.just("wait"), st.sampled_from((0, 1, 5 * MS, 60 * MS, 202 * MS, 203 * MS, 700 * MS, 2_000 * SECOND))
        ),
        st.tuples(st.just("back"), st.sampled_from((50 * MS, 20 * SECOND))),
        st.tuples(st.just("change"), st.integers(0, 2), st.sampled_from((OnChange.KEEP, OnChange.SCALE))),
        st.tuples(st.just("refund")),
        st.tuples(st.just("grant"), st.integers(1, 60)),
    ),
    min_size=4,
    max_size=30,
)


def seen(grants: list[Any]) -> list[Any]:
    """Answers without the server's name for its life."""
    return [grant._replace(incarnation="") if isinstance(grant, LeaseGrant) else grant for grant in grants]


class Both:
    """A Redis store and the model, of which each step is asked the same."""

    def __init__(self, redis: RedisStore, clock: ManualClock, family: tuple[Spec, ...]) -> None:
        self.stores: tuple[Any, Any] = (redis, MemoryStore(clock))
        self.clock = clock
        self.family = family
        self.rule = f"lease{next(run)}"
        self.taken: list[tuple[Any, ...]] = []
        self.charges: list[Receipt] = []
        self.since_us = 0
        self.counter = self.of(family[0], OnChange.KEEP)

    def of(self, spec: Spec, how: OnChange, denied: bool = False) -> Counter:
        prefix = counter_prefix("default", self.rule, spec.algorithm, spec.shape)
        return Counter(self.rule, spec, prefix, on_change=how, denied_counts=denied)

    def step(self, step: tuple[Any, ...]) -> None:
        kind, *values = step
        self.taken.append(step)
        if kind == "wait":
            self.clock.advance(values[0])
        elif kind == "back":
            self.clock.set(self.clock.now_us() - values[0])
            # A charge dated before its counter was made is given back by neither, but they count a counter as made at different steps.
            self.charges.clear()
            self.since_us = 1 << 62
        elif kind == "change":
            self.counter = self.of(self.family[values[0] % len(self.family)], values[1])
        else:
            ours, theirs = [getattr(self, kind)(store, *values) for store in self.stores]
            assert ours == theirs, f"{self.taken}: {ours} in Redis, {theirs} in the model"

    def lease(self, store: Any, holder: str, reports: list[tuple[int, int, bool]], *asked: Any) -> list[Any]:
        ask = LeaseAsk([LeaseReport(*report) for report in reports], *asked)
        return seen(store.lease(holder, TERMS, [LeaseItem(self.counter, "*", ask)]))

    def exact(self, store: Any, cost: int, denied: bool) -> Any:
        counter = self.counter._replace(denied_counts=denied)
        answer = store.decide_one([(counter, "*", min(cost, counter.spec.capacity))])
        if answer.now_us >= self.since_us:
            self.charges = list(answer.receipts())
        return answer.admitted, answer.now_us, answer.verdicts()

    def refund(self, store: Any) -> int:
        """Of the last charge that was made."""
        return int(store.refund([receipt._replace(counter=self.counter) for receipt in self.charges]))

    def grant(self, store: Any, tokens: int) -> Any:
        if isinstance(self.counter.spec, SlidingLog):
            # A log of which all was given back is deleted by a change of its limit, and then found lost in Redis where a lease is out.
            return []
        return store.grant([(self.counter, "*", tokens)])


@pytest.mark.parametrize("layout", ["", "&layout=packed&expected_clients=300"], ids=["plain", "packed"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family[0].algorithm}-{family[0].capacity}")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=_steps)
def test_a_history_in_redis_is_that_of_the_model(
    open_store: Callable[..., RedisStore], family: tuple[Spec, ...], layout: str, steps: list[tuple[Any, ...]]
) -> None:
    """Grants, reports, returns, exact charges, refunds, changed numbers and a clock that goes back give equal answers."""
    clock = ManualClock()
    store = open_store(clock, layout)
    both = Both(store, clock, family)
    try:
        for step in steps:
            both.step(step)
    finally:
        store.close()
