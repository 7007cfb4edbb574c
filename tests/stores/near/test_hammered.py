"""Counters for which many processes are hammered: asked about more rarely, nothing is lost, and nobody who waits as he was told waits longer."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.stores.near.denials import Denials
from sluicegate.stores.near.rechecks import HAMMERED, Rechecks, room_us

S = 1_000_000
MS = 1_000
KEY = "default:api:token_bucket:-:0:user:1"
FREE = TokenBucket(100, 100, 60 * S)
REFILL_US = 600 * MS
NODES = 8
TERMS = LeaseTerms()


def denials_of(nodes: int = NODES, stretch_us: int = 5 * S) -> Denials:
    return Denials(10, S, TERMS, nodes=lambda: nodes, stretch_max_us=stretch_us)


def learn(
    denials: Denials, sent_us: int, wait_us: int = REFILL_US, spec: Spec = FREE, cost: int = 1, *, passed: bool = False
) -> None:
    denials.learn(KEY, spec, cost, wait_us, sent_us, denials.epoch, sent_us, passed=passed)


def refused(denials: Denials, times: int, now_us: int, spec: Spec = FREE) -> int | None:
    """The last of so many questions: how long to wait."""
    return [denials.refuses(KEY, spec, 1, now_us) for _ in range(times)][-1]


def hammered(denials: Denials, rounds: int, spec: Spec = FREE) -> int:
    """So many refusals in a row by the store, each token taken by others, with a flood between: when the last question was sent."""
    sent_us = 0
    for _ in range(rounds):
        learn(denials, sent_us, spec=spec)
        told_us = refused(denials, 10, sent_us + 1, spec)
        assert told_us is not None
        sent_us += 1 + told_us
        assert denials.refuses(KEY, spec, 1, sent_us) is None
    return sent_us


@pytest.mark.parametrize(
    ("nodes", "spec", "stretch_us", "factor"),
    [
        (NODES, FREE, 60 * S, NODES),
        (3, FREE, 60 * S, 3),
        (NODES, FREE, 2 * S, 3),
        (1, FREE, 5 * S, 0),
        (NODES, FREE, 0, 0),
        (NODES, FixedWindow(100, 60 * S), 5 * S, 0),
        (1_000, TokenBucket(20, 100, 60 * S), 60 * S, 5),
        (1_000, SlidingLog(100, 60 * S), 60 * S, 6),
    ],
)
def test_a_refusal_lasts_twice_as_long_each_time_up_to_a_bound(
    nodes: int, spec: Spec, stretch_us: int, factor: int
) -> None:
    """Once per process at most, a part of the counter at most, ``stretch_max_us`` at most; one process, a fixed window: as the store said."""
    denials = denials_of(nodes, stretch_us)
    sent_us = hammered(denials, 12, spec)
    learn(denials, sent_us, spec=spec)
    told_us = refused(denials, HAMMERED, sent_us + 1, spec)
    assert told_us is not None
    longest_us = min(factor * REFILL_US or REFILL_US, stretch_us or REFILL_US, room_us(spec) or REFILL_US)
    assert max(longest_us * 3 // 4, REFILL_US) - 1 <= told_us <= longest_us


def test_the_first_time_it_lasts_as_the_store_said_and_the_second_twice_as_long() -> None:
    """There must be evidence: the store refuses again, because somebody else took the token."""
    denials = denials_of()
    learn(denials, 0)
    assert refused(denials, 10, 1) == REFILL_US - 1
    learn(denials, 1_024_000)
    assert refused(denials, 10, 1_024_001) == 2 * REFILL_US - 1
    assert refused(denials, 1, 1_024_000 + 2 * REFILL_US) is None


def test_asking_a_little_too_early_is_no_evidence() -> None:
    """A refusal is repeated for a hundredth or two less than the store said; then it says that the same wait goes on."""
    denials = denials_of()
    sent_us = 0
    for number in range(1, 20):
        learn(denials, sent_us)
        assert refused(denials, 10, sent_us + 1) == REFILL_US - 1
        early_us = sent_us + TERMS.usable_us(REFILL_US)
        learn(denials, early_us, sent_us + REFILL_US - early_us)
        learn(denials, sent_us + REFILL_US, passed=True)
        sent_us = number * S


def test_it_gets_shorter_as_soon_as_asking_is_worth_it() -> None:
    """Half as long after each question that is answered with yes; then as the store says."""
    denials = denials_of()
    sent_us = hammered(denials, 8) // 256 * 256 + 256
    waits = []
    for _ in range(4):
        learn(denials, sent_us, passed=True)
        told_us = refused(denials, 10, sent_us)
        assert told_us is not None
        waits.append(told_us)
        sent_us += told_us // 256 * 256 + 256
    assert waits == [4 * REFILL_US, 2 * REFILL_US, REFILL_US, REFILL_US]


@pytest.mark.parametrize("early", [0, 1, 2])
def test_who_comes_back_when_he_was_told_is_asked_about(early: int) -> None:
    """However often the counter was refused before, by whomever: a client that waits for the store's time is not turned away then, nor one that was too early once or twice at first."""
    denials = denials_of()
    learn(denials, 0)
    refused(denials, early or 1, 1)
    assert denials.refuses(KEY, FREE, 1, REFILL_US) is None
    sent_us = hammered(denials_again := denials_of(), 8)
    learn(denials_again, sent_us)
    assert denials_again.refuses(KEY, FREE, 1, sent_us + REFILL_US) is None


