"""The short ways through the memory store say what the long way says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import FixedWindow, LeakyBucket, OnChange, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.verdict import Brief
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.stores.base import Answer, Counter, Request
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.store_contract import counter_for


class ReferenceStore(MemoryStore):
    """The memory store with nothing but the readable path."""

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        with self._lock:
            now_us = self.clock.now_us()
            self._prepare_if_due(now_us)
            return self._decide(request, now_us, peek=peek)

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        with self._lock:
            now_us = self.clock.now_us()
            self._prepare_if_due(now_us)
            return [self._decide(request, now_us, peek=peek) for request in requests]

    def _prepare_if_due(self, now_us: int) -> None:
        if now_us >= self._table.wake_us:
            self._prepare(now_us)


# Pairs are old and new numbers of one rule, so that counters are carried back and forth.
COUNTERS: list[Counter] = [
    counter_for(TokenBucket(3, 3, 10 * US_PER_S), "bucket"),
    counter_for(TokenBucket(9, 7, 10 * US_PER_S), "bucket"),
    counter_for(FixedWindow(4, 5 * US_PER_S), "window", denied_counts=True),
    counter_for(FixedWindow(6, 5 * US_PER_S), "window", on_change=OnChange.SCALE),
    counter_for(SlidingWindow(5, 8 * US_PER_S), "sliding"),
    counter_for(SlidingWindow(5, 6 * US_PER_S, sub_windows=3), "strict", on_change=OnChange.RESET),
    counter_for(SlidingWindow(2, 6 * US_PER_S, sub_windows=3), "strict", on_change=OnChange.RESET),
    counter_for(SlidingLog(3, 7 * US_PER_S), "log", shadow=True),
    counter_for(LeakyBucket(3, 1, US_PER_S), "leaky"),
]
charges = st.tuples(st.sampled_from(COUNTERS), st.sampled_from(["a", "b"]), st.sampled_from([1, 1, 1, 2, 3, 10]))
requests = st.lists(charges, min_size=1, max_size=4, unique_by=lambda charge: charge[0].name + charge[1])
steps = st.one_of(
    st.tuples(st.just("one"), requests),
    st.tuples(st.just("peek"), requests),
    st.tuples(st.just("many"), st.lists(requests, max_size=4)),
    st.tuples(st.just("singles"), st.lists(charges.filter(lambda charge: not charge[0].shadow), max_size=4)),
    st.tuples(
        st.just("alike"),
        st.tuples(
            st.sampled_from([counter for counter in COUNTERS if not counter.shadow and not counter.denied_counts]),
            st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4),
            st.sampled_from([1, 1, 2, 10]),
        ),
    ),
    st.tuples(st.just("refund"), st.integers(0, 5)),
    st.tuples(st.just("reset"), charges),
    st.tuples(st.just("advance"), st.integers(0, 70 * US_PER_S)),
    st.tuples(st.just("back"), st.integers(0, 5 * US_PER_S)),
)


def described(answer: Answer) -> tuple[object, ...]:
    return answer.admitted, answer.unanimous, answer.now_us, answer.verdicts(), answer.receipts()


def brief(answer: Answer) -> Brief:
    (verdict,) = answer.verdicts()
    wait_us = verdict.reset_after_us if answer.admitted else verdict.retry_after_us
    return answer.admitted, verdict.remaining, wait_us


# Explaining a failure traces every line of every example, which for histories like these takes gigabytes.
@settings(max_examples=300, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])
@given(st.lists(steps, min_size=5, max_size=40), st.sampled_from([3, 1_000]))
def test_every_path_says_the_same(history: list[tuple[str, Any]], max_counters: int) -> None:
    """Any sequence of calls gives the answers, counters and counts of the readable path alone."""
    clock = ManualClock()
    fast = MemoryStore(clock, max_counters=max_counters)
    plain = ReferenceStore(clock, max_counters=max_counters)
    receipts = []
    for name, argument in history:
        match name, argument:
            case "one", request:
                answers = [store.decide_one(request) for store in (fast, plain)]
                assert described(answers[0]) == described(answers[1])
                receipts.append(answers[0].receipts())
            case "peek", request:
                assert described(fast.decide_one(request, peek=True)) == described(plain.decide_one(request, peek=True))
            case "many", batch:
                assert [*map(described, fast.decide(batch))] == [*map(described, plain.decide(batch))]
            case "singles", singles:
                now_us, quick = fast.decide_singles(singles)
                slow = plain.decide([[charge] for charge in singles])
                verdicts = [
                    counter.spec.verdict(state, now_us, cost, admitted)
                    for (counter, _, cost), (admitted, state) in zip(singles, quick, strict=True)
                ]
                assert verdicts == [answer.verdicts()[0] for answer in slow]
            case "alike", (counter, subjects, cost):
                briefs = fast.decide_alike(counter, [counter.prefix + subject for subject in subjects], cost)
                if briefs is not None:
                    answers = plain.decide([[(counter, subject, cost)] for subject in subjects])
                    assert briefs == [brief(answer) for answer in answers]
            case "refund", index:
                if index < len(receipts):
                    assert fast.refund(receipts[index]) == plain.refund(receipts[index])
                    receipts[index] = ()
            case "reset", (counter, subject, _):
                assert fast.reset([(counter, subject)]) == plain.reset([(counter, subject)])
            case "advance", delta_us:
                clock.advance(delta_us)
            case "back", delta_us:
                clock.set(clock.now_us() - delta_us)
        assert len(fast) == len(plain) <= max_counters
    assert fast.stats.as_dict() == plain.stats.as_dict()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.sampled_from([1, 1, 1, 1, 2, 4])), st.integers(0, 100 * US_PER_S)
        ),
        max_size=60,
    ),
    st.sampled_from([2, 1_000]),
)
def test_a_hitter_says_the_same(history: list[tuple[str, int] | int], max_counters: int) -> None:
    """A fast path for one counter admits exactly what the readable path admits, evictions and sweeps included."""
    clock = ManualClock()
    counter = counter_for(TokenBucket(3, 3, 10 * US_PER_S))
    fast = MemoryStore(clock, max_counters=max_counters)
    plain = ReferenceStore(clock, max_counters=max_counters)
    counted = {"refused": 0}

    def refused(_name: str) -> None:
        counted["refused"] += 1

    def otherwise(name: str, cost: int) -> bool:
        admitted = fast.decide_one([(counter, name, cost)]).admitted
        counted["refused"] += not admitted
        return admitted

    hitter = fast.hitter(counter, lambda name: counter.prefix + name, otherwise, refused)
    refusals = 0
    for step in history:
        if isinstance(step, int):
            clock.advance(step)
        else:
            admitted = plain.decide_one([(counter, *step)]).admitted
            assert hitter.hit(*step) == admitted
            refusals += not admitted
    assert fast.stats.decisions == plain.stats.decisions
    assert counted["refused"] == refusals


def test_a_hitter_takes_the_short_way() -> None:
    """From its second hit on, a name is decided without the long way; after a reset or a change it is asked."""
    clock = ManualClock()
    store = MemoryStore(clock)
    counter = counter_for(TokenBucket(5, 5, 60 * US_PER_S))
    long_way: list[str] = []

    def otherwise(name: str, cost: int) -> bool:
        long_way.append(name)
        return store.decide_one([(counter, name, cost)]).admitted

    refusals: list[str] = []
    hit, retire, passed = store.hitter(counter, lambda name: counter.prefix + name, otherwise, refusals.append)
    assert [hit("a") for _ in range(7)] == [True] * 5 + [False] * 2
    assert long_way == ["a"]  # the first, which creates the counter
    assert refusals == ["a", "a"]
    assert passed() == 4
    long_way.clear()
    store.reset([(counter, "a")])
    assert [hit("a") for _ in range(3)] == [True] * 3
    assert long_way == ["a"]
    long_way.clear()
    clock.set(clock.now_us() - 3_600 * US_PER_S)
    assert [hit("a"), hit("a")] == [False, False]
    assert long_way == ["a"]  # a state from before a step of the clock is first brought to now
    assert len(refusals) == 3
    store.reset([(counter, "a")])
    hit("a")
    long_way.clear()
    retire()
    assert hit("a")
    assert hit("b")
    assert hit("b")
    assert long_way == ["a", "b", "b"]
