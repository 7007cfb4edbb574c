"""The clients that are refused most, in bounded memory.

Counted by Space-Saving (``sluicegate.algorithms.space_saving``): of N refusals a client's count is never below the true number and at
most N / size above it, and every client refused more than N / size times is among those told.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from sluicegate.algorithms.space_saving import SpaceSaving, Tally
from sluicegate.bounds import OFFENDERS_MAX
from sluicegate.stores.locks import Locked

__all__ = ["Client", "Offenders", "Reader", "Refused"]

Client: TypeAlias = tuple[str, str]
"""A rule and the subject of its counter."""


class Refused(NamedTuple):
    """Refusals since the last look. ``tallies``: by client, in no order. ``totals``: all, by rule.

    ``uncounted``: a client that is not among ``tallies`` was refused at most this often by one rule.
    """

    tallies: list[Tally[Client]]
    totals: dict[str, int]
    uncounted: int


class Reader:
    """One who is told of every refusal, whoever else is; what waits for it is bounded as the counting is."""

    __slots__ = ("_offenders", "_waiting")

    def __init__(self, offenders: Offenders) -> None:
        self._offenders = offenders
        self._waiting: list[Refused] = []

    def take(self) -> Refused:
        """What came since its last call."""
        return self._offenders._take_for(self)

    def _put(self, found: Refused, size: int) -> None:
        self._waiting = [_merged([*self._waiting, found], size)]

    def _get(self) -> Refused:
        waiting, self._waiting = self._waiting, []
        return waiting[0] if waiting else Refused([], {}, 0)


class Offenders(Locked):
    """Counts refusals by (rule, subject). Safe from any thread. A refusal costs about half a microsecond, an allowed request nothing.

    Who takes them is one reader; ``reader`` makes further ones, and each is told of all.
    """

    __slots__ = ("_main", "_others", "_seen", "_size", "_totals")

    def __init__(self, size: int = OFFENDERS_MAX) -> None:
        super().__init__()
        self._size = size
        self._seen: SpaceSaving[Client] = SpaceSaving(size)
        self._totals: dict[str, int] = {}
        self._main = Reader(self)
        self._others: tuple[Reader, ...] = ()

    @property
    def refusals(self) -> int:
        """Refusals since somebody took them last."""
        with self._lock:
            return self._seen.total

    def refused(self, rule: str, subject: str) -> None:
        """A rule has refused a client, or would have if it were no shadow."""
        with self._lock:
            self._seen.add((rule, subject))
            self._totals[rule] = self._totals.get(rule, 0) + 1

    def take(self, at_most: int | None = None) -> list[tuple[str, str, int]]:
        """(rule, subject, times) since the last call, the most refused first, ``at_most`` of them (None: all that are counted)."""
        found = sorted(self._main.take().tallies, key=lambda tally: (-tally.times, tally.key))
        return [(*tally.key, tally.times) for tally in found[:at_most]]

    def reader(self) -> Reader:
        """A further one who is told of all refusals, from now on; ``forget`` ends it."""
        with self._lock:
            # What came before is for those who are there already.
            self._hand_out()
            reader = Reader(self)
            self._others += (reader,)
        return reader

    def forget(self, reader: Reader) -> None:
        """Nothing is kept for this one any more."""
        with self._lock:
            self._others = tuple(other for other in self._others if other is not reader)

    def _take_for(self, reader: Reader) -> Refused:
        with self._lock:
            self._hand_out()
            return reader._get()

    def _hand_out(self) -> None:
        if not self._totals:
            return
        found = Refused(self._seen.tallies(), self._totals, self._seen.uncounted)
        self._seen, self._totals = SpaceSaving(self._size), {}
        for reader in (self._main, *self._others):
            reader._put(found, self._size)


def _merged(parts: list[Refused], size: int) -> Refused:
    """Several looks as one (Agarwal et al.: Mergeable Summaries, PODS 2012): what one did not count adds its uncertainty."""
    if len(parts) == 1:
        return parts[0]
    uncounted = sum(part.uncounted for part in parts)
    totals: dict[str, int] = {}
    counts: dict[Client, list[int]] = {}
    for part in parts:
        for rule, times in part.totals.items():
            totals[rule] = totals.get(rule, 0) + times
        for key, times, error in part.tallies:
            row = counts.setdefault(key, [uncounted, uncounted])
            row[0] += times - part.uncounted
            row[1] += error - part.uncounted
    found = sorted((Tally(key, *row) for key, row in counts.items()), key=lambda tally: (-tally.times, tally.key))
    if len(found) > size:
        uncounted = max(uncounted, found[size].times)
    return Refused(found[:size], totals, uncounted)