def test_what_was_long_ago_says_nothing() -> None:
    """A client that hammered and is back after a while is asked about as anybody."""
    denials = denials_of()
    sent_us = hammered(denials, 8) + 6 * S
    learn(denials, sent_us)
    assert refused(denials, 10, sent_us) == REFILL_US


@pytest.mark.parametrize("news", ["forget", "heard", "all"])
def test_news_end_it(news: str) -> None:
    """What is given back passes at once, and the hammering before it counts no more."""
    denials = denials_of()
    sent_us = hammered(denials, 8)
    learn(denials, sent_us)
    assert refused(denials, 10, sent_us) is not None
    if news == "heard":
        denials.heard([hash(KEY)])
    else:
        denials.forget([KEY] if news == "forget" else None)
    assert refused(denials, 10, sent_us + 1) is None
    learn(denials, sent_us + 2)
    assert refused(denials, 10, sent_us + 2) == REFILL_US


def test_processes_that_were_refused_together_do_not_ask_together() -> None:
    """Up to a quarter is taken off, by the time of asking."""
    rechecks = Rechecks(TERMS, S, 60 * S)
    lasts = {rechecks.stretched_us(FREE, REFILL_US, NODES, sent_us) for sent_us in range(256)}
    assert len(lasts) == 256
    assert NODES * REFILL_US * 3 // 4 <= min(lasts) <= max(lasts) == NODES * REFILL_US


class Fleet:
    """Processes with a deny cache each in front of one counter, which answers at once."""

    def __init__(self, spec: Spec, nodes: int, *, stretched: bool = True) -> None:
        self.caches = [denials_of(nodes, 5 * S if stretched else 0) for _ in range(nodes)]
        self.spec: Any = spec
        self.state: Any = None
        self.asked = self.admitted = 0

    def check(self, node: int, now_us: int) -> int:
        """How long to wait, 0 where it passes."""
        denials, spec = self.caches[node], self.spec
        wait_us = denials.refuses(KEY, spec, 1, now_us)
        if wait_us is not None:
            return wait_us
        self.asked += 1
        after = spec.admit(self.state, now_us, 1)
        passed = after is not None
        if passed:
            self.state = after
            self.admitted += 1
        # The last token teaches too.
        if not passed or spec.admit(self.state, now_us, 1) is None:
            wait_us = spec.verdict(self.state, now_us, 1, False).retry_after_us
            if wait_us:
                denials.learn(KEY, spec, 1, wait_us, now_us, denials.epoch, now_us, passed=passed)
        return 0 if passed else wait_us or 0


def play(fleet: Fleet, per_s: float, seconds: int, seed: int, *, affinity: bool = False) -> tuple[float, float]:
    """(admitted, asked) a second of a client that comes at random to every process, or to the first alone, after it has used up its burst."""
    draw, now_us = Random(seed), 60 * S
    for _ in range(fleet.spec.capacity):
        fleet.check(0, now_us)
    fleet.asked = fleet.admitted = 0
    end_us = now_us + seconds * S
    while now_us < end_us:
        now_us += int(draw.expovariate(per_s) * S) + 1
        fleet.check(0 if affinity else draw.randrange(len(fleet.caches)), now_us)
    return fleet.admitted / seconds, fleet.asked / seconds


@pytest.mark.parametrize("affinity", [False, True])
@pytest.mark.parametrize("per_s", [2.5, 5.0, 20.0, 200.0])
@pytest.mark.parametrize(
    "spec", [FREE, LeakyBucket(100, 100, 60 * S), SlidingWindow(100, 60 * S), SlidingLog(100, 60 * S), FixedWindow(100, 60 * S)], ids=lambda spec: type(spec).__name__,
)  # fmt: skip
def test_nothing_is_lost_by_asking_more_rarely(spec: Spec, per_s: float, affinity: bool) -> None:
    """Over ten minutes a client gets what it gets of processes that ask for every token, less a hundredth at most, whether or not it keeps to one process."""
    admitted, asked = play(Fleet(spec, NODES), per_s, 600, seed=int(per_s), affinity=affinity)
    plain, plainly = play(Fleet(spec, NODES, stretched=False), per_s, 600, seed=int(per_s), affinity=affinity)
    assert admitted >= 0.99 * plain
    assert asked <= 1.05 * plainly


def test_with_affinity_nothing_changes() -> None:
    """One process that alone is asked for a counter never refuses for longer than the store said."""
    fleets = [Fleet(FREE, NODES, stretched=stretched) for stretched in (False, True)]
    assert len({play(fleet, 50.0, 120, seed=3, affinity=True) for fleet in fleets}) == 1


def test_a_flood_over_many_processes_is_few_questions() -> None:
    """Eight processes that would each ask for every token, two or three times, ask a third as often or less."""
    _, before = play(Fleet(FREE, NODES, stretched=False), 1_000, 60, seed=1)
    _, after = play(Fleet(FREE, NODES), 1_000, 60, seed=1)
    assert before > 24
    assert after < before / 3


def test_a_polite_client_never_waits_longer() -> None:
    """Who comes back when it is told, to any process, is told the same as if nothing ever lasted longer."""
    waits: list[list[int]] = []
    for stretched in (False, True):
        fleet, draw, now_us, seen = Fleet(FREE, NODES, stretched=stretched), Random(5), S, []
        for _ in range(2_000):
            wait_us = fleet.check(draw.randrange(NODES), now_us)
            seen.append(wait_us)
            now_us += wait_us or 1
        waits.append(seen)
    assert waits[0] == waits[1]
    assert waits[0].count(0) > 1_000
