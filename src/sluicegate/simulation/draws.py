"""Random numbers of the fleet model: counts of a Poisson process, and clients by Zipf's law without a table of all of them."""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

__all__ = ["Stratum", "Zipf", "poisson", "strata"]

_SMALL = 30.0
_EULER_FROM = 256


def poisson(draw: Random, mean: float) -> int:
    """How often something happens that is expected ``mean`` times (>= 0).

    Exact below 30, by counting exponential gaps; above, a normal variable of the same mean and variance, rounded and not below 0.
    """
    if mean <= 0.0:
        return 0
    if mean < _SMALL:
        floor, product, count = math.exp(-mean), draw.random(), 0
        while product > floor:
            product *= draw.random()
            count += 1
        return count
    return max(0, round(draw.gauss(mean, math.sqrt(mean))))


class Zipf:
    """Clients 1..``keys``; client k has k ** -``exponent`` of the weight. Sums are by the formula of Euler and Maclaurin, right to ten digits."""

    def __init__(self, keys: int, exponent: float) -> None:
        self.keys = keys
        self.exponent = exponent
        self._whole = self._sum(1, keys)

    def share(self, rank: int) -> float:
        """The part of all checks that is this client's."""
        return float(rank**-self.exponent) / self._whole

    def shares(self, first: int, last: int) -> float:
        """The part of the clients ``first`` to ``last``, both included; 0 where there are none."""
        return self._sum(first, last) / self._whole if first <= last else 0.0

    def rank_at(self, share: float) -> int:
        """The last client whose part is at least this much; 0 for none."""
        rank = int(min((share * self._whole) ** (-1.0 / self.exponent), float(self.keys)) + 1e-9)
        return max(0, min(rank, self.keys))

    def _sum(self, first: int, last: int) -> float:
        s = self.exponent
        low = min(max(first, _EULER_FROM), last + 1)
        total = math.fsum(k**-s for k in range(first, low))
        if low > last:
            return total
        low_f, last_f = float(low), float(last)
        area = math.log(last_f / low_f) if s == 1.0 else (last_f ** (1 - s) - low_f ** (1 - s)) / (1 - s)
        ends = (low_f**-s + last_f**-s) / 2
        slopes = s * (low_f ** (-s - 1) - last_f ** (-s - 1)) / 12
        return float(total + area + ends + slopes)


class Stratum(NamedTuple):
    """Ranks ``first`` to ``last``, of which ``ranks`` are played; each stands for ``weight`` clients."""

    first: int
    last: int
    ranks: tuple[int, ...]
    weight: float


def strata(draw: Random, head: int, last: int, each: int) -> list[Stratum]:
    """The ranks 1..``last``: the first ``head`` whole, the others in parts that grow by a fifth, ``each`` drawn of a part without replacement."""
    found = [Stratum(1, min(head, last), tuple(range(1, min(head, last) + 1)), 1.0)] if last else []
    first = head + 1
    while first <= last:
        end = min(last, max(first, first * 6 // 5))
        ranks = range(first, end + 1)
        chosen = tuple(sorted(draw.sample(ranks, min(each, len(ranks)))))
        found.append(Stratum(first, end, chosen, len(ranks) / len(chosen)))
        first = end + 1
    return found
