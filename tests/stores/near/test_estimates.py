"""Admission by chance: what a fleet admits of a limit, at steady load, when loads jump and when the store is away."""

from __future__ import annotations

from random import Random

import pytest

from sluicegate.algorithms import FixedWindow, Outcome, Precision, Spec, TokenBucket
from sluicegate.bounds import ESTIMATE_REFRESH_US, ESTIMATE_TRUST_US
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near.hot import HotStore
from sluicegate.stores.near.settings import NearSettings
from sluicegate.testing import FlakyStore, LaterStore
from sluicegate.testing.intervals import busiest

SUBJECT = "*"
TICK_US = 10_000


class Fleet:
    """Nodes on one store under random load, in ticks. ``hits``: what was admitted; ``calls``: what the store was asked."""

    def __init__(self, spec: Spec, nodes: int, seed: int = 1) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        prefix = counter_prefix("default", "r", spec.algorithm, spec.shape)
        self.counter = Counter("r", spec, prefix, precision=Precision.ESTIMATED)
        self.draw = Random(seed)
        self.flaky = [FlakyStore(self.memory) for _ in range(nodes)]
        self.nodes = [
            HotStore(
                LaterStore(flaky),
                NearSettings(),
                self.clock.monotonic_us,
                self.clock.now_us,
                Random(1_000 * seed + number),
                threads=False,
            )
            for number, flaky in enumerate(self.flaky)
        ]
        self.hits: list[tuple[int, int]] = []
        self.due_us = [0] * nodes

    @property
    def key(self) -> str:
        return self.counter.prefix + SUBJECT

    @property
    def calls(self) -> int:
        return sum(flaky.calls for flaky in self.flaky)

    def promote(self) -> None:
        for number, node in enumerate(self.nodes):
            assert node.promote(self.counter, SUBJECT, self.clock.monotonic_us())
            # Nodes do their chores at times of their own.
            self.due_us[number] = self.clock.monotonic_us() + self.draw.randrange(ESTIMATE_REFRESH_US)

    def ask(self, number: int, cost: int = 1) -> Answer:
        answer = self.nodes[number].decide_one([(self.counter, SUBJECT, cost)])
        if answer.admitted:
            self.hits.append((self.clock.now_us(), cost))
        return answer

    def run(self, seconds: float, per_s: float, *, nodes: int | None = None, cost: int = 1) -> None:
        """A load for so long, spread at random over the first ``nodes``."""
        end_us = self.clock.monotonic_us() + round(seconds * US_PER_S)
        due = 0.0
        while self.clock.monotonic_us() < end_us:
            due += per_s * TICK_US / US_PER_S
            count = max(0, round(self.draw.gauss(due, due**0.5)))
            due = 0.0 if count else due
            for _ in range(count):
                self.ask(self.draw.randrange(nodes or len(self.nodes)), cost)
            self.clock.advance(TICK_US)
            for number, node in enumerate(self.nodes):
                if self.clock.monotonic_us() >= self.due_us[number]:
                    next_us = node.work()
                    self.due_us[number] = (
                        self.clock.monotonic_us() + ESTIMATE_REFRESH_US if next_us is None else next_us
                    )

    def admitted(self, since_us: int) -> int:
        return sum(cost for time_us, cost in self.hits if time_us >= since_us)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 4, 16])
@pytest.mark.parametrize("load", [0.5, 1.5, 5.0, 40.0])
def test_steady_load_is_admitted_at_the_rate(nodes: int, load: float) -> None:
    """Below the limit everything passes; above it the fleet is admitted the rate, within 10 % over ten seconds."""
    rate = 500
    fleet = Fleet(TokenBucket(500, rate, US_PER_S), nodes)
    fleet.promote()
    fleet.run(1, rate * load)
    since_us, asked = fleet.clock.now_us(), fleet.calls
    fleet.run(10, rate * load)
    admitted = fleet.admitted(since_us) / 10
    if load < 1:
        assert admitted > 0.97 * rate * load
    else:
        assert 0.9 * rate <= admitted <= 1.1 * rate, admitted
    # Ten calls a second for each node, whatever the load.
    assert fleet.calls - asked <= 10 * 11 * nodes


@pytest.mark.slow
@pytest.mark.parametrize("factor", [3, 10, 100])
@pytest.mark.parametrize("nodes", [1, 8])
def test_a_jump_costs_what_is_stated(nodes: int, factor: int) -> None:
    """From the limit to a multiple of it at once: at most 2 * rate * age + rate / 10 + 2 * nodes beyond the limit, whatever the factor."""
    rate, worst = 500, 0.0
    for seed in range(1, 4):
        fleet = Fleet(TokenBucket(500, rate, US_PER_S), nodes, seed)
        fleet.promote()
        fleet.run(2, 0.9 * rate)
        since_us = fleet.clock.now_us()
        fleet.run(1, factor * rate)
        worst = max(worst, fleet.admitted(since_us) - rate)
    age_us = ESTIMATE_REFRESH_US + TICK_US
    stated = 2 * rate * age_us / US_PER_S + rate / 10 + 2 * nodes
    assert worst <= stated + 3 * rate**0.5, (worst, stated)


