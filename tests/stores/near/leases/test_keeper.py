"""The thread that keeps leases, with real time and a store in this process."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.clock import SystemClock, steady_us
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.locks import Locked
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near import keeper as keeper_module
from sluicegate.stores.near.keeper import Keeper
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings

SECOND = 1_000_000
SPEC = TokenBucket(1_000_000, 1_000_000, SECOND)
COUNTER = Counter("rule", SPEC, counter_prefix("test", "rule", SPEC.algorithm, SPEC.shape), precision=Precision.LEASED)


class Store:
    """A memory store that may fail, or raise what no store should."""

    def __init__(self) -> None:
        self.store = MemoryStore(SystemClock())
        self.calls = 0
        self.fault: Exception | None = None

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        self.calls += 1
        if self.fault is not None:
            raise self.fault
        return self.store.lease(holder, terms, items)


class Owner(Locked):
    """What a near store is to its keeper."""

    def __init__(self, store: Any = None) -> None:
        self.store = store or Store()
        self.leases = Leases(NearSettings())
        self.now_us = steady_us(SystemClock())
        self.nodes = 1
        self.news: list[str] = []
        super().__init__()
        self.keeper = Keeper(
            self, self.store, self.leases, LeaseTerms(), self.now_us, lambda: self.nodes, self.news.extend
        )

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self.leases.forked()

    def use(self, times: int = 1) -> int:
        """So many requests at once; how many pass by tokens held here."""
        with self._lock:
            entry = self.leases.find(COUNTER, "*", self.now_us())
            if entry is None:
                return 0
            passed = sum([entry.take(1, self.now_us()) for _ in range(times)])
            if entry.low:
                self.keeper.poke()
            return passed

    def left(self) -> int:
        with self._lock:
            entry = self.leases.find(COUNTER, "*", self.now_us())
            return 0 if entry is None else entry.left(self.now_us())

    def out(self) -> int:
        """Tokens that are out in the store."""
        place = self.store.store._table.find(COUNTER.prefix + "*")
        return 0 if place is None or not hasattr(place.state, "ledger") else int(place.state.ledger.out)


def until(what: Callable[[], object], owner: Owner | None = None) -> None:
    """Wait, with requests meanwhile where an owner is given."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        if owner is not None:
            owner.use(5)
        time.sleep(0.002)


@pytest.fixture
def owner() -> Iterator[Owner]:
    """An owner with a keeper, whose counter is leased in this life of its store already, so that it need not wait."""
    owner = Owner()
    first = Leases(NearSettings(), lambda: 0.0)
    first._lives.seen("0" * 16, -10 * SECOND)
    entry = first.find(COUNTER, "*", 0)
    assert entry is not None
    for _ in range(5):
        entry.take(1, 0)
    items = first.step(0)
    (grant,) = owner.store.lease(first.holder, LeaseTerms(), items)
    assert isinstance(grant, LeaseGrant)
    assert grant.granted
    yield owner
    owner.keeper.close()


def test_tokens_come_by_a_poke_and_go_back_when_idle(owner: Owner) -> None:
    """The thread begins with the first wish; when nothing is held it sleeps without waking up."""
    assert owner.keeper._thread is None
    until(lambda: owner.use(5) == 5)
    assert owner.keeper.error is None
    until(lambda: owner.leases.held == 0)
    woken, calls = owner.keeper.wakeups, owner.store.calls
    time.sleep(0.5)
    assert (owner.keeper.wakeups, owner.store.calls) == (woken, calls)
    until(lambda: owner.use(5) == 5)


def test_close_gives_back_and_ends_the_thread(owner: Owner) -> None:
    """What is held is not out any more when ``close`` returns; a poke afterwards does nothing."""
    until(lambda: owner.left() > 0, owner)
    thread = owner.keeper._thread
    assert thread is not None
    until(lambda: owner.leases.held and owner.out() > 0, owner)
    owner.keeper.close()
    assert not thread.is_alive()
    assert owner.left() == 0
    until(lambda: owner.out() <= 5)  # The first process's, which ends by itself.
    owner.keeper.poke()
    assert owner.use() == 0


def test_close_without_a_thread_is_quick() -> None:
    """A keeper that was never poked has nothing to give back."""
    owner = Owner()
    owner.keeper.close()
    owner.keeper.close()
    assert owner.store.calls == 0


def test_the_thread_survives_whatever_the_store_does(owner: Owner) -> None:
    """Errors are told, counters are asked for again, and when the store is back all is as before."""
    for fault in (StoreError("away"), ZeroDivisionError("a bug")):
        owner.store.fault = fault
        until(lambda: owner.keeper.error is not None, owner)
        assert str(fault) in str(owner.keeper.error)
        owner.store.fault = None
        until(lambda: owner.keeper.error is None and owner.left() > 0, owner)


