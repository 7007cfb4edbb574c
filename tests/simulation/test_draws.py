"""Random counts have the mean and variance they should; sums of Zipf's law are those of its terms; strata hold every rank once."""

from __future__ import annotations

import math
import statistics
from random import Random

import pytest

from sluicegate.simulation.draws import Zipf, poisson, strata


@pytest.mark.parametrize("mean", [0.2, 3.0, 29.9, 30.1, 700.0])
def test_poisson(mean: float) -> None:
    """Mean and variance of a Poisson count are both what is expected."""
    draw = Random(7)
    found = [poisson(draw, mean) for _ in range(20_000)]
    assert statistics.fmean(found) == pytest.approx(mean, rel=0.03)
    assert statistics.pvariance(found) == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize("mean", [0.0, -1.0])
def test_nothing_is_expected(mean: float) -> None:
    """Where nothing is expected nothing happens."""
    assert poisson(Random(1), mean) == 0


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.1, 2.0])
@pytest.mark.parametrize("keys", [1, 255, 256, 257, 5_000])
def test_shares_are_sums(keys: int, exponent: float) -> None:
    """The share of ranks is the sum of their terms over the sum of all."""
    zipf = Zipf(keys, exponent)
    terms = [k**-exponent for k in range(1, keys + 1)]
    whole = math.fsum(terms)
    for first, last in ((1, keys), (1, 1), (keys, keys), (min(20, keys), min(400, keys)), (min(300, keys), keys)):
        assert zipf.shares(first, last) == pytest.approx(math.fsum(terms[first - 1 : last]) / whole, rel=1e-9)
    assert zipf.shares(5, 4) == 0.0


def test_rank_at_is_the_last_that_has_so_much() -> None:
    """``rank_at`` gives the last rank whose share is at least the one given."""
    zipf = Zipf(1_000, 1.1)
    for rank in (1, 2, 17, 999, 1_000):
        assert zipf.rank_at(zipf.share(rank)) == rank
        assert zipf.rank_at(zipf.share(rank) * 1.0001) == rank - 1
    assert zipf.rank_at(2.0) == 0


@pytest.mark.parametrize("last", [0, 1, 50, 51, 60, 10_000])
def test_strata_hold_every_rank_once(last: int) -> None:
    """Strata follow each other without a gap, the ranks played of one are its own and differ, and weights add up to the ranks."""
    found = strata(Random(3), 50, last, 8)
    assert [rank for each in found for rank in range(each.first, each.last + 1)] == list(range(1, last + 1))
    for each in found:
        assert len(set(each.ranks)) == len(each.ranks)
        assert all(each.first <= rank <= each.last for rank in each.ranks)
        assert each.weight * len(each.ranks) == pytest.approx(each.last - each.first + 1)
