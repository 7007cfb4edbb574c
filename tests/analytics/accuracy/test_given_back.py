"""What is refunded, granted or reset makes no false overshoot, and hides no real one for long."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace as changed

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.analytics.accuracy import Judge
from sluicegate.analytics.model import Watched
from sluicegate.bounds import ACCURACY_BLIND_US
from sluicegate.events import ASK, GIVEN_BACK, RESET, Admission

S = 1_000_000
BEGIN_US = 1_700_000_000_000_000
SPECS: tuple[Spec, ...] = (
    TokenBucket(10, 5, S),
    LeakyBucket(10, 5, S, nodelay=True),
    FixedWindow(10, S),
    SlidingWindow(10, S),
    SlidingLog(10, S),
)


def told(spec: Spec, at_us: int, cost: int, kind: str = ASK, *, allowed: bool = True) -> Admission:
    return Admission(
        rule="api",
        subject="a",
        algorithm=spec.algorithm,
        capacity=spec.capacity,
        tokens=getattr(spec, "tokens", 0),
        period_us=getattr(spec, "period_us", 0),
        window_us=spec.window_us,
        at_us=at_us,
        cost=cost,
        allowed=allowed and kind == ASK,
        fits=allowed,
        version=1,
        level=1,
        kind=kind,
    )


def any_counter(at_us: int) -> Admission:
    return Admission("", "", "", 0, 0, 0, 0, at_us, 0, allowed=False, level=32, kind=RESET)


def overshoot(judge: Judge, *asks: Admission) -> int:
    judge.judge(Watched(asks, ()))
    return max((rule.overshoot_tokens for rule in judge.rules()), default=0)


def full(spec: Spec, at_us: int) -> list[Admission]:
    return [told(spec, at_us, 1)] * spec.capacity


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize("skew_us", [-90_000, 0, 90_000])
def test_what_is_given_back_may_be_admitted_again(spec: Spec, skew_us: int) -> None:
    """A full counter that got tokens back admits them again without an overshoot, whichever clock told of it; one more token is found."""
    at_us = BEGIN_US + S // 2
    asks = [*full(spec, at_us), told(spec, at_us + skew_us, 4, GIVEN_BACK), *[told(spec, at_us, 1)] * 4]
    assert overshoot(Judge(100_000), *asks) == 0
    more = [told(spec, at_us, 1)] * (2 * spec.capacity)
    assert overshoot(Judge(0), *full(spec, at_us), told(spec, at_us, 4, GIVEN_BACK), *more) > 0


def test_without_the_record_it_is_an_overshoot() -> None:
    """The same history without what was given back is found: the record makes the difference."""
    spec = SPECS[0]
    assert overshoot(Judge(0), *full(spec, BEGIN_US), *[told(spec, BEGIN_US, 1)] * 4) == 4


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_counter_with_refunds_never_overshoots(spec: Spec) -> None:
    """Whatever a client asks and gets back, the algorithm's own decisions are no overshoot."""
    for seed in range(30):
        drawn, state, now_us, asks = random.Random(seed), None, BEGIN_US, []
        for _ in range(300):
            now_us += drawn.choice((0, 1_000, 40_000, 300_000))
            cost = drawn.choice((1, 1, 2, 5))
            after = spec.admit(state, now_us, cost)
            asks.append(told(spec, now_us, cost, allowed=after is not None))
            if after is None:
                continue
            state = after
            if drawn.random() < 0.3:
                asks.append(told(spec, now_us, cost, GIVEN_BACK))
                state = spec.refund(state, now_us, cost, now_us)
        assert overshoot(Judge(0), *asks) == 0


@pytest.mark.parametrize("reset_at_us", [BEGIN_US + 4 * S, BEGIN_US + 5 * S])
def test_a_reset_begins_anew(reset_at_us: int) -> None:
    """After a reset the whole limit is there again; when leases of before are over, what is too much is found again."""
    spec = TokenBucket(100, 1, S)
    after_us = BEGIN_US + 5 * S
    asks = [*full(spec, BEGIN_US), told(spec, reset_at_us, 0, RESET), *full(spec, after_us)]
    judge = Judge(0)
    assert overshoot(judge, *asks) == 0
    later_us = after_us + ACCURACY_BLIND_US + S
    assert overshoot(judge, *full(spec, later_us), *full(spec, later_us)) == 100


def test_a_change_by_hand_elsewhere_is_heeded_before_it_is_told() -> None:
    """A node hears of it seconds later: what was admitted meanwhile is no overshoot, of no counter, also where the piece ends before."""
    spec = TokenBucket(100, 1, S)
    asks = (*full(spec, BEGIN_US), *full(spec, BEGIN_US + 2 * S), any_counter(BEGIN_US + 6 * S))
    judge = Judge(0)
    assert judge.judge(Watched(asks, ()), BEGIN_US + 3 * S) == []
    assert overshoot(judge, *asks) == 0


def test_pieces_that_overlap_count_once() -> None:
    """Asks and what is given back are judged once, though the next piece holds them again."""
    spec = TokenBucket(10, 1, S)
    asks = (
        *full(spec, BEGIN_US),
        told(spec, BEGIN_US + 150_000, 5, GIVEN_BACK),
        *[told(spec, BEGIN_US + 80_000, 1)] * 5,
    )
    judge = Judge(100_000)
    assert judge.judge(Watched(asks, ()), BEGIN_US + 100_000) == []
    judge.judge(Watched(asks[10:11], ()), BEGIN_US + S)
    last = [told(spec, BEGIN_US + 100_000, 1)] * 5
    judge.judge(Watched(tuple(last), ()), BEGIN_US + 2 * S)
    assert [(rule.asks, rule.overshoot_tokens) for rule in judge.rules()] == [(15, 0)]
    assert judge.late == 5


def test_what_was_given_back_makes_nothing_stranded() -> None:
    """After a refund nobody knows for one drain how much room there was."""
    spec = TokenBucket(10, 10, S)
    refused = changed(told(spec, BEGIN_US + 3 * S, 5, allowed=False), fits=False)
    asks = [
        told(spec, BEGIN_US, 1),
        *full(spec, BEGIN_US + 3 * S - 1),
        told(spec, BEGIN_US + 3 * S, 9, GIVEN_BACK),
        refused,
    ]
    judge = Judge(0)
    judge.judge(Watched(tuple(asks), ()))
    assert [rule.stranded_tokens for rule in judge.rules()] == [0]


def test_a_kind_that_is_not_known_changes_nothing() -> None:
    """What a later release may tell of a counter is passed over."""
    spec = TokenBucket(10, 1, S)
    assert overshoot(Judge(0), *full(spec, BEGIN_US), told(spec, BEGIN_US, 5, "other"), told(spec, BEGIN_US, 1)) == 1
