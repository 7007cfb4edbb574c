"""Who is forgotten, when, and in how large steps."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.memory.table import SWEEP_PERIOD_US
from sluicegate.testing.store_contract import counter_for

FIVE_A_MINUTE = counter_for(TokenBucket(5, 5, 60 * US_PER_S), "five")
ONE_A_MINUTE = counter_for(TokenBucket(1, 1, 60 * US_PER_S), "one")
ONE_A_DAY = counter_for(TokenBucket(1, 1, 86_400 * US_PER_S), "daily")


def hit(store: MemoryStore, counter, subject: str) -> bool:
    return store.decide_one([(counter, subject, 1)]).admitted


def has(store: MemoryStore, counter, subject: str) -> bool:
    return store._table.find(counter.prefix + subject) is not None


def test_the_cap_is_never_exceeded() -> None:
    """However many new keys come, the store holds at most ``max_counters``."""
    store = MemoryStore(ManualClock(), max_counters=100)
    for n in range(1_000):
        hit(store, FIVE_A_MINUTE, str(n))
        assert len(store) <= 100
    assert len(store) == 100
    assert store.stats.evicted_live == 900
    assert store.stats.evicted_refusing == 0


def test_as_many_counters_fit_as_were_asked_for() -> None:
    """A store told to hold N small numbers of counters holds N before it evicts any; the default holds a million."""
    store = MemoryStore(ManualClock(), max_counters=1_000)
    for n in range(1_000):
        hit(store, FIVE_A_MINUTE, str(n))
    assert (len(store), store.stats.evicted_live) == (1_000, 0)
    assert MemoryStore(ManualClock())._table._soft_max >= 1_000_000


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "10", None, 10**12])
def test_a_cap_that_is_none_is_refused(bad: object) -> None:
    """``max_counters`` outside its range, or no whole number, is a configuration error that shows the value."""
    with pytest.raises(ConfigurationError, match=r"max_counters.*got"):
        MemoryStore(ManualClock(), max_counters=bad)  # type: ignore[arg-type]


def test_the_least_recently_charged_go_first() -> None:
    """Counters charged since the last rotation outlive a flood of new keys that are charged once."""
    store = MemoryStore(ManualClock(), max_counters=1_000)
    for n in range(3_000):
        hit(store, FIVE_A_MINUTE, f"flood{n}")
        if n % 50 == 0:
            store.decide_one([(counter_for(TokenBucket(10_000, 1, US_PER_S), "busy"), "regular", 1)])
    assert store.stats.evicted_live > 1_900
    assert has(store, counter_for(TokenBucket(10_000, 1, US_PER_S), "busy"), "regular")


@pytest.mark.parametrize("max_counters", [1, 2, 10, 64, 100, 500, 5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_refusing_counter_outlives_every_other(max_counters: int) -> None:
    """A flood of ten times the cap evicts no counter that refuses, wherever in the table it is."""
    clock = ManualClock()
    store = MemoryStore(clock, max_counters=max_counters)
    refusing = [f"over{n}" for n in range(max_counters // 3)]
    for n in range(max_counters // 4):
        hit(store, FIVE_A_MINUTE, f"before{n}")
    for subject in refusing:
        assert hit(store, ONE_A_DAY, subject)
    for n in range(10 * max_counters):
        hit(store, FIVE_A_MINUTE, f"flood{n}")
        assert len(store) <= max_counters
    assert store.stats.evicted_refusing == 0
    assert not any(hit(store, ONE_A_DAY, subject) for subject in refusing)


def test_whoever_is_over_the_limit_stays_over_it() -> None:
    """One client that exhausted its limit gets nothing by sending a flood of other keys meanwhile."""
    clock = ManualClock()
    store = MemoryStore(clock, max_counters=200)
    while hit(store, FIVE_A_MINUTE, "attacker"):
        pass
    admitted = 0
    for n in range(5_000):
        clock.advance(1_000)
        hit(store, FIVE_A_MINUTE, f"sybil{n}")
        admitted += hit(store, FIVE_A_MINUTE, "attacker")
    assert admitted == 0  # 5 seconds have passed, and one token takes 12


@pytest.mark.parametrize("max_counters", [50, 5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_only_refusing_counters_left(max_counters: int) -> None:
    """A store full of refusing counters still takes new keys, holds its cap, and keeps those that came first."""
    clock = ManualClock()
    store = MemoryStore(clock, max_counters=max_counters)
    for n in range(3 * max_counters):
        assert hit(store, ONE_A_DAY, str(n))
        assert len(store) <= max_counters
    assert store.stats.evicted_live == 3 * max_counters - len(store)
    assert store.stats.evicted_refusing > max_counters
    kept = sum(not hit(store, ONE_A_DAY, str(n)) for n in range(max_counters // 2))
    assert kept >= 0.49 * max_counters


def test_counters_that_stopped_refusing_are_found() -> None:
    """What was kept for refusing goes first again once its time has come, before what refuses now."""
    clock = ManualClock()
    store = MemoryStore(clock, max_counters=200)
    for n in range(200):
        hit(store, ONE_A_MINUTE, f"old{n}")
    for n in range(100):
        hit(store, ONE_A_DAY, f"new{n}")  # only refusing ones were there: evicts old ones
    clock.advance(59 * US_PER_S)
    before = store.stats.evicted_refusing
    clock.advance(2 * US_PER_S)
    for n in range(100):
        hit(store, ONE_A_DAY, f"newer{n}")
    assert store.stats.evicted_refusing == before
    assert not any(hit(store, ONE_A_DAY, f"newer{n}") for n in range(100))


@pytest.mark.slow
def test_making_room_is_bounded_work() -> None:
    """Adding a key to a full table looks at one counter on average and at a bounded number at most."""
    store = MemoryStore(ManualClock(), max_counters=20_000)
    looked: list[int] = []
    spec = _CountingBucket(5, 5, 60 * US_PER_S)
    counter = counter_for(spec, "counting")  # type: ignore[arg-type]
    for n in range(60_000):
        spec_looks = _CountingBucket.looks
        hit(store, counter, str(n))
        looked.append(_CountingBucket.looks - spec_looks)
    full = looked[20_000:]
    assert max(full) <= 512 + 130
    assert sum(full) / len(full) < 3


class _CountingBucket(TokenBucket):
    """Counts how often somebody asks when a state expires, as making room and sweeping do once per counter."""

    looks = 0

    def expires_us(self, state: int) -> int:
        _CountingBucket.looks += 1
        return super().expires_us(state)


@pytest.mark.slow
def test_a_sweep_is_bounded_work() -> None:
    """A sweep of 50,000 expired counters takes many calls, and none of them looks at more than a small share."""
    clock = ManualClock()
    store = MemoryStore(clock)
    counter = counter_for(_CountingBucket(5, 5, US_PER_S), "counting")  # type: ignore[arg-type]
    for n in range(50_000):
        hit(store, counter, str(n))
    clock.advance(2 * SWEEP_PERIOD_US)
    calls = most = 0
    while len(store) > 1:
        before = _CountingBucket.looks
        hit(store, counter, "x")
        most = max(most, _CountingBucket.looks - before)
        calls += 1
        assert calls < 10_000
    assert most < 50
    assert store.stats.swept == 50_000


def test_live_counters_survive_a_sweep() -> None:
    """A sweep forgets what has expired and changes nothing about the rest."""
    clock = ManualClock()
    store = MemoryStore(clock)
    short = counter_for(TokenBucket(5, 5, US_PER_S), "short")
    for n in range(500):
        hit(store, short, str(n))
        hit(store, ONE_A_DAY, str(n))
    clock.advance(2 * SWEEP_PERIOD_US)
    for _ in range(200):
        store.decide_one([(short, "x", 1)], peek=True)
    assert len(store) == 500
    assert store.stats.evicted_live == 0
    assert not any(hit(store, ONE_A_DAY, str(n)) for n in range(500))


def test_one_shot_keys_leave_nothing() -> None:
    """Keys used once are gone after their window, when any later calls come."""  # P44
    clock = ManualClock()
    store = MemoryStore(clock)
    for n in range(10_000):
        hit(store, FIVE_A_MINUTE, f"once{n}")
    clock.advance(2 * SWEEP_PERIOD_US)
    for _ in range(2_000):
        store.decide_one([(FIVE_A_MINUTE, "x", 1)], peek=True)
    assert len(store) == 0


def test_sweeping_goes_on_after_the_clock_was_set_back() -> None:
    """A clock stepped back by a day does not stop sweeping for a day."""
    clock = ManualClock()
    store = MemoryStore(clock)
    short = counter_for(TokenBucket(5, 5, US_PER_S), "short")
    hit(store, short, "first")
    clock.set(clock.now_us() - 86_400 * US_PER_S)
    for n in range(100):
        hit(store, short, str(n))
    clock.advance(2 * SWEEP_PERIOD_US)
    for _ in range(50):
        hit(store, short, "x")
    clock.advance(2 * SWEEP_PERIOD_US)
    for _ in range(50):
        hit(store, short, "x")
    assert len(store) <= 2  # "x", and "first", whose state lies in the future until the day has passed


@pytest.mark.slow
def test_a_million_keys_then_idle() -> None:
    """After a million keys and an idle time, 10,000 calls bring the entries back to the live set."""  # P63 T90
    clock = ManualClock()
    store = MemoryStore(clock)
    for start in range(0, 1_000_000, 10_000):
        store.decide_singles([(FIVE_A_MINUTE, f"client{n}", 1) for n in range(start, start + 10_000)])
    assert len(store) == 1_000_000
    clock.advance(3_600 * US_PER_S)
    for n in range(10_000):
        hit(store, FIVE_A_MINUTE, f"live{n % 100}")
    assert len(store) == 100
    assert store.stats.swept == 1_000_000
    assert store.stats.evicted_live == 0
    assert len(store._table._aging) == 0


@pytest.mark.slow
def test_the_memory_of_expired_keys_comes_back() -> None:
    """After a million keys and an idle time, 10,000 calls bring the traced bytes back to the live set."""  # P63
    clock = ManualClock()
    live = [(FIVE_A_MINUTE, f"live{n}", 1) for n in range(100)]
    gc.collect()
    tracemalloc.start()
    try:
        store = MemoryStore(clock)
        store.decide_singles(live)
        gc.collect()
        live_bytes = tracemalloc.get_traced_memory()[0]
        for start in range(0, 1_000_000, 1_000):
            store.decide_singles([(FIVE_A_MINUTE, f"client{n}", 1) for n in range(start, start + 1_000)])
        full_bytes = tracemalloc.get_traced_memory()[0]
        clock.advance(3_600 * US_PER_S)
        for n in range(10_000):
            store.decide_one([live[n % 100]])
        gc.collect()
        left_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(store) == 100
    assert full_bytes - live_bytes > 100_000_000
    assert (
        left_bytes - live_bytes < 200_000
    )  # The room of the segments of the live set, less than 0.2 % of what was held.
