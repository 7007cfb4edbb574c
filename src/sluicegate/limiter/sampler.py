"""A random sample of the requests that are decided, for trying other rules on them.

Between two reports every request has the same chance to be in the sample, however many there are: reservoir sampling by Algorithm L (Li:
Reservoir-Sampling Algorithms of Time Complexity O(n(1 + log(N/n))), 1994), which draws how many requests to skip, so that one that is skipped
costs a subtraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, Final

from msgspec import structs

from sluicegate.bounds import SAMPLE_CHARS_MAX
from sluicegate.clock import Clock
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import Sample
from sluicegate.stores.locks import Locked

__all__ = ["Sampler"]

_Drawn = tuple[int, Facts, int]
_FIELDS: Final = tuple(name for name in Facts.__struct_fields__ if name != "headers")


class Sampler(Locked):
    """Draws up to ``size`` requests between two calls of ``take``; 0: none, and it is never asked then. Safe from any thread.

    ``changed`` is called when ``on`` changes. Under threads a request or two may be skipped that should have been drawn.
    """

    __slots__ = ("_changed", "_clock", "_drawn", "_random", "_skip", "_weight", "on", "size")

    def __init__(self, clock: Clock, changed: Callable[[], None] | None = None, random: Random | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._changed = changed
        self._random = random or Random()  # noqa: S311 -- chooses among requests; nothing is kept secret by it
        self.on = False
        self.size = 0
        self._begin()

    def resize(self, size: int) -> None:
        """Draw so many from now on; what was drawn is forgotten where the number is another."""
        with self._lock:
            if size == self.size:
                return
            self.size = size
            self.on = size > 0
            self._begin()
        if self._changed is not None:
            self._changed()

    def saw(self, facts: Facts, cost: int) -> None:
        """A request was asked about."""
        if self._skip > 0:
            self._skip -= 1
            return
        with self._lock:
            self._draw((self._clock.now_us(), facts, cost))

    def take(self) -> list[Sample]:
        """What was drawn since the last call, in order of time, without headers; requests that are too long are left out."""
        with self._lock:
            drawn = self._drawn
            self._begin()
        drawn.sort(key=lambda each: each[0])
        samples = (Sample(at_us, _facts(facts), cost) for at_us, facts, cost in drawn)
        return [sample for sample in samples if _chars(sample.facts) <= SAMPLE_CHARS_MAX]

    def _begin(self) -> None:
        self._drawn: list[_Drawn] = []
        self._weight = 1.0
        self._skip = 0

    def _draw(self, request: _Drawn) -> None:
        drawn, size = self._drawn, self.size
        if len(drawn) < size:
            drawn.append(request)
            if len(drawn) < size:
                return
        elif size:
            drawn[self._random.randrange(size)] = request
        if size:
            self._weight *= math.exp(math.log(1.0 - self._random.random()) / size)
            if self._weight >= 1.0:
                return
            # A weight this small has no logarithm of its complement; nothing more is drawn then.
            complement = math.log1p(-self._weight)
            self._skip = int(math.log(1.0 - self._random.random()) / complement) if complement else 1 << 62


def _facts(facts: Facts) -> dict[str, Any]:
    known = structs.asdict(facts)
    return {name: known[name] for name in _FIELDS if known[name] is not None}


def _chars(facts: dict[str, Any]) -> int:
    return len(repr(facts))
