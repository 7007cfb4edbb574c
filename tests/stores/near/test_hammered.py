"""Buckets that are hammered in many processes: each process asks for its share of the tokens, not for every one of them."""

from __future__ import annotations

from random import Random

import pytest

from sluicegate.algorithms import FixedWindow, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.stores.near.denials import Denials

S = 1_000_000
MS = 1_000
KEY = "default:api:token_bucket:-:0:user:1"
FREE = TokenBucket(100, 100, 60 * S)
REFILL_US = 600 * MS
NODES = 8


def denials_of(nodes: int = NODES, trust_us: int = 10 * S) -> Denials:
    return Denials(10, trust_us, LeaseTerms(), nodes=lambda: nodes)


def learn(denials: Denials, sent_us: int, wait_us: int = REFILL_US, spec: Spec = FREE, cost: int = 1) -> None:
    denials.learn(KEY, spec, cost, wait_us, sent_us, denials.epoch, sent_us)


def refused(denials: Denials, times: int, now_us: int, spec: Spec = FREE, cost: int = 1) -> int | None:
    """The last of so many questions: how long to wait."""
    return [denials.refuses(KEY, spec, cost, now_us) for _ in range(times)][-1]


def test_a_hammered_bucket_is_asked_about_when_the_share_of_this_process_has_come() -> None:
    """As many refusals here as processes: the next one lasts for a token of each, and says so to the client."""
    denials = denials_of()
    learn(denials, 0)
    assert refused(denials, NODES, 1) is not None
    learn(denials, 599 * MS + 64, wait_us=2 * MS)  # Sent at an even 256: nothing is taken off.
    end_us = 599 * MS + 64 + NODES * REFILL_US
    end_us -= NODES * REFILL_US * ((599 * MS + 64) & 255) >> 10
    assert refused(denials, 1, end_us - 1) in (1, 2)
    assert refused(denials, 1, end_us + 1) is None


@pytest.mark.parametrize(
    ("nodes", "times", "spec", "pause_us"),
    [
        (NODES, NODES - 1, FREE, 0),
        (1, 1_000, FREE, 0),
        (NODES, 1_000, FixedWindow(100, 60 * S), 0),
        (NODES, 1_000, SlidingWindow(100, 60 * S), 0),
        (NODES, 1_000, FREE, NODES * REFILL_US),
        (1_000, 1_000, TokenBucket(20, 100, 60 * S), 5 * REFILL_US),
        (NODES, 1_000, TokenBucket(3, 100, 60 * S), 0),
    ],
)
def test_who_is_not_asked_about_sooner(nodes: int, times: int, spec: Spec, pause_us: int) -> None:
    """Few refusals, one process, a window, a small bucket: as the store said. Never for longer than a quarter of the bucket takes to fill."""
    denials = denials_of(nodes)
    learn(denials, 0, spec=spec)
    refused(denials, times, 1, spec)
    learn(denials, 1_024_000, wait_us=100 * MS, spec=spec)
    begun_us, least_us = 1_024_000, max(pause_us, LeaseTerms().usable_us(100 * MS))
    assert refused(denials, 1, begun_us + least_us - 1, spec) is not None
    assert refused(denials, 1, begun_us + least_us, spec) is None


def test_it_never_lasts_longer_than_a_refusal_is_trusted() -> None:
    """What is not heard of is found out as soon as ever."""
    denials = denials_of(trust_us=S)
    learn(denials, 0)
    refused(denials, 100, 1)
    learn(denials, 1_024_000 - 256_000)
    assert refused(denials, 1, 768_000 + S - 1) == 1
    assert refused(denials, 1, 768_000 + S) is None


def test_processes_that_were_refused_together_do_not_ask_together() -> None:
    """Up to a quarter of the pause is taken off, by the time of asking."""
    ends = set()
    for sent_us in range(768_000, 768_256):
        denials = denials_of()
        learn(denials, 0)
        refused(denials, 100, 1)
        learn(denials, sent_us)
        ends.add(denials._entries[KEY].ends_us)
    assert len(ends) == 256
    assert min(ends) >= 768_000 + NODES * REFILL_US * 3 // 4
    assert max(ends) <= 768_256 + NODES * REFILL_US


def test_a_client_that_stops_hammering_is_refused_as_the_store_says() -> None:
    """One refusal may last longer; the next one does not."""
    denials = denials_of()
    learn(denials, 0)
    refused(denials, 100, 1)
    learn(denials, 768_000)
    told_us = refused(denials, 1, 768_001)
    assert told_us is not None
    back_us = 768_001 + told_us
    assert refused(denials, 1, back_us) is None
    learn(denials, back_us)
    assert refused(denials, 1, back_us + REFILL_US) is None


