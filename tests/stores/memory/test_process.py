"""Threads, forks and pickles."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import threading

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.store_contract import counter_for

THREADS = 8
DAILY = TokenBucket(100, 100, 86_400 * US_PER_S)


pytestmark = pytest.mark.usefixtures("often_switched")


def race(work) -> list[list[bool]]:
    """Run ``work()`` in 8 threads that start together; what each returned."""
    barrier = threading.Barrier(THREADS)
    results: list[list[bool]] = [[] for _ in range(THREADS)]

    def run(index: int) -> None:
        barrier.wait()
        results[index] = work()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class InterleavingClock(ManualClock):
    """Notes which thread reads the time: the store reads it once in each call, under its lock."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[int] = []

    def now_us(self) -> int:
        self.readers.append(threading.get_ident())
        return super().now_us()

    @property
    def changes(self) -> int:
        """How often one thread's call was followed by another's."""
        return sum(a != b for a, b in itertools.pairwise(self.readers))


def calls_of(store: MemoryStore, form: str):
    """One way to hit the counter of "s" 500 times."""
    counter = counter_for(DAILY)
    other = counter_for(TokenBucket(10_000, 1, US_PER_S), "other")
    hit, _, _ = store.hitter(
        counter,
        lambda name: counter.prefix + name,
        lambda name, cost: store.decide_one([(counter, name, cost)]).admitted,
        lambda _name: None,
    )
    return {
        "one": lambda: [store.decide_one([(counter, "s", 1)]).admitted for _ in range(500)],
        "two": lambda: [store.decide_one([(other, "s", 1), (counter, "s", 1)]).admitted for _ in range(500)],
        "many": lambda: [a.admitted for _ in range(100) for a in store.decide([[(counter, "s", 1)]] * 5)],
        "singles": lambda: [ok for _ in range(100) for ok, _ in store.decide_singles([(counter, "s", 1)] * 5)[1]],
        "hit": lambda: [hit("s") for _ in range(500)],
    }[form]


@pytest.mark.parametrize("form", ["one", "two", "many", "singles", "hit"])
def test_threads_share_one_limit_exactly(form: str) -> None:
    """8 threads that hit one counter of 100, 4,000 times together and really interleaved, pass exactly 100 times."""
    # T24 P58 P67
    clock = InterleavingClock()
    store = MemoryStore(clock)
    results = race(calls_of(store, form))
    assert sum(map(sum, results)) == 100
    assert clock.changes > 5 * THREADS  # they did not just run one after the other
    assert store.stats.decisions == THREADS * 500


def test_threads_over_many_keys_lose_nothing() -> None:
    """8 threads over 50 subjects with sweeps and evictions meanwhile: no error, and no subject passes above its limit."""
    clock = ManualClock()
    store = MemoryStore(clock, max_counters=1_000)
    counter = counter_for(TokenBucket(7, 7, 86_400 * US_PER_S))
    flood = counter_for(TokenBucket(7, 7, US_PER_S), "flood")

    def work() -> list[bool]:
        passed = []
        for n in range(1_000):
            passed.append(store.decide_one([(counter, str(n % 50), 1)]).admitted)
            store.decide_one([(flood, f"{threading.get_ident()}:{n}", 1)])
            if n % 100 == 0:
                clock.advance(10 * US_PER_S)
        return passed

    results = race(work)
    assert sum(map(sum, results)) == 50 * 7
    assert store.stats.evicted_refusing == 0
    assert len(store) <= 1_000


def test_no_thread_is_started() -> None:
    """A store runs in the threads of its callers only."""  # P59
    before = threading.active_count()
    store = MemoryStore(ManualClock())
    store.decide_one([(counter_for(DAILY), "s", 1)])
    store.close()
    assert threading.active_count() == before


def test_pickling_says_what_to_do() -> None:
    """A store cannot be pickled, and the error says to make one in each process."""  # P66
    with pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(MemoryStore(ManualClock()))


def in_child(work) -> int:
    """Fork, run ``work`` in the child, and give its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_continues_with_a_copy() -> None:
    """A forked child sees the counters as they were, and what it charges does not show in the parent."""  # P66
    store = MemoryStore(ManualClock())
    counter = counter_for(DAILY)
    store.decide_one([(counter, "s", 40)])
    assert in_child(lambda: store.decide_one([(counter, "s", 50)]).verdicts()[0].remaining) == 10
    assert store.decide_one([(counter, "s", 1)]).verdicts()[0].remaining == 59


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_while_another_thread_decides() -> None:
    """A child forked while another thread holds the store's lock can use the store."""
    clock = ManualClock()
    store = MemoryStore(clock)
    counter = counter_for(DAILY)
    hit, _, _ = store.hitter(
        counter,
        lambda name: name,
        lambda name, cost: store.decide_one([(counter, name, cost)]).admitted,
        lambda _name: None,
    )
    hit("s")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        held.wait()
        assert in_child(lambda: store.decide_one([(counter, "s", 1)]).admitted + 2 * hit("s")) == 3
    finally:
        done.set()
        thread.join()


def test_spawned_processes_make_their_own() -> None:
    """A limiter is made inside a spawned process; sending one there fails at once instead of counting apart."""
    context = multiprocessing.get_context("spawn")
    with pytest.raises(TypeError, match="make one in each process"):
        context.Process(target=print, args=(MemoryStore(ManualClock()),)).start()