@pytest.mark.slow
def test_the_absolute_bound() -> None:
    """Any load: jumps up and down by any factor never admit more than 2.5 times the rate and a token per node and refresh in a second."""
    rate, nodes = 400, 5
    fleet = Fleet(FixedWindow(rate, US_PER_S), nodes, 9)
    fleet.promote()
    fleet.run(1, rate)
    fleet.hits.clear()
    for _ in range(25):
        fleet.run(
            fleet.draw.choice((0.2, 0.5, 1.0)),
            rate * fleet.draw.choice((0.2, 1, 3, 30)),
            nodes=fleet.draw.choice((1, 5)),
        )
    assert busiest(fleet.hits, US_PER_S) <= 2.5 * rate + nodes * 11


@pytest.mark.slow
def test_costs_are_admitted_by_their_sum() -> None:
    """Requests of cost 7 are admitted at a seventh of the rate; one above the capacity is the store's to refuse."""
    fleet = Fleet(TokenBucket(700, 700, US_PER_S), 3)
    fleet.promote()
    fleet.run(1, 1_000, cost=7)
    since_us = fleet.clock.now_us()
    fleet.run(10, 1_000, cost=7)
    assert 0.88 * 7_000 <= fleet.admitted(since_us) <= 1.12 * 7_000
    assert fleet.ask(0, 701).verdicts()[0].outcome is Outcome.NEVER_FITS


@pytest.mark.slow
def test_what_others_refuse_is_not_offered() -> None:
    """A rule that refuses nine of ten requests leaves a tenth of the load for this one, and that is what its chance is taken from."""
    fleet = Fleet(TokenBucket(300, 300, US_PER_S), 2)
    fleet.promote()
    fleet.run(1, 3_000)
    other = Counter("o", FixedWindow(1, 3_600 * US_PER_S), "default:o:fixed_window:3600000000:0:")
    admitted = requests = 0
    for _ in range(600):
        for _ in range(30):
            requests += 1
            # One in ten is a new client, who passes the other rule; that is 300 a second.
            client = f"ip:{requests}" if requests % 10 == 0 else "ip:known"
            answer = fleet.nodes[requests % 2].decide_one([(other, client, 1), (fleet.counter, SUBJECT, 1)])
            admitted += answer.admitted
        fleet.clock.advance(TICK_US)
        for node in fleet.nodes:
            node.work()
    # 1,800 offered in six seconds, and as many fit; the first second was spent at the old figure.
    assert admitted >= 1_300, admitted


def test_nothing_is_known_at_first_and_too_long_after() -> None:
    """Without a figure the store decides; a figure without a refresh is used for ``ESTIMATE_TRUST_US``, then the store's error goes up."""
    fleet = Fleet(TokenBucket(10, 1, US_PER_S), 1)
    fleet.promote()
    assert [fleet.ask(0).admitted for _ in range(11)] == [True] * 10 + [False]
    fleet.run(1, 1_000)
    fleet.flaky[0].down = True
    failed_us = fleet.clock.monotonic_us()
    admitted = 0
    with pytest.raises(StoreError):
        for _ in range(2_000):
            admitted += fleet.ask(0).admitted
            fleet.clock.advance(2_000)
            fleet.nodes[0].work()
    assert (
        ESTIMATE_TRUST_US - ESTIMATE_REFRESH_US <= fleet.clock.monotonic_us() - failed_us <= ESTIMATE_TRUST_US + TICK_US
    )
    assert admitted <= 3
    fleet.flaky[0].down = False
    assert not fleet.ask(0).admitted


def test_the_counter_knows_what_was_used() -> None:
    """What was admitted by chance is charged to the counter, so peeks see it and exact decisions go on from there."""
    fleet = Fleet(FixedWindow(1_000_000, 3_600 * US_PER_S), 3)
    fleet.promote()
    fleet.run(3, 800)
    for node in fleet.nodes:
        node.retire(fleet.key, fleet.clock.monotonic_us())
        node.work()
    peeked = fleet.nodes[0].decide_one([(fleet.counter, SUBJECT, 1)], peek=True)
    assert peeked.verdicts()[0].remaining == 1_000_000 - len(fleet.hits)


@pytest.mark.slow
def test_answers_are_estimates_on_the_safe_side() -> None:
    """A pass tells what a second has room for beyond what is offered, a refusal waits until the rate has room for its cost; no receipts."""
    fleet = Fleet(TokenBucket(500, 500, US_PER_S), 1)
    fleet.promote()
    fleet.run(2, 100)
    answer = fleet.ask(0)
    assert answer.admitted
    assert not answer.asked
    assert answer.receipts() == ()
    assert 300 <= answer.verdicts()[0].remaining <= 450
    fleet.run(2, 20_000)
    refused = next(answer for answer in (fleet.ask(0) for _ in range(1_000)) if not answer.admitted)
    verdict = refused.verdicts()[0]
    assert (verdict.outcome, verdict.remaining, verdict.retry_after_us) == (Outcome.DENIED, 0, ESTIMATE_REFRESH_US)
    assert [charge[0].name for charge in refused.refused()] == ["r"]


def test_a_lost_reply_counts_twice_rather_than_not() -> None:
    """A report whose reply is lost is made again: the counter is charged too much, never too little."""
    fleet = Fleet(FixedWindow(1_000_000, 3_600 * US_PER_S), 1)
    fleet.promote()
    fleet.run(1, 500)
    fleet.flaky[0].lose_next = 1
    fleet.run(1, 500)
    fleet.nodes[0].close()
    peeked = fleet.memory.decide_one([(fleet.counter, SUBJECT, 1)], peek=True)
    assert 1_000_000 - peeked.verdicts()[0].remaining >= len(fleet.hits)