def test_what_was_long_ago_says_nothing() -> None:
    """A client that hammered and is back after a while is asked about as anybody."""
    denials = denials_of(trust_us=S)
    learn(denials, 0)
    refused(denials, 100, 1)
    learn(denials, 2 * S)
    assert refused(denials, 1, 2 * S + REFILL_US) is None


def test_news_end_it() -> None:
    """What is given back passes at once, and the hammering before it counts no more."""
    denials = denials_of()
    learn(denials, 0)
    refused(denials, 100, 1)
    denials.forget([KEY])
    learn(denials, 768_000)
    assert refused(denials, 100, 768_000 + REFILL_US) is None
    learn(denials, 768_000 + REFILL_US)
    assert refused(denials, 100, 768_001 + REFILL_US) is not None
    learn(denials, 768_000 + 2 * REFILL_US)
    denials.heard([hash(KEY)])
    assert refused(denials, 1, 768_001 + 2 * REFILL_US) is None


class Fleet:
    """Processes with a deny cache each in front of one bucket, which answer at once."""

    def __init__(self, nodes: int, told_nodes: int, trust_us: int) -> None:
        self.caches = [denials_of(told_nodes, trust_us) for _ in range(nodes)]
        self.state: int | None = None
        self.asked = self.admitted = 0

    def check(self, node: int, now_us: int) -> int:
        """How long to wait, 0 where it passes."""
        denials = self.caches[node]
        wait_us = denials.refuses(KEY, FREE, 1, now_us)
        if wait_us is not None:
            return wait_us
        self.asked += 1
        after = FREE.admit(self.state, now_us, 1)
        passed = after is not None
        if passed:
            self.state = after
            self.admitted += 1
        # The last token teaches too.
        verdict = FREE.verdict(self.state, now_us, 1, False)
        if verdict.retry_after_us:
            denials.learn(KEY, FREE, 1, verdict.retry_after_us, now_us, denials.epoch, now_us)
        return 0 if passed else verdict.retry_after_us or 0


def play(fleet: Fleet, per_s: float, seconds: int, seed: int) -> tuple[float, float]:
    """(admitted, asked) a second of a client that comes at random to every process, after it has used up its burst."""
    draw, now_us = Random(seed), S
    for _ in range(100):
        fleet.check(0, now_us)
    fleet.asked = fleet.admitted = 0
    end_us = now_us + seconds * S
    while now_us < end_us:
        now_us += int(draw.expovariate(per_s) * S) + 1
        fleet.check(draw.randrange(len(fleet.caches)), now_us)
    return fleet.admitted / seconds, fleet.asked / seconds


@pytest.mark.parametrize("trust_us", [S, 5 * S])
@pytest.mark.parametrize("per_s", [2.0, 5.0, 20.0, 200.0])
def test_no_token_is_lost_by_asking_more_rarely(per_s: float, trust_us: int) -> None:
    """Over five minutes the client gets what it may, whether it is just above its limit or far above."""
    admitted, _ = play(Fleet(NODES, NODES, trust_us), per_s, 300, seed=int(per_s))
    assert 1.6 <= admitted <= 1.67


def test_a_flood_over_many_processes_is_few_questions() -> None:
    """Eight processes that would ask for every token, two or three times each, ask for their shares."""
    _, before = play(Fleet(NODES, 1, S), 1_000, 60, seed=1)
    _, after = play(Fleet(NODES, NODES, S), 1_000, 60, seed=1)
    _, longer = play(Fleet(NODES, NODES, 5 * S), 1_000, 60, seed=1)
    assert before > 24
    assert after < before / 2
    assert longer < 6


def test_a_polite_client_never_waits_longer() -> None:
    """Who comes back when it is told, to any process, is told the same as if there were one process."""
    draws = Random(5), Random(5)
    waits: list[list[int]] = []
    for told, draw in zip((1, NODES), draws, strict=True):
        fleet, now_us, seen = Fleet(NODES, told, S), S, []
        for _ in range(2_000):
            wait_us = fleet.check(draw.randrange(NODES), now_us)
            seen.append(wait_us)
            now_us += wait_us or 1
        waits.append(seen)
    assert waits[0] == waits[1]
    assert waits[0].count(0) > 1_000
