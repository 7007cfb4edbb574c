"""The leases of one process, step by step, by hand and with a clock of the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, Precision, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.bounds import LEASE_BEGIN_REQUESTS
from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near.counter import LeasedCounter
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings

MS = 1_000
SECOND = 1_000_000
TICK = 50 * MS
TERMS = LeaseTerms()
BUCKET = TokenBucket(10_000, 10_000, SECOND)


def counter_of(spec: Spec, precision: Precision = Precision.LEASED, name: str = "rule") -> Counter:
    return Counter(name, spec, counter_prefix("test", name, spec.algorithm, spec.shape), precision=precision)


class Process:
    """Leases with a memory store behind them, and a time that only ``wait`` moves."""

    def __init__(self, spec: Spec = BUCKET, store: MemoryStore | None = None, **settings: Any) -> None:
        self.clock = ManualClock() if store is None else store.clock
        self.store = store or MemoryStore(self.clock)
        self.leases = Leases(NearSettings(**settings), lambda: 0.0)
        self.counter = counter_of(spec)
        self.sent: list[LeaseItem] = []
        self.fault: StoreError | None = None

    def now_us(self) -> int:
        return self.clock.monotonic_us()

    def find(self) -> LeasedCounter:
        entry = self.leases.find(self.counter, "*", self.now_us())
        assert entry is not None
        return entry

    def wait(self, span_us: int) -> None:
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(span_us)

    def turn(self) -> list[LeaseItem]:
        """A turn of the keeper; what it said."""
        items = self.leases.step(self.now_us())
        self.sent += items
        self.news = self.hear(items)
        return items

    def hear(self, items: Sequence[LeaseItem]) -> list[str]:
        grants: Sequence[LeaseGrant | StoreError] = [self.fault] * len(items) if self.fault else []
        return self.leases.answered(items, grants or self.store.lease(self.leases.holder, TERMS, items), self.now_us())

    def use(self, times: int, cost: int = 1) -> int:
        """So many requests at once; how many pass by tokens held here."""
        entry = self.find()
        return sum([entry.take(cost, self.now_us()) for _ in range(times)])

    def run(self, ticks: int, each: int = 50) -> None:
        """Steady use, with a turn of the keeper at every tick."""
        for _ in range(ticks):
            self.use(each)
            self.turn()
            self.wait(TICK)

    @property
    def out(self) -> int:
        """Tokens that are out in the store."""
        state = self.store._table.find(self.counter.prefix + "*")
        return 0 if state is None or not hasattr(state.state, "ledger") else state.state.ledger.out


@pytest.fixture
def warm() -> Process:
    """A process that leases its counter at a thousand requests a second, long after its start."""
    process = Process()
    process.run(60)
    assert process.find().left(process.now_us()) > 0
    return process


# ---------------------------------------------------------------------- leaving the table


def test_an_id_is_not_used_again_by_a_counter_that_comes_back(warm: Process) -> None:
    """A counter that left the table and returns asks under new ids, or the store would take its wish for one that it has granted."""
    last = max([item.ask.serial for item in warm.sent])
    for _ in range(12):
        warm.wait(TICK)
        warm.turn()
    assert warm.leases.held == 0
    assert warm.leases._made_room()
    warm.sent.clear()
    warm.run(10)
    assert min([item.ask.serial for item in warm.sent if item.ask.serial]) > last


def test_an_object_that_left_the_table_asks_for_nothing(warm: Process) -> None:
    """Whoever kept a counter that was forgotten gets no tokens by it, and the new one is not disturbed."""
    old = warm.find()
    for _ in range(12):
        warm.wait(TICK)
        warm.turn()
    assert warm.leases._made_room()
    new = warm.find()
    assert new is not old
    for _ in range(10):
        assert not old.take(1, warm.now_us())
    assert warm.turn() == []
    assert warm.leases.held == 0


# ---------------------------------------------------------------------- asking


def test_a_counter_that_is_asked_for_now_and_then_is_not_leased() -> None:
    """Fewer than ``LEASE_BEGIN_REQUESTS`` requests within a horizon cost no ask."""
    process = Process()
    for _ in range(40):
        process.use(LEASE_BEGIN_REQUESTS - 1)
        assert process.turn() == []
        process.wait(201 * MS)
    assert process.leases.next_due_us() is None


def test_a_hot_counter_never_runs_dry(warm: Process) -> None:
    """With a keeper that comes when it is poked, each of many requests finds tokens."""
    for _ in range(2_000):
        assert warm.use(1) == 1
        if warm.find().low:
            warm.turn()
        warm.wait(MS)
        if warm.now_us() >= (warm.leases.next_due_us() or 0):
            warm.turn()


def test_what_is_held_follows_what_is_used(warm: Process) -> None:
    """Up to three horizons ahead is taken where there is plenty: five times as much for five times as many requests, within a few ticks."""
    held = warm.find().left(warm.now_us())
    assert held <= 1_000 * 0.6 * 1.2
    warm.run(6, each=250)
    more = 0
    for _ in range(4):
        warm.run(1, each=250)
        more = max(more, warm.out)
    assert 500 < more <= 5_000 * 0.6 * 1.5


def test_an_idle_counter_gives_back_and_costs_nothing_more(warm: Process) -> None:
    """After a horizon without requests, and three ticks for its notice, all goes back in one call, and then nothing is due."""
    warm.turn()
    idle_us = 0
    while not (items := warm.turn()):
        warm.wait(TICK)
        idle_us += TICK
    assert 200 * MS <= idle_us <= 350 * MS
    assert [report.closed for report in items[0].ask.reports] == [True] * len(items[0].ask.reports)
    assert warm.out == 0
    warm.wait(TICK)
    assert warm.turn() == []
    assert warm.leases.next_due_us() is None


def test_what_is_wanted_back_goes_back_sooner(warm: Process) -> None:
    """Where somebody else was refused, an idle process returns its tokens within a tick, and says that there is news."""
    warm.turn()
    warm.wait(2 * TICK)
    warm.turn()
    warm.find().wanted = True
    warm.wait(TICK)
    greedy = Process(store=warm.store)
    for cost in (1_000, 100, 10, 1):
        while warm.store.decide_one([(warm.counter, "*", cost)]).admitted:
            pass
    greedy.run(1, each=5_000)
    warm.wait(TICK)
    items = warm.turn()
    assert items[0].ask.reports[0].closed
    assert warm.news == [warm.counter.prefix + "*"]


def test_a_contended_counter_asks_at_its_pace() -> None:
    """Twenty asks a second at most where ten times the limit is wanted, and what is refused is told when to come again."""
    process = Process(TokenBucket(1_000, 1_000, SECOND))
    process.run(60)
    process.sent.clear()
    refused = 0
    for _ in range(2_000):
        entry = process.find()
        for _ in range(10):
            if not entry.take(1, process.now_us()):
                wait_us = entry.waits_us(1, process.now_us())
                if wait_us is None:
                    assert not process.store.decide_one([(process.counter, "*", 1)]).admitted or refused < 100
                    entry.denied(1, 1_000, process.now_us())
                else:
                    assert 1 <= wait_us <= 100 * MS
                    refused += 1
        process.turn()
        process.wait(MS)
    assert refused > 15_000
    assert len([item for item in process.sent if item.ask.want]) <= 43


def test_a_small_limit_asks_when_its_part_of_a_token_has_come() -> None:
    """A limit of one token in ten seconds that is fought for is not asked for twenty times a second."""
    process = Process(TokenBucket(100, 6, 60 * SECOND))
    for _ in range(400):
        process.use(20)
        process.turn()
        process.wait(TICK)
    process.sent.clear()
    for _ in range(400):
        process.use(20)
        process.turn()
        process.wait(TICK)
    assert len(process.sent) <= 21


def test_a_cost_larger_than_any_lease_gets_its_turn() -> None:
    """Of a contended counter the store is asked exactly about it, once for each ask."""
    process = Process(TokenBucket(1_000, 1_000, SECOND))
    process.run(80, each=500)
    entry = process.find()
    asked = [entry.waits_us(900, process.now_us()) for _ in range(100)]
    assert asked.count(None) == 1
    assert all(wait is None or wait >= 1 for wait in asked)


def test_a_refusal_of_the_store_is_not_asked_again_before_its_time() -> None:
    """``denied`` holds for what the store said and for higher costs, and ends when something may have come back."""
    process = Process()
    entry = process.find()
    entry.denied(5, 30 * MS, process.now_us())
    assert entry.waits_us(5, process.now_us()) is not None
    assert entry.waits_us(9, process.now_us()) is not None
    assert entry.waits_us(4, process.now_us()) is None
    process.leases.forget([entry.key])
    assert entry.waits_us(5, process.now_us()) is None
    entry.denied(5, 30 * MS, process.now_us())
    process.leases.forget(None)
    assert entry.waits_us(5, process.now_us()) is None
    entry.denied(5, 30 * MS, process.now_us())
    process.wait(30 * MS)
    assert entry.waits_us(5, process.now_us()) is None


def test_a_new_window_is_asked_for_at_once() -> None:
    """When a window ends the next one's tokens are asked for in the same moment, though the old one was empty."""
    process = Process(FixedWindow(1_000, SECOND))
    process.run(60)
    process.wait(SECOND - process.clock.now_us() % SECOND)
    while process.store.decide_one([(process.counter, "*", 50)]).admitted:
        pass
    for _ in range(19):
        process.use(50)
        process.turn()
        process.wait(TICK)
    process.find().denied(1, SECOND - process.clock.now_us() % SECOND, process.now_us())
    due_us = process.leases.next_due_us()
    assert due_us is not None
    process.wait(SECOND - process.clock.now_us() % SECOND)
    process.use(10)
    (item,) = process.turn()
    assert item.ask.want > 0
    assert process.use(1) == 1


