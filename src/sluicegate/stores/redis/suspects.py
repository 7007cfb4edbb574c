"""Counters that refused lately, so that a refused request costs the other counters nothing.

A request over several hash slots charges them side by side and gives back what it charged where another refuses; a bucket gets
back less than it gave by what flowed in meanwhile. A client that keeps asking after a refusal would so drain the counters it
shares with others. Therefore a counter that refused is decided alone, before the others are charged, until it said it
would pass again: a client causes at most one such give-back for each request that it is admitted.
"""

from __future__ import annotations

from sluicegate.bounds import REDIS_SUSPECTS_MAX
from sluicegate.clock import Clock
from sluicegate.stores.base import Charge

__all__ = ["Suspects"]


class Suspects:
    """Which charges are likely to be refused. Safe from any thread: a lost note costs one give-back."""

    __slots__ = ("_clock", "_until_us")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_us: dict[tuple[str, str], int] = {}

    def refused(self, charge: Charge, retry_after_us: int | None) -> None:
        """Take note of a refusal; ``retry_after_us`` None (the cost never fits) needs no note."""
        if retry_after_us is None:
            return
        counter, subject, _ = charge
        noted = self._until_us
        if len(noted) >= REDIS_SUSPECTS_MAX:
            # Emptied rather than searched: a flood of refused clients costs one give-back each.
            noted.clear()
        noted[counter.prefix, subject] = self._clock.monotonic_us() + retry_after_us

    def holds(self, charge: Charge) -> bool:
        """Whether the charge should be decided before others are made. Shadow counters refuse nobody and are never held."""
        counter, subject, cost = charge
        if counter.shadow:
            return False
        if cost > counter.spec.capacity:
            return True
        key = (counter.prefix, subject)
        until_us = self._until_us.get(key)
        if until_us is None:
            return False
        if self._clock.monotonic_us() < until_us:
            return True
        self._until_us.pop(key, None)
        return False
