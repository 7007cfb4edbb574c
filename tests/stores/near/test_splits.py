"""Split counters: what a fleet admits by parts and wholes, at any moment, whatever its nodes know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from sluicegate.algorithms import FixedWindow, Outcome, Precision, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.bounds import CAPACITY_MAX, SPLIT_HOLD_US, SPLIT_MARGIN_US, SPLIT_RENEW_US, SPLIT_USE_US
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Counter, Request
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near.hot import HotStore
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.splits import Split
from sluicegate.testing import FlakyStore, LaterStore, worst_excess

SPECS = [
    TokenBucket(200, 200, US_PER_S),
    TokenBucket(40, 7, US_PER_S),
    FixedWindow(300, 3 * US_PER_S),
    SlidingWindow(300, 3 * US_PER_S, 6),
    SlidingWindow(300, 3 * US_PER_S),
    SlidingLog(300, 3 * US_PER_S),
]
SUBJECT = "user:u"


def counter_of(spec: Spec, **more: object) -> Counter:
    prefix = counter_prefix("default", "r", spec.algorithm, spec.shape)
    return Counter("r", spec, prefix, precision=Precision.SPLIT, **more)


class Taking(LaterStore):
    """A store whose calls take time, in which others do what ``meanwhile`` says."""

    def __init__(self, memory: MemoryStore) -> None:
        self.flaky = FlakyStore(memory)
        super().__init__(self.flaky)
        self.meanwhile: Callable[[], None] = lambda: None

    def decide(self, requests, *, peek=False):
        self.meanwhile()
        return super().decide(requests, peek=peek)


class Fleet:
    """Nodes on one store, and what they admitted."""

    def __init__(self, spec: Spec, nodes: int, seed: int = 1) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.counter = counter_of(spec)
        self.draw = Random(seed)
        self.stores = [Taking(self.memory) for _ in range(nodes)]
        self.nodes = [
            HotStore(
                store, NearSettings(), self.clock.monotonic_us, self.clock.now_us, Random(seed + number), threads=False
            )
            for number, store in enumerate(self.stores)
        ]
        self.hits: list[tuple[int, int]] = []
        self.clock.advance(1_000_000)

    @property
    def key(self) -> str:
        return self.counter.prefix + SUBJECT

    def ask(self, number: int, cost: int = 1) -> Answer | None:
        """One request at one node; None where the store failed."""
        try:
            answer = self.nodes[number].decide_one([(self.counter, SUBJECT, cost)])
        except StoreError:
            return None
        if answer.admitted:
            self.hits.append((self.clock.now_us(), cost))
        return answer

    def split_at(self, number: int) -> Split | None:
        return self.nodes[number].splits.using(self.key, self.clock.monotonic_us())

    def promote(self, number: int) -> bool:
        return self.nodes[number].promote(self.counter, SUBJECT, self.clock.monotonic_us())

    def retire(self, number: int) -> None:
        self.nodes[number].retire(self.key, self.clock.monotonic_us())

    def excess(self, slack: int = 0) -> object:
        spec = self.counter.spec
        return worst_excess(self.hits, lambda length_us: spec.most_admitted(length_us) + slack)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.algorithm}-{spec.shape}-{spec.capacity}")
@pytest.mark.parametrize("seed", range(4))
def test_no_interval_admits_more_than_the_whole(spec: Spec, seed: int) -> None:
    """Nodes get hot and cold at any time, and do their chores when they can: with a store that answers at once every interval keeps the bound."""
    fleet = Fleet(spec, 4, seed)
    draw = fleet.draw
    by_parts = by_whole = 0
    for _ in range(2_500):
        number = draw.randrange(4)
        turn = draw.random()
        if turn < 0.004:
            fleet.promote(number)
        elif turn < 0.012:
            fleet.retire(number)
        if turn < 0.3:
            for node in fleet.nodes:
                node.work()
        used = fleet.split_at(number) is not None
        if draw.random() < 0.85 or fleet.clock.now_us() % (8 * US_PER_S) < US_PER_S:
            answer = fleet.ask(number, draw.choice((1, 1, 1, 2, 9)))
            assert answer is not None
            by_parts += used and answer.admitted
            by_whole += not used and answer.admitted
        fleet.clock.advance(draw.choice((100, 900, 2_000, 9_000, 30_000)))
    assert fleet.excess() is None, seed
    # It did happen: parts and wholes took turns.
    assert by_parts > 20, (by_parts, by_whole)
    assert by_whole > 20, (by_parts, by_whole)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS[:4], ids=lambda spec: f"{spec.algorithm}-{spec.capacity}")
@pytest.mark.parametrize("seed", range(3))
def test_exchanges_that_take_time_cost_what_comes_back_in_them(spec: Spec, seed: int) -> None:
    """While a counter is being split others go on asking for it: at most the rate of the exchange is admitted beyond the bound."""
    fleet = Fleet(spec, 3, seed)
    draw, took_us = fleet.draw, 4_000

    def meanwhile() -> None:
        for _ in range(3):
            fleet.ask(draw.randrange(3))
            fleet.clock.advance(took_us // 3)

    for store in fleet.stores:
        store.meanwhile = meanwhile
    for turn in range(300):
        if turn % 90 == 20:
            fleet.promote(turn % 3)
        if turn % 90 == 60:
            fleet.retire((turn - 40) % 3)
        for node in fleet.nodes:
            node.work()
        for _ in range(6):
            fleet.ask(draw.randrange(3), draw.choice((1, 1, 3)))
            fleet.clock.advance(draw.choice((500, 3_000, 20_000)))
    # Between emptying the parts and looking at the whole there are three calls; what was admitted by the parts is told in the next.
    rate = -(-spec.most_admitted(US_PER_S) * 4 * took_us // US_PER_S) if isinstance(spec, TokenBucket) else 12
    assert fleet.excess(rate + 12) is None, seed


def test_a_split_changes_nothing_that_is_seen() -> None:
    """Half of a limit is used when it is split: the parts admit the other half, less than one token each, and the whole knows of it."""
    fleet = Fleet(FixedWindow(640, 3_600 * US_PER_S), 2)
    for _ in range(320):
        fleet.ask(0)
    assert fleet.promote(0)
    fleet.nodes[0].work()
    assert fleet.split_at(0) is not None
    admitted = sum(bool(answer and answer.admitted) for answer in (fleet.ask(number % 2) for number in range(400)))
    assert 320 - 64 < admitted <= 320
    fleet.nodes[0].work()
    fleet.clock.advance(SPLIT_RENEW_US)
    for node in fleet.nodes:
        node.work()
    peeked = fleet.memory.decide_one([(fleet.counter, SUBJECT, 1)], peek=True).verdicts()[0]
    assert peeked.remaining == 320 - admitted


def test_another_node_finds_out_by_the_gate() -> None:
    """A node that knows nothing is refused by the gate and uses the parts in the same request; so it is told nothing, and asks twice once."""
    fleet = Fleet(TokenBucket(640, 640, US_PER_S), 2)
    fleet.promote(0)
    fleet.nodes[0].work()
    calls = fleet.stores[1].flaky.calls
    assert fleet.ask(1).admitted
    assert fleet.stores[1].flaky.calls == calls + 2
    assert fleet.ask(1).admitted
    assert fleet.stores[1].flaky.calls == calls + 3
    assert fleet.split_at(1) is not None


def test_a_cold_counter_is_whole_again_within_the_hold() -> None:
    """When nobody keeps it split the gate opens; meanwhile requests are refused for at most the margin, with a wait that is true."""
    fleet = Fleet(TokenBucket(640, 640, US_PER_S), 2)
    fleet.promote(0)
    fleet.nodes[0].work()
    fleet.ask(0)
    fleet.retire(0)
    refused_us = 0
    cold_us = fleet.clock.monotonic_us()
    whole_us = None
    while whole_us is None:
        fleet.nodes[0].work()
        answer = fleet.ask(1)
        if not answer.admitted:
            verdict = answer.verdicts()[0]
            assert verdict.outcome is Outcome.DENIED
            assert 0 < (verdict.retry_after_us or 0) <= SPLIT_MARGIN_US + 50_000
            refused_us += 10_000
        elif fleet.split_at(1) is None:
            whole_us = fleet.clock.monotonic_us()
        fleet.clock.advance(10_000)
    assert SPLIT_HOLD_US <= whole_us - cold_us <= SPLIT_HOLD_US + SPLIT_HOLD_US // 4 + 20_000
    assert refused_us <= SPLIT_MARGIN_US + 50_000


def test_a_node_without_the_wholes_server_stops_in_time() -> None:
    """A node that cannot shut the gate uses the parts no longer than until it may open, and tells what it admitted when it can."""
    fleet = Fleet(TokenBucket(640, 640, US_PER_S), 2)
    fleet.promote(0)
    fleet.nodes[0].work()
    begun_us = fleet.clock.monotonic_us()
    for _ in range(100):
        fleet.ask(0)
    fleet.stores[0].flaky.down = True
    while fleet.split_at(0) is not None:
        fleet.clock.advance(50_000)
        fleet.nodes[0].work()
    assert fleet.clock.monotonic_us() - begun_us <= SPLIT_USE_US + 50_000 < SPLIT_HOLD_US
    fleet.stores[0].flaky.down = False
    fleet.retire(0)
    fleet.nodes[0].work()
    told = fleet.memory.decide_one([(fleet.counter, SUBJECT, 1)], peek=True).verdicts()[0]
    assert told.remaining == 540


def test_what_could_not_be_told_is_all_that_is_too_much() -> None:
    """A node that reaches the parts and not the whole goes on for ``SPLIT_USE_US``; the whole then admits what it does not know of, and no more."""
    fleet = Fleet(FixedWindow(640, 3_600 * US_PER_S), 2)
    fleet.promote(0)
    fleet.nodes[0].work()
    for _ in range(50):
        fleet.ask(0)
    fleet.clock.advance(SPLIT_RENEW_US)
    fleet.nodes[0].work()
    cut_off_us = fleet.clock.now_us()
    original = fleet.stores[0].flaky.decide

    def decide(requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        if any("#" not in request[0][1] for request in requests):
            raise StoreError("the server of the whole is not reached")
        return original(requests, peek=peek)

    fleet.stores[0].flaky.decide = decide  # type: ignore[method-assign]
    while fleet.split_at(0) is not None:
        fleet.ask(0)
        fleet.clock.advance(20_000)
        fleet.nodes[0].work()
    untold = len([time_us for time_us, _ in fleet.hits if time_us >= cut_off_us])
    assert 0 < untold <= SPLIT_USE_US // 20_000 + 1
    fleet.clock.advance(SPLIT_HOLD_US)
    for _ in range(700):
        fleet.ask(1)
    assert len(fleet.hits) == 640 + untold
    assert fleet.excess(untold) is None


def test_a_process_that_was_stopped_knows_that_its_time_is_over() -> None:
    """After a pause longer than the hold a node asks the whole, and is told by its gate where others keep it split."""
    fleet = Fleet(TokenBucket(640, 640, US_PER_S), 2)
    fleet.promote(0)
    fleet.promote(1)
    for _ in range(3):
        for node in fleet.nodes:
            node.work()
        fleet.clock.advance(SPLIT_RENEW_US)
    assert fleet.split_at(0) is not None
    for _ in range(20):
        fleet.clock.advance(SPLIT_RENEW_US)
        fleet.nodes[1].work()
    assert fleet.split_at(0) is None
    assert fleet.ask(0).admitted
    assert fleet.split_at(0) is not None
    fleet.clock.advance(10 * SPLIT_HOLD_US)
    assert fleet.split_at(0) is None
    assert fleet.ask(0).admitted
    assert fleet.split_at(0) is None
    assert fleet.excess() is None


def test_a_lost_reply_to_the_shutting_admits_nothing_twice() -> None:
    """The claimant does not know whether the gate is shut: its next request is told so, and the parts hold nothing yet."""
    fleet = Fleet(FixedWindow(640, 3_600 * US_PER_S), 2)
    fleet.promote(0)
    calls: list[int] = []

    def lose_third() -> None:
        calls.append(1)

    fleet.stores[0].meanwhile = lose_third
    original = fleet.stores[0].flaky.decide_one

    def decide_one(request: Request, *, peek: bool = False) -> Answer:
        if request[0][2] == CAPACITY_MAX:
            fleet.stores[0].flaky.lose_next = 1
        return original(request, peek=peek)

    fleet.stores[0].flaky.decide_one = decide_one  # type: ignore[method-assign]
    fleet.nodes[0].work()
    assert fleet.split_at(0) is None
    answer = fleet.ask(0)
    assert not answer.admitted
    assert fleet.split_at(0) is not None
    assert fleet.hits == []


def test_costs_above_a_part_take_several() -> None:
    """A cost that fits the limit is passed by parts that hold less; one above the limit never fits, and it is the whole that says so."""
    fleet = Fleet(TokenBucket(640, 640, US_PER_S), 1)
    fleet.promote(0)
    fleet.nodes[0].work()
    assert fleet.ask(0, 25).admitted
    assert fleet.ask(0, 290).admitted
    fleet.clock.advance(US_PER_S)
    assert fleet.ask(0, 640).admitted
    answer = fleet.ask(0, 1)
    assert (answer.admitted, answer.verdicts()[0].outcome) == (False, Outcome.DENIED)
    assert fleet.ask(0, 641).verdicts()[0].outcome is Outcome.NEVER_FITS
    assert fleet.excess() is None


@pytest.mark.parametrize("capacity", [20, 29, 640, 645, 10_000])
def test_all_costs_that_fit_fit_the_parts(capacity: int) -> None:
    """Whatever part is next, the pieces of a cost are distinct parts, add up, and each is within its part."""
    whole = (
        Fleet(TokenBucket(capacity, 1, US_PER_S), 1)
        .nodes[0]
        .splits.whole(counter_of(TokenBucket(capacity, 1, US_PER_S)))
    )
    assert whole is not None
    split = Split(whole, SUBJECT, 0, 0)
    for cost in {1, 2, 4, 5, 6, 9, 10, 11, 19, 20, capacity // 2, capacity - 1, capacity} - {0}:
        if cost <= capacity:
            for _ in range(len(whole.parts) + 1):
                charges = split.charges(cost)
                assert sum(piece for _, _, piece in charges) == cost
                assert len({subject for _, subject, _ in charges}) == len(charges)
                assert all(0 < piece <= part.spec.capacity for part, _, piece in charges)


def test_a_refund_goes_back_to_the_part() -> None:
    """What a part was charged is given back to it by the answer's receipts; gates are no part of them."""
    fleet = Fleet(TokenBucket(640, 640, 64 * US_PER_S), 1)
    fleet.promote(0)
    fleet.nodes[0].work()
    answers = [fleet.ask(0) for _ in range(640)]
    assert all(answer.admitted for answer in answers)
    assert not fleet.ask(0).admitted
    receipts = [receipt for answer in answers for receipt in answer.receipts()]
    assert len(receipts) == 640
    assert fleet.memory.refund(receipts) == 640
    assert fleet.ask(0).admitted