# ---------------------------------------------------------------------- what happens to it


def test_changed_numbers_bind_at_once_here(warm: Process) -> None:
    """What is held under the old numbers is not spent any more and goes back; the next ask has the new ones."""
    old = warm.find()
    held = old.left(warm.now_us())
    warm.counter = counter_of(TokenBucket(5_000, 5_000, SECOND))
    assert held > 0
    assert warm.use(10) == 0
    warm.wait(TICK)
    (item,) = warm.turn()
    assert item.counter.spec.capacity == 5_000
    assert [report.closed for report in item.ask.reports] == [True] * len(item.ask.reports)
    assert warm.use(10) == 10


def test_another_object_of_the_same_numbers_changes_nothing(warm: Process) -> None:
    """Rules that were read again keep what is held."""
    held = warm.find().left(warm.now_us())
    warm.counter = counter_of(TokenBucket(10_000, 10_000, SECOND))
    assert warm.find().left(warm.now_us()) == held


def test_a_reset_counter_spends_nothing_of_before(warm: Process) -> None:
    """``drop`` ends what is held; the counter, which is new in the store, is leased anew at once."""
    entry = warm.find()
    warm.store.reset([(warm.counter, "*")])
    warm.leases.drop([entry.key])
    assert entry.left(warm.now_us()) == 0
    warm.run(2)
    assert warm.find().left(warm.now_us()) > 0


