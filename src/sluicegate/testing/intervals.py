"""Checks a bound over *all* intervals of a history of admissions, not over chosen ones.

A history is a list of ``(time in microseconds, cost)`` in the order of decision. A bound is a function from the length
of a half-open interval to the most tokens it may hold, and does not fall with the length. It is enough to look at
intervals that begin with one hit and end with another: any other holds no more than a shorter one of these.

Refused hits belong in the history with cost 0: they hold nothing, but a clock that went back and forth between two
admissions is seen only through them.

Clocks that go back. A time that occurs twice is two moments. ``elapsed`` gives histories a time that never goes back
by letting nothing pass while the clock does, which is how buckets, logs and strict windows count; ``segments`` cuts a
history where the clock went back, for algorithms whose windows are tied to the clock's own edges.

Times that are known only within bounds, as where real processes note when they asked and when they had their answer, make
spans instead of hits. ``worst_span_excess`` counts in an interval what was certainly admitted within it, so what it reports is an excess
at whatever moment of its span each admission was made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

__all__ = ["Excess", "Hit", "Span", "busiest", "elapsed", "segments", "worst_excess", "worst_span_excess"]

Hit: TypeAlias = tuple[int, int]
"""(time in microseconds, cost)."""

Span: TypeAlias = tuple[int, int, int]
"""(earliest and latest time in microseconds, cost): it was admitted somewhere between the two, both included."""

_BLOCK = 64
"""So many ends of spans are looked at together; only where their sum might be too much, one by one."""


class Excess(NamedTuple):
    """An interval ``[start_us, end_us)`` that holds ``admitted`` tokens where ``allowed`` is the most."""

    start_us: int
    end_us: int
    admitted: int
    allowed: int


def worst_excess(hits: Iterable[Hit], bound: Callable[[int], int]) -> Excess | None:
    """The interval that exceeds ``bound`` by most, or None where none does.

    Looks at every pair of distinct times; the bound is asked once for each distinct length. Times must not go back
    (ValueError): see ``elapsed`` and ``segments``.
    """
    times, sums = _summed(hits)
    allowed: dict[int, int] = {}
    worst: Excess | None = None
    excess = 0
    for first, start_us in enumerate(times):
        before = sums[first]
        for last in range(first, len(times)):
            length_us = times[last] - start_us + 1
            most = allowed.get(length_us)
            if most is None:
                most = allowed[length_us] = bound(length_us)
            if sums[last + 1] - before - most > excess:
                excess = sums[last + 1] - before - most
                worst = Excess(start_us, start_us + length_us, sums[last + 1] - before, most)
    return worst


def worst_span_excess(spans: Iterable[Span], bound: Callable[[int], int]) -> Excess | None:
    """The interval that exceeds ``bound`` by most, counting the spans that lie wholly within it; None where none does.

    Every interval is looked at, in any order of the spans. Many together are passed over where all that ends in them
    is within the bound of the shortest.
    """
    by_start = sorted([span for span in spans if span[2]])
    by_end = sorted(by_start, key=lambda span: span[1])
    ends = [end_us for _, end_us, _ in by_end]
    # What has ended at each of them, and at none.
    sums = [0, *accumulate([cost for _, _, cost in by_end])]
    worst: Excess | None = None
    excess = 0
    began, across = 0, list[Span]()
    for place, (start_us, _, _) in enumerate(by_start):
        if place and by_start[place - 1][0] == start_us:
            continue
        # ``across``: those that began before and have not ended; they count in no interval that begins here.
        across = [span for span in across if span[1] >= start_us]
        open_cost = sum([span[2] for span in across])
        for first in range(bisect_left(ends, start_us), len(ends), _BLOCK):
            last = min(first + _BLOCK, len(ends))
            shortest_us = max(ends[first] - start_us, 0) + 1
            if sums[last] - began + open_cost - bound(shortest_us) <= excess:
                continue
            for at in range(first, last):
                end_us = ends[at]
                admitted = sums[at + 1] - began + sum([span[2] for span in across if span[1] > end_us])
                # Others of the same end are counted with the last of them.
                if (at + 1 == len(ends) or ends[at + 1] > end_us) and admitted > excess:
                    allowed = bound(end_us - start_us + 1)
                    if admitted - allowed > excess:
                        excess = admitted - allowed
                        worst = Excess(start_us, end_us + 1, admitted, allowed)
        here = by_start[place : bisect_left(by_start, (start_us + 1,), lo=place)]
        across += here
        began += sum([span[2] for span in here])
    return worst


def busiest(hits: Iterable[Hit], length_us: int) -> int:
    """The most tokens in any half-open interval of ``length_us``; one pass. Times must not go back (ValueError)."""
    times, sums = _summed(hits)
    most = first = 0
    for last, time_us in enumerate(times):
        while time_us - times[first] >= length_us:
            first += 1
        most = max(most, sums[last + 1] - sums[first])
    return most


def elapsed(hits: Sequence[Hit]) -> list[Hit]:
    """The history with its times replaced by time passed: steps back count as no time, steps forward as they are."""
    passed, result = 0, list(hits[:1])
    for (before_us, _), (time_us, cost) in pairwise(hits):
        passed += max(time_us - before_us, 0)
        result.append((hits[0][0] + passed, cost))
    return result


def segments(hits: Iterable[Hit]) -> list[list[Hit]]:
    """The history cut before every hit whose time is earlier than its predecessor's."""
    result: list[list[Hit]] = []
    for hit in hits:
        if not result or hit[0] < result[-1][-1][0]:
            result.append([])
        result[-1].append(hit)
    return result


def _summed(hits: Iterable[Hit]) -> tuple[list[int], list[int]]:
    """Distinct times in order, and the running sums of the costs: ``sums[i]`` is what came before ``times[i]``."""
    times: list[int] = []
    sums = [0]
    latest_us: int | None = None
    for time_us, cost in hits:
        if latest_us is not None and time_us < latest_us:
            raise ValueError(f"hits: time goes back from {latest_us} to {time_us}")
        latest_us = time_us
        if cost == 0:
            continue
        if times and time_us == times[-1]:
            sums[-1] += cost
        else:
            times.append(time_us)
            sums.append(sums[-1] + cost)
    return times, sums
