"""What watched counters admitted is held against their promise: no false alarm, and no breach that stays unseen."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.analytics.accuracy import Accuracy, Judge
from sluicegate.analytics.model import Watched, WatchLevel
from sluicegate.events import Admission
from sluicegate.testing import worst_excess

S = 1_000_000
SPECS: tuple[Spec, ...] = (
    TokenBucket(10, 5, S),
    TokenBucket(3, 7, 60 * S),
    LeakyBucket(10, 5, S, nodelay=True),
    FixedWindow(10, S),
    FixedWindow(20, 86_400 * S),
    SlidingWindow(10, S),
    SlidingWindow(12, S, 6),
    SlidingLog(10, S),
)


def ask(
    spec: Spec,
    at_us: int,
    cost: int,
    *,
    allowed: bool,
    fits: bool = True,
    version: int = 1,
    subject: str = "a",
    level: int = 1,
) -> Admission:
    tokens, period_us = getattr(spec, "tokens", 0), getattr(spec, "period_us", 0)
    return Admission(
        rule="api",
        subject=subject,
        algorithm=spec.algorithm,
        capacity=spec.capacity,
        tokens=tokens,
        period_us=period_us,
        window_us=spec.window_us,
        at_us=at_us,
        cost=cost,
        allowed=allowed,
        fits=fits,
        version=version,
        level=level,
    )


def played(spec: Spec, seed: int, asks: int = 400, begin_us: int = 1_700_000_000_000_000) -> list[Admission]:
    """A client that asks in bursts, decided by the algorithm itself."""
    drawn = random.Random(seed)
    state, now_us, told = None, begin_us, []
    for _ in range(asks):
        now_us += drawn.choice((0, 1, 1_000, 40_000, 300_000, 3 * S))
        cost = drawn.choice((1, 1, 1, 2, 5))
        after = spec.admit(state, now_us, cost)
        told.append(ask(spec, now_us, cost, allowed=after is not None, fits=after is not None))
        state = state if after is None else after
    return told


def found(judge: Judge, asks: list[Admission], *levels: WatchLevel) -> Accuracy:
    judge.judge(Watched(tuple(asks), levels))
    return judge.rules()[0]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_an_exact_counter_never_overshoots(spec: Spec) -> None:
    """What an algorithm admits is never too much, with and without slack, whatever the client does."""
    for seed in range(20):
        for slack_us in (0, 50_000):
            assert found(Judge(slack_us), played(spec, seed)).overshoot_tokens == 0


@given(
    st.lists(st.tuples(st.integers(0, 3 * S), st.integers(1, 12)), min_size=1, max_size=60),
    st.sampled_from([spec for spec in SPECS if isinstance(spec, TokenBucket | LeakyBucket)]),
)
def test_the_level_is_the_worst_of_all_intervals(steps: list[tuple[int, int]], spec: TokenBucket) -> None:
    """One pass finds the same excess of a bucket as looking at every interval, for histories that no bucket would admit."""
    now_us, history = 10**15, []
    for pause_us, cost in steps:
        now_us += pause_us
        history.append((now_us, cost))
    worst = worst_excess(history, spec.most_admitted)
    told = found(Judge(0), [ask(spec, at_us, cost, allowed=True) for at_us, cost in history])
    expected = 0 if worst is None else worst.admitted - worst.allowed
    assert told.overshoot_tokens == expected


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_counter_that_admits_everything_is_found(spec: Spec) -> None:
    """Three times the capacity at one moment is told with the counter, and when."""
    asks = [ask(spec, 10**15 + place, 1, allowed=True) for place in range(3 * spec.capacity)]
    told = found(Judge(0), asks)
    assert told.overshoot_tokens >= spec.capacity
    assert told.worst is not None
    assert (told.worst.rule, told.worst.subject, told.worst.at_us) == ("api", "a", asks[-1].at_us)


def test_one_token_too_many_is_found() -> None:
    """A bucket of 10 that admits the 11th at once is one token over."""
    spec = TokenBucket(10, 1, S)
    asks = [ask(spec, 10**15, 1, allowed=True) for _ in range(11)]
    assert found(Judge(0), asks).overshoot_tokens == 1


def test_two_sets_of_numbers_in_turns_are_found() -> None:
    """Nodes that decide by different numbers of one version are held to the looser ones together; a counter held to neither is found."""
    big, small = TokenBucket(250, 800, S), TokenBucket(60, 160, S)
    asks = [ask((big, small)[place % 2], 10**15 + place * 10, 1, allowed=True) for place in range(2_000)]
    assert found(Judge(0), asks).overshoot_tokens >= 1_500


def test_newer_rules_may_begin_afresh() -> None:
    """After an edit the old and the new limit together are no overshoot; going back and forth between the versions is."""
    old, new = TokenBucket(10, 1, S), TokenBucket(20, 1, S)
    asks = [ask(old, 10**15, 1, allowed=True)] * 10 + [ask(new, 10**15 + 1, 1, allowed=True, version=2)] * 20
    assert found(Judge(0), asks).overshoot_tokens == 0
    again = [*asks, *[ask(old, 10**15 + 2, 1, allowed=True)] * 10]
    assert found(Judge(0), again).overshoot_tokens == 10


def test_slack_explains_what_two_clocks_can() -> None:
    """An excess of less than twice the slack's refill, and admissions that may belong to the next window, are not told."""
    bucket = TokenBucket(10, 10, S)
    asks = [ask(bucket, 10**15, 1, allowed=True)] * 12
    assert found(Judge(100_000), asks).overshoot_tokens == 0
    assert found(Judge(50_000), asks).overshoot_tokens == 1
    window, border_us = FixedWindow(10, S), 10**15
    late = [ask(window, border_us - 30_000, 1, allowed=True)] * 20
    assert found(Judge(20_000), late).overshoot_tokens == 0
    assert found(Judge(10_000), late).overshoot_tokens == 10
    both = [*late, ask(window, border_us + 500_000, 1, allowed=True)]
    assert found(Judge(20_000), both).overshoot_tokens == 1