def test_a_store_that_is_away_is_asked_more_and_more_rarely(warm: Process) -> None:
    """What is held is spent to its end; then every request goes to the store, and asks pause for up to a second."""
    warm.fault = StoreError("away")
    warm.sent.clear()
    for _ in range(200):
        warm.use(5)
        warm.turn()
        warm.wait(TICK)
    assert warm.find().left(warm.now_us()) == 0
    assert warm.find().waits_us(1, warm.now_us()) is None
    assert 5 < len(warm.sent) < 20
    assert warm.leases.counts.failed == len(warm.sent)
    warm.fault = None
    warm.run(24)
    assert warm.find().left(warm.now_us()) > 0


def test_a_process_that_was_stopped_spends_nothing_of_before(warm: Process) -> None:
    """After SIGSTOP for longer than a lease the steady clock has jumped, and what was held has ended."""
    assert warm.find().left(warm.now_us()) > 0
    warm.wait(3 * SECOND)
    assert warm.use(10) == 0


def test_a_forked_child_has_nothing_of_its_parent(warm: Process) -> None:
    """It has another name, spends no token of its parent's, and asks for its own."""
    kept, name = warm.find(), warm.leases.holder
    warm.leases.forked()
    assert warm.leases.holder != name
    assert not kept.take(1, warm.now_us())
    assert warm.use(10) == 0
    warm.turn()
    assert warm.use(1) == 1
    assert not kept.take(1, warm.now_us())


