"""The sweep finds what looking at every pair of times finds."""

from __future__ import annotations

from random import Random

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.simulation.sweep import Sweep
from sluicegate.testing.intervals import worst_excess


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_every_pair(seed: int) -> None:
    """The excess of a random history is that of its worst interval, within the token that a fraction of one is rounded to."""
    draw = Random(seed)
    spec = TokenBucket(draw.randint(1, 20), draw.randint(1, 7), 1_000)
    sweep, hits, now_us = Sweep(spec), [], 0
    for _ in range(300):
        now_us += draw.randrange(0, 400)
        tokens = draw.randrange(0, 4)
        hits.append((now_us, tokens))
        sweep.admitted(now_us, tokens)
    worst = worst_excess(hits, spec.most_admitted)
    expected = worst.admitted - worst.allowed if worst else 0
    assert abs(sweep.excess - expected) <= 1
    assert (sweep.excess > 0) == (expected > 0)
    assert sweep.total == sum(tokens for _, tokens in hits)


def test_what_a_bucket_admits_is_within_its_bound() -> None:
    """A history that the bucket itself has admitted has no excess."""
    draw, spec = Random(4), TokenBucket(10, 3, 1_000)
    sweep, state, now_us = Sweep(spec), None, 0
    for _ in range(5_000):
        now_us += draw.randrange(0, 300)
        after = spec.admit(state, now_us, 1)
        if after is not None:
            state = after
            sweep.admitted(now_us, 1)
    assert sweep.total > 1_000
    assert sweep.excess == 0


def test_time_does_not_go_back() -> None:
    """A time before the last one is an error that names both."""
    sweep = Sweep(TokenBucket(1, 1, 1_000))
    sweep.admitted(5, 1)
    with pytest.raises(ValueError, match="from 5 to 4"):
        sweep.admitted(4, 1)