def test_what_was_refused_with_room_is_stranded() -> None:
    """Tokens refused by a counter that had them are counted once it has been known for a drain; those of a counter that was empty are not."""
    spec = TokenBucket(10, 10, S)
    begin_us = 10**15
    first = ask(spec, begin_us, 1, allowed=True)
    early = ask(spec, begin_us + S // 2, 3, allowed=False, fits=False)
    later = ask(spec, begin_us + 3 * S, 3, allowed=False, fits=False)
    node = WatchLevel("n", begin_us, begin_us + 9 * S, 0)
    assert found(Judge(0), [first, early, later], node).stranded_tokens == 3
    full = [ask(spec, begin_us + 3 * S, 10, allowed=True), later]
    assert found(Judge(0), [first, *full], node).stranded_tokens == 0
    other = ask(spec, begin_us + 3 * S, 3, allowed=False, fits=True)
    assert found(Judge(0), [first, other], node).stranded_tokens == 0


@pytest.mark.parametrize(
    "levels",
    [
        [],
        [("n", 0, 9, None)],
        [("n", 0, 9, 2)],
        [("n", 0, 9, 0), ("m", 0, 9, 2)],
        [("n", 0, 2, 0), ("n", 5, 9, 0)],
    ],
    ids=["nobody", "not watched", "too few", "another node too few", "a gap"],
)
def test_nothing_is_stranded_where_something_may_be_missing(levels: list[tuple[str, int, int, int | None]]) -> None:
    """Where a node did not watch the counter, or its batches are missing, nobody knows whether there was room."""
    spec, begin_us = TokenBucket(10, 10, S), 10**15
    asks = [ask(spec, begin_us, 1, allowed=True), ask(spec, begin_us + 3 * S, 1, allowed=False, fits=False)]
    told = [WatchLevel(node, begin_us + since * S, begin_us + until * S, level) for node, since, until, level in levels]
    assert found(Judge(0), asks, *told).stranded_tokens == 0


@pytest.mark.parametrize("spec", [TokenBucket(10, 5, S), FixedWindow(10, S)], ids=repr)
def test_an_exact_counter_strands_nothing(spec: Spec) -> None:
    """What an exact counter refuses did not fit."""
    for seed in range(20):
        asks = played(spec, seed)
        node = WatchLevel("n", asks[0].at_us, asks[-1].at_us + 1, 0)
        assert found(Judge(0), asks, node).stranded_tokens == 0


def test_pieces_are_judged_as_one() -> None:
    """What is judged in pieces of any size gives the same numbers; what comes late is counted as such and changes nothing."""
    spec = TokenBucket(10, 5, S)
    asks = [ask(spec, 10**15 + place * 50_000, 1, allowed=True) for place in range(300)]
    whole = found(Judge(0), asks)
    judge = Judge(0)
    for place in range(0, 300, 7):
        judge.judge(Watched(tuple(asks[place : place + 7]), ()))
    assert judge.rules() == [whole]
    judge.judge(Watched((asks[0],), ()))
    assert (judge.rules(), judge.late) == ([whole], 1)


def test_without_the_store_other_bounds_hold() -> None:
    """Admissions by a failure policy are not held against the store's promise."""
    spec = TokenBucket(1, 1, S)
    degraded = [ask(spec, 10**15, 1, allowed=True)] * 5
    judge = Judge(0)
    judge.judge(Watched(tuple(msgspec.structs.replace(each, degraded=True) for each in degraded), ()))
    assert judge.rules() == []


def test_counters_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter asked longest ago is let go and counted; a counter that was forgotten begins anew."""
    monkeypatch.setattr("sluicegate.analytics.accuracy.judge.ACCURACY_COUNTERS_MAX", 10)
    spec = TokenBucket(1, 1, S)
    judge = Judge(0)
    judge.judge(Watched(tuple(ask(spec, 10**15 + n, 1, allowed=True, subject=str(n)) for n in range(100)), ()))
    assert judge.let_go == 90
    judge.forget([("api", "99")])
    judge.judge(Watched((ask(spec, 10**15 + 200, 1, allowed=True, subject="99"),), ()))
    assert judge.rules()[0].overshoot_tokens == 0
    judge.judge(Watched((ask(spec, 10**15 + 300, 1, allowed=True, subject="99"),), ()))
    assert judge.rules()[0].overshoot_tokens == 1
