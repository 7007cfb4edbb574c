"""A node's share of a limit."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.share import share_of
from sluicegate.bounds import PERIOD_US_MAX
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter.shares import Shares
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.store_contract import counter_for

S = US_PER_S
SHARES = [
    (TokenBucket(100, 100, 60 * S), 3, TokenBucket(33, 100, 180 * S)),
    (TokenBucket(7, 7, 60 * S), 10, TokenBucket(1, 7, 600 * S)),
    (TokenBucket(5, 1, S), 1, TokenBucket(5, 1, S)),
    (LeakyBucket(4, 2, S, 500_000), 2, LeakyBucket(2, 1, S, 500_000)),
    (LeakyBucket(4, 2, S, nodelay=True), 3, LeakyBucket(1, 2, 3 * S, nodelay=True)),
    (FixedWindow(5, 10 * S), 1, TokenBucket(5, 5, 10 * S)),
    (FixedWindow(50, 10 * S), 4, TokenBucket(12, 50, 40 * S)),
    (SlidingWindow(6, 12 * S, 6), 2, TokenBucket(3, 6, 24 * S)),
    (SlidingLog(4, 10 * S), 8, TokenBucket(1, 4, 80 * S)),
    (Ban(), 9, Ban()),
]


@pytest.mark.parametrize("spec, nodes, share", SHARES, ids=str)
def test_shares_by_hand(spec: Spec, nodes: int, share: Spec) -> None:
    """The rate divided by N exactly, the capacity rounded down and at least 1, always a bucket; a ban stays one."""
    assert share_of(spec, nodes) == share


@given(
    capacity=st.integers(1, 10**6),
    tokens=st.integers(1, 10**6),
    period_us=st.integers(10**4, 10**9),
    nodes=st.integers(1, 10**5),
)
def test_the_rate_is_divided_exactly(capacity: int, tokens: int, period_us: int, nodes: int) -> None:
    """N shares have the whole rate, to the last fraction, and no more capacity than the whole, or N tokens."""
    spec = TokenBucket(capacity, tokens, period_us)
    share = share_of(spec, nodes)
    if share.period_us < PERIOD_US_MAX:
        assert Fraction(share.tokens, share.period_us) * nodes == Fraction(tokens, period_us)
    assert nodes * share.capacity <= max(capacity, nodes)


@pytest.mark.parametrize("spec", [TokenBucket(1, 1, PERIOD_US_MAX), TokenBucket(10**9, 1, 10**6)], ids=str)
def test_slow_limits_have_shares_too(spec: TokenBucket) -> None:
    """A limit of a token in ten years, or of decades to fill, can be divided by any number."""
    for nodes in (1, 3, 100_000):
        assert 1 <= share_of(spec, nodes).capacity <= spec.capacity


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30), st.integers(0, 5)), max_size=30))
def test_a_changing_number_of_nodes_mints_nothing(steps: list[tuple[int, int, int]]) -> None:
    """However N changes, the fraction of the limit that is spent never grows beyond 1 plus what the largest share refilled."""
    spec = TokenBucket(24, 24, 60 * S)
    counter, shares, clock = counter_for(spec), Shares(), ManualClock()
    store = MemoryStore(clock)
    spent = Fraction(0)
    for nodes, asks, seconds in steps:
        share = shares.of(counter, nodes).local
        for _ in range(asks):
            if store.decide_one([(share, "s", 1)]).admitted:
                spent += Fraction(1, share.spec.capacity)
        clock.advance(seconds * S)
    # A drain takes as long for a share as for the whole (its capacity rounded down, so never longer); 24 and 1 to 12 nodes: at least a half of it.
    assert spent <= 1 + Fraction(sum(seconds for _, _, seconds in steps), 30)


def test_shares_are_kept_ready() -> None:
    """The share of a counter is the same object each time, as the memory store likes it, and another for another N."""
    shares, counter = Shares(), counter_for(TokenBucket(5, 5, S))
    assert shares.of(counter, 2) is shares.of(counter, 2)
    assert shares.of(counter, 2).local != shares.of(counter, 3).local
    assert shares.of(counter, 2).debt.denied_counts
