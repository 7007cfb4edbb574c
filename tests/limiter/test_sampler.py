"""Requests drawn at random."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from sluicegate.bounds import SAMPLE_CHARS_MAX
from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.sampler import Sampler
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

RULES = "version: 1\nrules:\n  - {name: api, per: [user], quota: 5/minute}\n"


@pytest.fixture
def limiter():
    with Limiter.from_rules(load_rules(RULES, "test")) as made:
        yield made


def test_every_request_has_the_same_chance():
    """Of 200 requests, 10 are drawn; over 2,000 rounds the first, the middle and the last are drawn equally often."""
    sampler = Sampler(ManualClock(), random=Random(1))
    sampler.resize(10)
    drawn: Counter[str] = Counter()
    for _ in range(2_000):
        for number in range(200):
            sampler.saw(Facts(user=str(number)), 1)
        taken = sampler.take()
        assert len({sample.facts["user"] for sample in taken}) == 10
        drawn.update(sample.facts["user"] for sample in taken)
    # 100 each, with a standard deviation of 9.7.
    counts = [drawn[str(number)] for number in range(200)]
    assert min(counts) > 55
    assert max(counts) < 145
    for part in (counts[:20], counts[90:110], counts[180:]):
        assert sum(part) == pytest.approx(2_000, abs=5 * 43)


def test_fewer_requests_than_are_wanted():
    """All are told, in order, with their time and cost, and the next sample begins empty."""
    clock = ManualClock()
    sampler = Sampler(clock)
    sampler.resize(10)
    for cost in (1, 2, 3):
        sampler.saw(Facts(user="u", path="/a"), cost)
        clock.advance(5)
    taken = sampler.take()
    start = clock.now_us() - 15
    assert [(sample.at_us - start, sample.cost) for sample in taken] == [(0, 1), (5, 2), (10, 3)]
    assert taken[0].facts == {"user": "u", "path": "/a"}
    assert sampler.take() == []


def test_what_is_drawn_of_a_limiter(limiter):
    """Decisions are drawn, listed ones too, and looks are not; headers are left out; a request that is too long is nobody's sample."""
    sampler = limiter.known.sampler
    limiter.check({"user": "before"})
    sampler.resize(10)
    assert limiter.known.active
    limiter.check({"user": "a", "headers": {"cookie": "secret"}})
    limiter.peek({"user": "b"})
    limiter.check({"user": "c" * SAMPLE_CHARS_MAX})
    limiter.check({"user": "a"}, 2)
    assert [(sample.facts, sample.cost) for sample in sampler.take()] == [({"user": "a"}, 1), ({"user": "a"}, 2)]
    sampler.resize(0)
    assert not limiter.known.active
    limiter.check({"user": "after"})
    assert sampler.take() == []


def test_a_wrong_type_is_told_by_its_field(limiter):
    """A fact of the wrong type is the caller's error, and no sample, with a sample being drawn."""
    limiter.known.sampler.resize(3)
    with pytest.raises(ValueError, match=r"facts\.user"):
        limiter.check(Facts(user=7))  # type: ignore[arg-type]
    assert limiter.known.sampler.take() == []
