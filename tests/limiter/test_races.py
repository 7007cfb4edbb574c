"""Threads through the whole limiter, with proof that they really met."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

THREADS = 8


pytestmark = pytest.mark.usefixtures("often_switched")


def race(work: Callable[[], int]) -> tuple[int, int]:
    """Run ``work`` in 8 threads that start together: the sum of what they returned, and how often they changed places."""
    barrier = threading.Barrier(THREADS)
    totals: list[int] = []
    order: list[int] = []

    def run() -> None:
        barrier.wait()
        total = 0
        for _ in range(50):
            total += work()
            order.append(threading.get_ident())
        totals.append(total)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(totals) == THREADS
    return sum(totals), sum(a != b for a, b in itertools.pairwise(order))


@pytest.mark.parametrize("form", ["check", "hit", "many"])
def test_one_key(form: str) -> None:
    """400 requests of 8 threads on one key with a limit of 100 a day: exactly 100 pass."""  # T24 P58 P67
    limiter = Limiter.from_quota("100/day", clock=ManualClock())
    total, changes = race(
        {
            "check": lambda: limiter.check("k").allowed,
            "hit": lambda: limiter.hit("k"),
            "many": lambda: sum(d.allowed for d in limiter.check_many(["k"] * 3)),
        }[form]
    )
    assert total == 100
    assert changes > 5 * THREADS


def test_three_rules_charge_all_or_nobody() -> None:
    """Whatever the order of 8 threads, the tightest of three rules admits its limit and the others are charged the same."""
    # T01 T05 T06 T08 P10
    limiter = Limiter.from_rules(
        load_rules(
            "version: 1\nrules: [{name: a, quota: 1000/day}, {name: b, quota: 60/day}, {name: c, quota: 500/day}]", "r"
        ),
        clock=ManualClock(),
    )
    total, changes = race(lambda: limiter.check(Facts()).allowed)
    assert total == 60
    assert changes > 5 * THREADS
    assert {r.rule: r.remaining for r in limiter.peek(Facts(), 0).results} == {"a": 940, "b": 0, "c": 440}
    assert limiter.stats.allowed == 60
    assert sum(limiter.stats.refused.values()) == THREADS * 50 - 60


def test_rules_change_under_traffic() -> None:
    """While rules are exchanged all the time, each decision is by one version, and no more pass than the limit."""
    # T101 P100
    texts = [
        f"version: 1\nrules: [{{name: a, quota: 100/day}}, {{name: b{parity}, quota: {900 + parity}/day}}]"
        for parity in (0, 1)
    ]
    limiter = Limiter.from_rules(load_rules(texts[0], "r", version=0), clock=ManualClock())
    versions: set[int] = set()
    stop = threading.Event()
    applied = 0

    def change() -> None:
        nonlocal applied
        while not stop.is_set():
            applied += 1
            limiter.apply(load_rules(texts[applied % 2], "r", version=applied))

    def work() -> int:
        decision = limiter.check(Facts())
        versions.add(decision.version)
        assert {result.rule for result in decision.results} == {"a", f"b{decision.version % 2}"}
        return decision.allowed

    changer = threading.Thread(target=change)
    changer.start()
    try:
        total, _ = race(work)
    finally:
        stop.set()
        changer.join()
    assert total == 100
    assert len(versions) > 1
    assert limiter.stats.applies == applied


def test_a_receipt_is_good_once_under_threads() -> None:
    """8 threads that refund the same decision 400 times give it back once."""
    limiter = Limiter.from_quota("100/day", clock=ManualClock())
    decision = limiter.check("k", 50, receipt=True)
    limiter.check("k", 50)
    total, _ = race(lambda: limiter.refund(decision))
    assert total == 1
    assert limiter.peek("k").remaining == 50


def test_threads_share_the_share_of_a_node() -> None:
    """However many threads ask without the store, they admit the share, and the store is charged it once when it is back."""
    clock = ManualClock()
    shared = MemoryStore(clock)
    store = FlakyStore(shared)
    limiter = Limiter.from_quota("40/hour", store=store, clock=clock, nodes=2)
    store.down = True
    admitted, switches = race(lambda: limiter.check("k").allowed)
    assert admitted == 20
    assert switches > THREADS
    store.down = False
    admitted, _ = race(lambda: limiter.check("k").allowed)
    assert admitted == 0
    assert limiter.stats.settled == 1
    assert Limiter.from_quota("40/hour", store=shared, clock=clock).peek("k").remaining == 20
    clock.advance(90_000_000)
    admitted, _ = race(lambda: limiter.check("k").allowed)
    assert admitted == 21


def test_a_store_that_comes_and_goes_under_threads() -> None:
    """While threads ask, a store that fails half the time gives nobody more than the limit and a burst beside it."""
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_quota("40/hour", store=store, clock=clock)
    numbers = itertools.count()

    def ask() -> int:
        store.down = next(numbers) % 10 < 5
        return limiter.check("k").allowed

    admitted, switches = race(ask)
    assert 40 <= admitted <= 80
    assert switches > THREADS
