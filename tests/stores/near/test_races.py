"""Threads and event loops at one near store, with its own keeper thread: they overlap, and no token is spent twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.stores.base import Answer, Request
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near import NearSettings, NearStore
from sluicegate.testing import LeasingStore

LIMIT = 30_000
OWN = 400
WORKERS = 6
SHARED_SPEC = TokenBucket(LIMIT, 1, 3_600 * US_PER_S)
OWN_SPEC = TokenBucket(OWN, 1, 3_600 * US_PER_S)


class Watched(LeasingStore):
    """Notes how many callers are inside at one time."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(SystemClock()))
        self.inside = self.most = 0
        self._turn = threading.Lock()

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        with self._turn:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            # Gives the others their turn, as a call over a network would.
            threading.Event().wait(0.000_05)
            return super().decide_one(request, peek=peek)
        finally:
            with self._turn:
                self.inside -= 1


@pytest.fixture
def counters(counter_of):
    """(leased counter of everybody, exact counter of a client)."""
    return counter_of("shared", SHARED_SPEC, Precision.LEASED), counter_of("own", OWN_SPEC)


def side_by_side(work: Callable[[int], int]) -> int:
    """The sum of what the workers return, which all begin at one moment."""
    ready = threading.Barrier(WORKERS)
    found: list[int] = []

    def run(number: int) -> None:
        ready.wait(60)
        found.append(work(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(found) == WORKERS
    return sum(found)


def warmed(store: Watched, counters) -> NearStore:
    """A near store that holds tokens already."""
    near = NearStore(store, NearSettings(), SystemClock())
    end = time.monotonic() + 60
    while not near.stats.leased:
        assert time.monotonic() < end, "no lease was granted"
        near.decide_one([(counters[0], "*", 1)])
        threading.Event().wait(0.002)
    return near


def check(near: NearStore, store: Watched, counters, admitted: int) -> None:
    """What was admitted stands in the counters, and no more than their limits."""
    shared, own = counters
    near._keeper.give_back()
    left = store.memory.decide_one([(shared, "*", 0)], peek=True).verdicts()[0].remaining
    assert admitted <= LIMIT
    # A lease that ended unspent is lost; nothing else is.
    assert LIMIT - left >= admitted
    users = [store.memory.decide_one([(own, f"u{n}", 0)], peek=True).verdicts()[0].remaining for n in range(WORKERS)]
    assert min(users) >= 0


def test_threads(counters) -> None:
    """Six threads with mixed requests: every client gets its limit, nobody more, and leases decide most of the rest."""
    store = Watched()
    near = warmed(store, counters)
    shared, own = counters

    def work(number: int) -> int:
        passed = 0
        for turn in range(1_500):
            request = [(shared, "*", 1)] if turn % 2 else [(shared, "*", 1), (own, f"u{number}", 1)]
            passed += near.decide_one(request).admitted
        return passed

    admitted = side_by_side(work)
    assert store.most > 1
    assert near.stats.leased > 500
    assert admitted >= WORKERS * (OWN + 750 - 10)
    check(near, store, counters, admitted)
    for number in range(WORKERS):
        left = store.memory.decide_one([(own, f"u{number}", 0)], peek=True).verdicts()[0].remaining
        assert left == 0
    near.close()


def test_event_loops(counters) -> None:
    """Six event loops, each with many coroutines under way at once, on one near store."""
    store = Watched()
    near = warmed(store, counters)
    shared, own = counters
    most = [0] * WORKERS

    def work(number: int) -> int:
        waiting = 0

        async def one(turn: int) -> bool:
            nonlocal waiting
            waiting += 1
            most[number] = max(most[number], waiting)
            request = [(shared, "*", 1)] if turn % 2 else [(shared, "*", 1), (own, f"u{number}", 1)]
            passed = (await near.adecide_one(request)).admitted
            waiting -= 1
            return passed

        async def all_of_them() -> int:
            passed = 0
            for first in range(0, 1_200, 40):
                passed += sum(await asyncio.gather(*[one(turn) for turn in range(first, first + 40)]))
            return passed

        return asyncio.run(all_of_them())

    admitted = side_by_side(work)
    assert min(most) > 1
    assert near.stats.leased > 500
    assert admitted == WORKERS * (600 + min(OWN, 600))
    check(near, store, counters, admitted)
    near.close()