def test_the_thread_survives_a_store_that_does_not_answer_every_ask(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few answers are a failure of all asks, none of which is waited for then."""
    with monkeypatch.context() as patch:
        patch.setattr(owner.store, "lease", lambda *_: [])
        until(lambda: owner.keeper.error is not None, owner)
        assert "shorter" in str(owner.keeper.error)
    until(lambda: owner.keeper.error is None and owner.left() > 0, owner)


def test_the_thread_survives_its_own_faults(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a look raises, that is told, and the next one comes a tick later."""
    until(lambda: owner.left() > 0, owner)
    thread = owner.keeper._thread
    with monkeypatch.context() as patch:
        patch.setattr(owner.keeper, "_nodes", lambda: 1 // 0)
        until(lambda: owner.keeper.error is not None, owner)
        assert "ZeroDivisionError" in str(owner.keeper.error)
    until(lambda: owner.keeper.error is None and owner.left() > 0, owner)
    assert owner.keeper._thread is thread


def test_a_chore_that_fails_harms_nothing(owner: Owner) -> None:
    """Other work of the thread is done when it is due, whatever it raises."""

    class Failing:
        runs = 0

        def due_us(self) -> int | None:
            return owner.now_us() - 1 if self.runs < 3 else None

        def run(self) -> None:
            self.runs += 1
            raise ZeroDivisionError

    chore = Failing()
    owner.keeper.chores.append(chore)
    owner.keeper.poke()
    until(lambda: chore.runs == 3)
    until(lambda: owner.left() > 0, owner)


def test_the_number_of_processes_is_followed(owner: Owner) -> None:
    """Each look learns how many processes there are."""
    owner.nodes = 7
    owner.keeper.poke()
    until(lambda: owner.leases.nodes == 7)


def test_a_near_store_that_nobody_uses_ends() -> None:
    """The thread keeps its keeper and owner alive no longer than others do, and ends itself."""

    def begun() -> tuple[threading.Thread, weakref.ref[Owner]]:
        owner = Owner()
        owner.keeper.poke()
        until(lambda: owner.keeper.wakeups > 0)
        assert owner.keeper._thread is not None
        return owner.keeper._thread, weakref.ref(owner)

    thread, found = begun()
    end = time.monotonic() + 60
    while thread.is_alive() or found() is not None:
        assert time.monotonic() < end
        gc.collect()
        time.sleep(0.01)


def test_a_burst_of_pokes_is_few_calls(owner: Owner) -> None:
    """What is poked within a moment is answered together."""
    until(lambda: owner.left() > 0, owner)
    woken = owner.keeper.wakeups
    began = time.monotonic()
    for _ in range(20_000):
        owner.keeper.poke()
    passed_s = time.monotonic() - began
    assert owner.keeper.wakeups - woken <= passed_s / owner.keeper.pause_s + 2


def test_threads_take_no_token_twice(owner: Owner) -> None:
    """What passes in many threads is what the store has granted, less what is left and went back."""
    until(lambda: owner.left() > 0, owner)
    passed: list[int] = []
    ends = threading.Event()

    def run() -> None:
        mine = 0
        while not ends.is_set():
            mine += owner.use(3)
        passed.append(mine)

    threads = [threading.Thread(target=run) for _ in range(4)]
    before = owner.leases.used(COUNTER.prefix + "*") or 0
    for thread in threads:
        thread.start()
    time.sleep(0.4)
    ends.set()
    for thread in threads:
        thread.join()
    used = owner.leases.used(COUNTER.prefix + "*")
    assert used is not None
    assert used - before == sum(passed) > 0
    assert used <= owner.leases.counts.granted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_keeps_leases_of_its_own(owner: Owner) -> None:
    """It begins with nothing, under another name, and has a thread when it needs one; the parent's goes on."""
    until(lambda: owner.left() > 100, owner)
    name, thread = owner.leases.holder, owner.keeper._thread
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            begun = owner.use(1) == 0 and owner.leases.holder != name and owner.keeper._thread is None
            until(lambda: owner.left() > 0, owner)
            code = 0 if begun and owner.keeper._thread is not None else 2
        finally:
            os.write(write, bytes([code]))
            os._exit(code)
    try:
        assert os.read(read, 1) == b"\0"
        assert os.waitpid(child, 0)[1] == 0
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(read)
        os.close(write)
    assert owner.leases.holder == name
    assert owner.keeper._thread is thread
    until(lambda: owner.use(5) == 5)


@pytest.mark.measured
def test_at_the_end_of_the_program_all_give_back_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several near stores share the time there is: none waits until another one's store has answered."""
    together = threading.Barrier(2, timeout=5)
    met: list[int] = []

    class Slow(Store):
        ending = False

        def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
            if self.ending:
                self.ending = False
                met.append(together.wait())
            return super().lease(holder, terms, items)

    owners = [Owner(Slow()) for _ in range(2)]
    until(lambda: min(owner.use(20) for owner in owners) > 0)
    for owner in owners:
        owner.store.ending = True
    monkeypatch.setattr(keeper_module, "_keepers", weakref.WeakSet([owner.keeper for owner in owners]))
    keeper_module._give_all_back()
    assert sorted(met) == [0, 1]
