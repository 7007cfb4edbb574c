"""How long decisions take, as a histogram of a sample of them.

One request in ``DURATION_SAMPLE_ONE_IN`` is measured, which adds about 0.1 us to each on the mean. The sum and
the count of the histogram are those of the sample: quantiles and averages are right, and how many decisions there were is in other metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from sluicegate.bounds import DURATION_SAMPLE_ONE_IN
from sluicegate.clock import US_PER_S, Clock

__all__ = ["BUCKETS_US", "Durations", "Example", "sampled", "sampled_later"]

BUCKETS_US: Final = (25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000, 1_000_000)
"""Upper ends of the buckets, in microseconds. Decisions in memory take tens of them, those of a store hundreds and more."""

A = TypeVar("A")
R = TypeVar("R")

Later = Callable[[A, Callable[[R], None]], None]
"""Answers by calling what it is given, then or later."""


class Example(NamedTuple):
    """One of the requests of a bucket, whose trace is sampled: an exemplar, in the words of OpenMetrics."""

    trace_id: str
    """32 hexadecimal digits."""
    took_us: int
    ended_us: int
    """By the wall clock."""


class Durations:
    """A histogram. ``counts``: one for each of ``BUCKETS_US`` and one for what is longer; ``sum_us`` of all; ``examples``: the
    last with a sampled trace in each. Read at any time."""

    __slots__ = ("_trace_id", "clock", "counts", "examples", "sum_us")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.counts = [0] * (len(BUCKETS_US) + 1)
        self.examples: list[Example | None] = [None] * len(self.counts)
        self.sum_us = 0
        self._trace_id = 0

    @contextmanager
    def of_trace(self, trace_id: int) -> Iterator[None]:
        """What begins meanwhile, on the same thread, is of this sampled trace."""
        self._trace_id = trace_id
        try:
            yield
        finally:
            self._trace_id = 0

    def begin(self) -> tuple[int, int]:
        """The monotonic time and the sampled trace of what begins now (0: none)."""
        return self.clock.monotonic_us(), self._trace_id

    def add(self, began_us: int, trace_id: int = 0) -> None:
        """Something that began at this monotonic time has ended now; ``trace_id`` as ``begin`` gave it."""
        took_us = max(0, self.clock.monotonic_us() - began_us)
        place = bisect_left(BUCKETS_US, took_us)
        self.counts[place] += 1
        if trace_id:
            self.examples[place] = Example(f"{trace_id:032x}", took_us, self.clock.now_us())
        self.sum_us += took_us

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulated counts by upper end in seconds, as Prometheus wants them, and the sum in seconds."""
        total, found = 0, []
        ends = [*(f"{end / US_PER_S:g}" for end in BUCKETS_US), "+Inf"]
        for end, count in zip(ends, list(self.counts), strict=True):
            total += count
            found.append((end, float(total)))
        return found, self.sum_us / US_PER_S


def sampled(handler: Callable[[A], R], durations: Durations) -> Callable[[A], R]:
    """The same handler; one call in ``DURATION_SAMPLE_ONE_IN`` is measured, the first one included."""
    left = 1

    def measured(argument: A) -> R:
        nonlocal left
        left -= 1
        if left:
            return handler(argument)
        left = DURATION_SAMPLE_ONE_IN
        began_us, trace_id = durations.begin()
        try:
            return handler(argument)
        finally:
            durations.add(began_us, trace_id)

    return measured


def sampled_later(handler: Later[A, R], durations: Durations) -> Later[A, R]:
    """The same for a handler that answers later; what is measured ends with its answer."""
    left = 1

    def measured(argument: A, answer: Callable[[R], None]) -> None:
        nonlocal left
        left -= 1
        if left:
            handler(argument, answer)
            return
        left = DURATION_SAMPLE_ONE_IN
        began_us, trace_id = durations.begin()

        def answered(reply: R) -> None:
            durations.add(began_us, trace_id)
            answer(reply)

        handler(argument, answered)

    return measured
