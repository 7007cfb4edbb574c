"""Merging summaries of heavy hitters: of several nodes, of several intervals, of merges themselves, in any order.

Agarwal, Cormode, Huang, Phillips, Wei, Yi: Mergeable Summaries, PODS 2012, for Space-Saving and Misra-Gries.

A summary of N events tells of some clients, each with ``times`` and ``error``, and has ``untold``, E below. It holds that
a client told of came at most ``times`` and at least ``times - error`` times, with error <= E, and any other at most E times.

Merged. Where a client is not told of by one of the summaries, that one's E is added to its ``times`` and to its ``error``: it
came 0 to E times there. Sums of true bounds are true bounds. The new E is the sum of all.

Cut to k clients. The k with the most ``times`` stay as they are, and E becomes the most ``times`` among those left out, which
bounds what each of those came, and is at least what E was.

How large E grows. Write L = times - E for a client told of. A Space-Saving summary of k counters has sum(times) = N and E its least
count, so k E <= N - sum(L). That inequality survives both steps. Merging adds left sides and right sides (a client's L is the
sum of its L, 0 where it is not told of). Cutting raises E by c, the L of the first client left out, which lowers each of the k L that
stay by c: the left side grows by k c, and the right side by at least that. As no L of those that stay is below 0,

    E <= N / k

however many summaries were merged and in whatever order: every client that came more than N / k times is told of. Nodes that count
all rules in one table of k have the N of all rules there. A summary that tells of every client has E = 0 and any k.

Kept here per client are L over the summaries that tell of it and what its error is below E, so that a client which a summary does not
tell of costs nothing: a merge is one step per client told of.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sluicegate.bounds import OFFENDERS_MERGED_MAX

__all__ = ["Bounds", "Merger", "Summary", "merged"]


class Bounds(NamedTuple):
    """A client came at most ``times`` and at least ``times - error`` times."""

    times: int
    error: int


class Summary(NamedTuple):
    """Clients that came often, of one rule and kind.

    ``clients``: by name. ``total``: all events, those of other clients included; None where it is not known. ``untold``: a client that is
    not among ``clients`` came at most this often. ``sample_rate``: the share of events that was looked at; below 1 all numbers are
    estimates that were scaled up, and the bounds only likely.
    """

    clients: Mapping[str, Bounds]
    total: int | None = None
    untold: int = 0
    sample_rate: float = 1.0


# How many clients more than it may keep a merger holds before it sorts them out: each is sorted once on the average.
_SLACK: Final = 2


class Merger:
    """Merges summaries of one rule and kind, as many as come, and keeps at most ``size`` (>= 1) clients of them.

    Not safe under threads. ValueError for a smaller size.
    """

    __slots__ = ("_is_total_known", "_sample_rate", "_saved", "_size", "_sure", "_total", "_untold")

    def __init__(self, size: int = OFFENDERS_MERGED_MAX) -> None:
        if size < 1:
            raise ValueError(f"size: must be >= 1, got {size}")
        self._size = size
        self._sure: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._untold = 0
        self._total = 0
        self._is_total_known = True
        self._sample_rate = 1.0

    def add(self, summary: Summary) -> None:
        """Take one more. A microsecond for each client that it tells of."""
        sure, saved, untold = self._sure, self._saved, summary.untold
        for name, (times, error) in summary.clients.items():
            sure[name] = sure.get(name, 0) + times - untold
            saved[name] = saved.get(name, 0) + untold - error
        self._untold += untold
        self._sample_rate = min(self._sample_rate, summary.sample_rate)
        if summary.total is None:
            self._is_total_known = False
        else:
            self._total += summary.total
        if len(sure) > _SLACK * self._size:
            self._cut()

    def summary(self) -> Summary:
        """All that was added, as one. More may be added afterwards."""
        if len(self._sure) > self._size:
            self._cut()
        untold, saved = self._untold, self._saved
        clients = {name: Bounds(own + untold, untold - saved[name]) for name, own in self._sure.items()}
        total = self._total if self._is_total_known else None
        return Summary(clients, total, untold, self._sample_rate)

    def _cut(self) -> None:
        """Keep the clients with the most ``times``; of equal ones those first by name, so that who merges the same gets the same."""
        ranked = heapq.nsmallest(self._size + 1, self._sure.items(), key=_most_first)
        step = max(0, ranked.pop()[1])
        self._sure = {name: own - step for name, own in ranked}
        self._saved = {name: self._saved[name] + step for name in self._sure}
        self._untold += step


def merged(summaries: Iterable[Summary], size: int = OFFENDERS_MERGED_MAX) -> Summary:
    """Summaries of one rule and kind as one of at most ``size`` clients."""
    merger = Merger(size)
    for summary in summaries:
        merger.add(summary)
    return merger.summary()


def _most_first(entry: tuple[str, int]) -> tuple[int, str]:
    return -entry[1], entry[0]