def test_an_answer_for_the_parent_means_nothing_to_the_child(warm: Process) -> None:
    """What was under way at a fork adds nothing."""
    warm.use(100)
    warm.wait(TICK)
    items = warm.leases.step(warm.now_us())
    assert items
    grants = warm.store.lease(warm.leases.holder, TERMS, items)
    warm.leases.forked()
    warm.find()
    assert warm.leases.answered(items, grants, warm.now_us()) == []
    assert warm.find().left(warm.now_us()) == 0


def test_the_end_of_a_process_gives_all_back(warm: Process) -> None:
    """``close`` reports everything as closed, and nothing is leased afterwards."""
    assert warm.out > 0
    items = warm.leases.close(warm.now_us())
    warm.hear(items)
    assert warm.out == 0
    assert warm.leases.find(warm.counter, "*", warm.now_us()) is None
    assert warm.leases.find(warm.counter, "other", warm.now_us()) is None


def test_the_end_of_a_process_gives_back_what_is_under_way(warm: Process) -> None:
    """Also where an ask is not answered yet."""
    warm.use(30)
    warm.wait(TICK)
    under_way = warm.leases.step(warm.now_us())
    warm.store.lease(warm.leases.holder, TERMS, under_way)
    warm.hear(warm.leases.close(warm.now_us()))
    granted = sum([item.ask.want for item in under_way])
    assert warm.out <= granted


# ---------------------------------------------------------------------- what it answers for


class Odd(Process):
    """A process whose store has a life of its own."""

    life = "a" * 16
    lost = False

    def hear(self, items: Sequence[LeaseItem]) -> list[str]:
        grants = [
            grant._replace(incarnation=self.life) if isinstance(grant, LeaseGrant) else grant
            for grant in self.store.lease(self.leases.holder, TERMS, items)
        ]
        return self.leases.answered(items, grants, self.now_us())


def test_a_new_process_answers_for_nothing_before_it_has_seen_a_whole_hold() -> None:
    """Its first asks are cautious and name no life; after a hold by the worst clocks it says settled, of the life it has seen."""
    process = Odd()
    while not any(item.ask.settled for item in process.sent):
        process.use(20)
        process.turn()
        process.wait(10 * MS)
    first = next(item.ask for item in process.sent if item.ask.settled)
    before = [item.ask for item in process.sent if not item.ask.settled]
    assert all(ask.cautious and ask.life == "" for ask in before)
    assert (first.life, first.cautious) == ("a" * 16, True)
    assert process.now_us() >= TERMS.hold_us * 101 // 99
    assert process.now_us() <= TERMS.hold_us * 1.2
    assert len(before) <= 2


def test_a_new_process_is_not_refused_meanwhile() -> None:
    """Until the counter may be leased every request is asked exactly."""
    process = Odd()
    for _ in range(20):
        entry = process.find()
        for _ in range(20):
            assert not entry.take(1, process.now_us())
            assert entry.waits_us(1, process.now_us()) is None
        process.turn()
        process.wait(TICK)


def test_a_holder_says_what_it_knows_of_a_loss(warm: Process) -> None:
    """Who holds tokens is not cautious: a counter without leases has lost them, unless the life is the same."""
    warm.sent.clear()
    warm.run(10)
    asks = [item.ask for item in warm.sent]
    assert asks
    assert all(ask.settled and ask.life and not ask.cautious for ask in asks)


def test_numbers_for_answers_are_on_the_safe_side(warm: Process) -> None:
    """What is estimated as left passes here; the store's time is not after what it is; it was never heard of by a new counter."""
    entry = warm.find()
    remaining, reset_us = entry.estimate(warm.now_us())
    assert remaining == entry.left(warm.now_us())
    assert 0 <= reset_us <= SECOND
    assert 0 < entry.store_now_us(warm.now_us()) <= warm.clock.now_us()
    warm.wait(10 * SECOND)
    assert warm.clock.now_us() - 200 * MS - SECOND <= entry.store_now_us(warm.now_us()) <= warm.clock.now_us()
    new = Process().find()
    assert new.store_now_us(0) == 0
    window = Process(SlidingWindow(1_000, SECOND)).find()
    assert window.estimate(0) == (0, 2 * SECOND)