def test_resets_and_grants_reach_the_parts() -> None:
    """A counter that is split and used up is full again after a reset, and has what is granted, by all its parts together."""
    fleet = Fleet(FixedWindow(647, 3_600 * US_PER_S), 1)
    fleet.promote(0)
    fleet.nodes[0].work()
    for expected in (647, 100, 647):
        admitted = sum(answer.admitted for answer in (fleet.ask(0) for _ in range(800)))
        assert admitted == expected
        fleet.clock.advance(SPLIT_RENEW_US)
        fleet.nodes[0].work()
        if expected == 647:
            assert fleet.nodes[0].grant([(fleet.counter, SUBJECT, 100)]) == [100]
        else:
            assert fleet.nodes[0].reset([(fleet.counter, SUBJECT)]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3, 8])
def test_parts_are_used_alike(nodes: int) -> None:
    """Under-admission from imbalance: nodes that offer twice the rate are admitted at least 95 % of what the whole would admit."""
    spec = TokenBucket(640, 1_000, US_PER_S)
    fleet = Fleet(spec, nodes)
    for number in range(nodes):
        fleet.promote(number)
    while fleet.split_at(0) is None:
        for node in fleet.nodes:
            node.work()
        fleet.ask(0)
    fleet.hits.clear()
    begun_us = fleet.clock.now_us()
    while fleet.clock.now_us() - begun_us < 5 * US_PER_S:
        for _ in range(20):
            fleet.ask(fleet.draw.randrange(nodes))
        fleet.clock.advance(10_000)
        for node in fleet.nodes:
            node.work()
    assert len(fleet.hits) >= 0.95 * 5 * 1_000
    assert fleet.excess() is None


