"""Counters without rules, for doors whose callers bring the policy along."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import Outcome, TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.limiter import Limiter
from sluicegate.testing.store_contract import counter_for

COUNTER = counter_for(TokenBucket(3, 3, 60 * US_PER_S), "inline")


@pytest.fixture
def limiter() -> Limiter:
    return Limiter.from_quota("1/minute", clock=ManualClock())


def test_one_counter(limiter: Limiter) -> None:
    """``check_counter`` decides one charge: described like a rule's, with peek and receipt, version 0."""
    decision = limiter.check_counter(COUNTER, "s", 2, receipt=True)
    assert (decision.allowed, decision.remaining, decision.limit, decision.rule) == (True, 1, 3, "inline")
    assert decision.version == 0
    assert limiter.check_counter(COUNTER, "s", 2).outcome is Outcome.DENIED
    assert limiter.check_counter(COUNTER, "s", 0, peek=True).remaining == 1
    assert limiter.refund(decision) == 1
    assert limiter.check_counter(COUNTER, "s", 3).allowed


@pytest.mark.parametrize("cost", [0, -1, True, 1.5, "1", None])
def test_bad_costs(limiter: Limiter, cost: object) -> None:
    """A cost that is none is refused by name."""
    with pytest.raises(InvalidRequest, match="cost"):
        limiter.check_counter(COUNTER, "s", cost)  # type: ignore[arg-type]


def test_many_counters(limiter: Limiter) -> None:
    """A batch is decided in order; decisions equal those of single calls, and refusals are counted by counter."""
    decisions = limiter.check_counters_many([(COUNTER, "a", 1)] * 4 + [(COUNTER, "b", 9), (COUNTER, "b", 1)])
    singles = [limiter.check_counter(COUNTER, "x", cost) for cost in (1, 1, 1, 1)] + [
        limiter.check_counter(COUNTER, "y", cost) for cost in (9, 1)
    ]
    assert decisions == singles
    assert [d.outcome.value for d in decisions] == ["allowed"] * 3 + ["denied", "never_fits", "allowed"]
    assert limiter.stats.refused == {("inline", Outcome.DENIED): 2, ("inline", Outcome.NEVER_FITS): 2}
    assert limiter.stats.allowed == 8
    assert [len(d.receipts()) for d in decisions] == [1, 1, 1, 0, 0, 1]


def test_the_switch_holds_here_too(limiter: Limiter) -> None:
    """While the limiter is switched off, counters are not charged."""
    limiter.enabled = False
    assert all(d.allowed for d in limiter.check_counters_many([(COUNTER, "a", 1)] * 9))
    assert limiter.check_counter(COUNTER, "a", 9).allowed
    limiter.enabled = True
    assert limiter.check_counter(COUNTER, "a", 0, peek=True).remaining == 3
