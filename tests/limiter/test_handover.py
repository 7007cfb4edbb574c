"""From an outage back to the store."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluicegate.bounds import FALLBACK_HANDOVER_US_MAX
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.rules.report import bounds_report
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

S = US_PER_S


def left(site) -> int | None:
    """What the store itself has left, whatever the local counters say."""
    (charge,) = site.limiter.engine.plan(Facts()).charges
    (verdict,) = site.store.store.decide_one([(charge[0], charge[1], 0)], peek=True).verdicts()
    return verdict.remaining


def test_the_store_is_charged_what_it_missed(site_of) -> None:
    """What was admitted without the store is charged to it when it is back, once, after the first request. P52"""
    site = site_of("name: a, quota: 10/hour")
    site.store.down = True
    assert [site.ask(Facts(), 2).allowed for _ in range(3)] == [True] * 3
    site.store.down = False
    assert left(site) == 10
    assert not site.ask(Facts()).degraded
    assert left(site) == 3
    assert site.ask(Facts()).allowed
    assert left(site) == 2
    stats = site.limiter.stats
    assert (stats.settled, stats.handovers) == (1, 2)


def test_no_second_burst(site_of) -> None:
    """A client that spent its burst without the store does not get another from the store, which is full."""
    site = site_of("name: a, quota: 10/10s")
    site.store.down = True
    assert sum(site.ask(Facts()).allowed for _ in range(20)) == 10
    site.clock.advance(20 * S)
    assert sum(site.ask(Facts()).allowed for _ in range(20)) == 10
    site.store.down = False
    decision = site.ask(Facts())
    assert (decision.allowed, decision.refusal, decision.degraded) == (False, "rate", True)
    assert decision.results[0].degraded == "handover"
    assert decision.retry_after_us == S
    for _ in range(40):
        site.clock.advance(S)
        assert [site.ask(Facts()).allowed for _ in range(2)] == [True, False]


def test_a_client_that_is_refused_here_finds_the_store_back(site_of) -> None:
    """A request the local counter refuses asks the store with a peek, so that the hand-over begins; it charges nothing."""
    site = site_of("name: a, quota: 2/hour")
    site.store.down = True
    assert [site.ask(Facts()).allowed for _ in range(3)] == [True, True, False]
    site.store.down = False
    assert not site.ask(Facts()).allowed
    assert left(site) == 0
    assert site.limiter.failing_since_us is None
    calls = site.store.calls
    assert not site.ask(Facts()).allowed  # known to be back: the store is not asked
    assert site.store.calls == calls
    site.clock.advance(FALLBACK_HANDOVER_US_MAX)
    assert not site.ask(Facts()).degraded


def test_a_queue_is_charged_what_still_waits(site_of) -> None:
    """The queue of a leaky bucket that drained during the outage owes nothing for it: it goes on at its rate when the store is back."""
    site = site_of("name: a, quota: 600/minute, algorithm: leaky_bucket, max_delay_ms: 500")
    site.store.down = True
    for _ in range(100):
        site.ask(Facts())
        site.clock.advance(S // 10)
    while site.ask(Facts()).allowed:
        pass
    site.store.down = False
    admitted = 0
    for _ in range(20):
        site.clock.advance(S // 10)
        admitted += site.ask(Facts()).allowed
    assert 18 <= admitted <= 20


def test_what_the_store_refuses_is_given_back_here(site_of) -> None:
    """During the hand-over the local counter is charged first and given back if the store refuses."""
    site = site_of("name: a, quota: 4/hour", "name: b, match: {path: /b}, quota: 1/hour")
    site.store.down = True
    assert site.ask(Facts()).allowed
    site.store.down = False
    assert site.ask(Facts(path="/b")).allowed
    assert [site.ask(Facts(path="/b")).refusal for _ in range(5)] == ["rate"] * 5
    assert [site.ask(Facts()).allowed for _ in range(3)] == [True, True, False]


def test_the_hand_over_ends(site_of) -> None:
    """After one drain only the store decides, and what its hand-over cost is gone."""
    site = site_of("name: a, quota: 6/6s", nodes=3)
    site.store.down = True
    assert [site.ask(Facts()).allowed for _ in range(3)] == [True, True, False]
    site.store.down = False
    site.clock.advance(3 * S)
    assert [site.ask(Facts()).degraded for _ in range(2)] == [False, True]
    site.clock.advance(6 * S)
    assert [site.ask(Facts()).allowed for _ in range(7)] == [True] * 6 + [False]


def test_untouched_counters_are_not_asked(site_of) -> None:
    """A client that asked for nothing during the outage has its whole limit after it."""
    site = site_of("name: a, per: [user], quota: 6/hour", nodes=3)
    site.store.down = True
    assert site.ask(Facts(user="ann")).allowed
    site.store.down = False
    assert [site.ask(Facts(user="bob")).allowed for _ in range(7)] == [True] * 6 + [False]
    assert site.limiter.stats.handovers == 0


def test_a_store_that_fails_during_the_hand_over(site_of) -> None:
    """What the local counter was charged for the hand-over stands for the decision without the store: it is charged once."""
    site = site_of("name: a, quota: 4/hour")
    site.store.down = True
    assert site.ask(Facts()).allowed
    site.store.down = False
    assert site.ask(Facts()).allowed
    site.store.down = True
    assert [site.ask(Facts()).allowed for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("fault", ["lose_next", "fail_next"])
def test_the_settlement_is_not_repeated(site_of, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Where the settlement fails it may have been made, so it is not made again; no decision hears of it. P54"""
    site = site_of("name: a, quota: 10/hour")
    site.store.down = True
    assert site.ask(Facts(), 3).allowed
    site.store.down = False
    before = site.store._before

    def fail_the_second_call() -> None:
        if site.store.calls == 2:
            setattr(site.store, fault, 1)
        before()

    monkeypatch.setattr(site.store, "_before", fail_the_second_call)
    settled = 3 if fault == "lose_next" else 0
    assert not site.ask(Facts()).degraded
    assert left(site) == 9 - settled
    assert site.store.failures == 2
    assert not site.ask(Facts()).degraded
    assert left(site) == 8 - settled


