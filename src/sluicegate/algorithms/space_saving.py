"""Space-Saving: what comes most often in a stream, counted in bounded memory and with guarantees.

Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005. Of all keys ``size`` are
counted. One that is not among them takes the place of one counted least, and its count goes on from there; how much of a count
is inherited is kept beside it as its error.

Of N events a key that is counted came at least ``count - error`` and at most ``count`` times; error, and what an uncounted key came, are
at most N / size; so every key that came more than N / size times is counted. The counts add up to N.

The paper keeps the counts sorted. Here the least ones are looked for when those found before are used up: each search raises the
least count, which is at most N / size, and looks at ``size`` counts, so N events pay for at most N steps of searching. A key that is
counted costs one dictionary write.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["SpaceSaving", "Tally"]

K = TypeVar("K", bound=Hashable)


class Tally(NamedTuple, Generic[K]):
    """``key`` came at least ``times - error`` and at most ``times`` times."""

    key: K
    times: int
    error: int


class SpaceSaving(Generic[K]):
    """Counts of at most ``size`` (>= 1) keys. Not safe under threads: its owner holds a lock. ValueError for a smaller size."""

    __slots__ = ("_counts", "_errors", "_least", "_least_keys", "_size")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size: must be >= 1, got {size}")
        self._size = size
        self.clear()

    def clear(self) -> None:
        """Begin anew: no event was seen."""
        self._counts: dict[K, int] = {}
        self._errors: dict[K, int] = {}
        self._least = 0
        # Keys that had the least count when it was last looked for; those that came since have more.
        self._least_keys: list[K] = []

    def add(self, key: K, times: int = 1) -> int:
        """One event, or ``times`` (>= 1) of one key: how often ``key`` came at most. A tenth of a microsecond for a key that is counted; for another one constant on the average, with a step of ``size`` now and then."""
        counts = self._counts
        if key in counts:
            counts[key] = count = counts[key] + times
            return count
        if len(counts) < self._size:
            counts[key] = times
            return times
        return self._replace_least(key, times)

    def _replace_least(self, key: K, times: int) -> int:
        counts, least, candidates = self._counts, self._least, self._least_keys
        while True:
            while candidates:
                gone = candidates.pop()
                if counts[gone] == least:
                    del counts[gone]
                    self._errors.pop(gone, None)
                    counts[key] = least + times
                    self._errors[key] = least
                    return least + times
            self._least = least = min(counts.values())
            self._least_keys = candidates = [one for one, count in counts.items() if count == least]

    def __len__(self) -> int:
        """The keys that are counted."""
        return len(self._counts)

    @property
    def total(self) -> int:
        """The events since the beginning; takes ``size`` steps."""
        return sum(self._counts.values())

    def guaranteed(self, key: K) -> int:
        """How often ``key`` came at least; 0 where it is not counted."""
        return self._counts.get(key, 0) - self._errors.get(key, 0)

    @property
    def uncounted(self) -> int:
        """A key that is not counted came at most this often; takes ``size`` steps."""
        return 0 if len(self._counts) < self._size else min(self._counts.values())

    def tallies(self) -> list[Tally[K]]:
        """Every key that is counted, in no order."""
        errors = self._errors
        return [Tally(key, count, errors.get(key, 0)) for key, count in self._counts.items()]

    def guaranteed_above(self, least: int) -> list[tuple[K, int]]:
        """The keys that certainly came ``least`` times or more, and how often at least."""
        errors = self._errors
        return [
            (key, sure)
            for key, count in self._counts.items()
            if count >= least and (sure := count - errors.get(key, 0)) >= least
        ]