def test_what_is_not_split() -> None:
    """Too small limits, shadows and other precisions stay whole, and cost no gate."""
    fleet = Fleet(TokenBucket(19, 5, US_PER_S), 1)
    assert not fleet.promote(0)
    assert fleet.ask(0).admitted
    for counter in (
        counter_of(TokenBucket(500, 5, US_PER_S), shadow=True),
        counter_of(SPECS[0])._replace(precision=Precision.EXACT),
    ):
        assert fleet.nodes[0].splits.whole(counter) is None
    assert len(fleet.memory) == 1


def test_counts_of_refusals_stay() -> None:
    """``denied_counts`` holds for parts: who never stops asking is never admitted again; without it he gets the rate."""
    admitted = {}
    for denied_counts in (True, False):
        fleet = Fleet(SPECS[0], 1)
        fleet.counter = counter_of(TokenBucket(20, 2, US_PER_S), denied_counts=denied_counts)
        assert fleet.promote(0)
        fleet.nodes[0].work()
        for _ in range(60):
            fleet.ask(0)
        fleet.hits.clear()
        for _ in range(40):
            fleet.clock.advance(250_000)
            fleet.nodes[0].work()
            fleet.ask(0)
        admitted[denied_counts] = len(fleet.hits)
    assert admitted[True] == 0
    assert admitted[False] >= 18


def test_batches_and_other_rules() -> None:
    """A batch is decided in order, split counters beside others; a request that another rule refuses is not told to the whole."""
    fleet = Fleet(TokenBucket(640, 640, US_PER_S), 2)
    fleet.promote(0)
    fleet.nodes[0].work()
    other = Counter("o", FixedWindow(3, 60 * US_PER_S), "default:o:fixed_window:60000000:0:")
    requests = [[(other, "ip:a", 1), (fleet.counter, SUBJECT, 2)] for _ in range(5)]
    answers = fleet.nodes[1].decide(requests)
    assert [answer.admitted for answer in answers] == [True, True, True, False, False]
    assert [[charge[0].name for charge in answer.refused()] for answer in answers[3:]] == [["o"], ["o"]]
    assert all(len(answer.verdicts()) == 2 for answer in answers)
    split = fleet.split_at(1)
    assert split is not None
    assert split.admitted == 6