def test_receipts_of_a_hand_over_give_back_both(single_site_of) -> None:
    """A request that passed both counters is given back in both."""
    site = single_site_of("name: a, quota: 4/hour")
    site.store.down = True
    assert site.ask(Facts()).allowed
    site.store.down = False
    assert site.ask(Facts()).allowed
    decision = site.ask(Facts(), 2, receipt=True)
    assert left(site) == 0
    assert site.run(site.limiter.arefund(decision)) == 2
    assert left(site) == 2
    assert [site.ask(Facts()).allowed for _ in range(3)] == [True, True, False]


def test_peeks_settle_nothing(single_site_of) -> None:
    """A peek after an outage says what both counters would, and charges neither."""
    site = single_site_of("name: a, quota: 4/hour")
    site.store.down = True
    assert [site.ask(Facts()).allowed for _ in range(5)] == [True] * 4 + [False]
    site.store.down = False
    assert not site.ask(Facts(), peek=True).allowed
    assert left(site) == 4
    assert site.limiter.stats.settled == 0
    # However long after the peek, the debt is there.
    site.clock.advance(FALLBACK_HANDOVER_US_MAX)
    assert not site.ask(Facts()).allowed
    assert (left(site), site.limiter.stats.settled) == (0, 1)


def test_a_reset_ends_the_hand_over_of_its_counters(site_of) -> None:
    """After a reset the counter is full, here and in the store, and owes nothing."""
    site = site_of("name: a, quota: 4/hour")
    site.store.down = True
    assert site.ask(Facts(), 4).allowed
    site.store.down = False
    site.run(site.limiter.areset(Facts()))
    assert site.ask(Facts(), 4).allowed
    assert site.limiter.stats.settled == 0


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_window", "sliding_log"])
def test_every_algorithm_is_settled(algorithm: str) -> None:
    """The store's counter of any algorithm bears what was admitted without it, as much as fits."""
    clock = ManualClock(1_700_000_000_000_000)
    shared = MemoryStore(clock)
    store = FlakyStore(shared)
    limiter = Limiter.from_quota("5/hour", algorithm, store, clock)
    limiter.check("k", 2)
    store.down = True
    assert limiter.check("k", 4).allowed
    store.down = False
    assert limiter.check("k").allowed
    other = Limiter.from_quota("5/hour", algorithm, shared, clock)
    assert other.peek("k").remaining == 0


def test_without_an_outage_nothing_is_kept(site_of) -> None:
    """While the store never fails, no local counter exists and nothing is remembered."""
    site = site_of("name: a, quota: 4/hour")
    for _ in range(9):
        site.ask(Facts())
    assert not site.limiter._outage.active
    assert len(site.limiter._fallback.store) == 0


STEP = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 20_000_000)),
    st.tuples(st.just("ask"), st.integers(0, 3), st.integers(1, 12), st.integers(1, 2)),
    st.tuples(st.just("store"), st.booleans()),
)
SATURATED = [("ask", 0, 12, 1), ("store", False), ("ask", 0, 12, 1)] + [("wait", 1_000_000), ("ask", 0, 12, 1)] * 10
RECOVERED = (
    [("store", True)] + [("wait", 1_000_000), ("ask", 0, 12, 1)] * 11 + [("wait", 12_000_000), ("ask", 0, 12, 1)]
)


@settings(max_examples=150, deadline=None)
@given(
    nodes=st.integers(1, 4),
    capacity=st.integers(1, 10),
    steps=st.lists(STEP, max_size=60),
    start=st.sampled_from(["full", "empty"]),
)
@example(nodes=1, capacity=10, steps=SATURATED + RECOVERED, start="full")
@example(nodes=1, capacity=10, steps=[*SATURATED[:5], *RECOVERED[:3], *RECOVERED[-2:]], start="full")
@example(nodes=1, capacity=10, steps=(SATURATED[1:5] + RECOVERED) * 3, start="empty")
@example(nodes=3, capacity=7, steps=(SATURATED[1:5] + RECOVERED[:9]) * 3, start="empty")
def test_what_an_outage_admits(nodes: int, capacity: int, steps: list[tuple], start: str) -> None:
    """However a fleet is asked, any interval admits at most capacity + rate·Δ and what ``rules bounds`` says for each outage in it.

    Each node sees the client when the store is back, as it does where the balancer spreads its requests.
    """
    clock = ManualClock()
    shared = MemoryStore(clock)
    stores = [FlakyStore(shared) for _ in range(nodes)]
    text = f"version: 1\nrules: [{{name: a, quota: {capacity}/10s, fallback_start: {start}}}]"
    rules = load_rules(text, "rules.yaml")
    limiters = [Limiter.from_rules(rules, store, clock, nodes=nodes) for store in stores]
    (row,) = bounds_report(rules, nodes=nodes)
    assert row.outage_extra is not None
    admitted: list[tuple[int, int]] = []
    outages = 0

    def ask(node: int, times: int, cost: int) -> None:
        for _ in range(times):
            if limiters[node % nodes].check(Facts(), cost).allowed:
                admitted.append((clock.monotonic_us(), cost))

    for kind, *numbers in steps:
        if kind == "wait":
            clock.advance(numbers[0])
        elif kind == "ask":
            ask(*numbers)
        else:
            (up,) = numbers
            outages += not stores[0].down and not up
            for store in stores:
                store.down = not up
            for node in range(nodes if up else 0):
                ask(node, 1, 1)
    spec = rules.rules[0].quotas[None].specs[0]
    for first, (began_us, _) in enumerate(admitted):
        total = 0
        for now_us, cost in admitted[first:]:
            total += cost
            assert total <= spec.most_admitted(now_us - began_us + 1) + outages * row.outage_extra
