"""Timing of short calls: rounds that alternate between all contenders, in one process.

The time is the thread's processor time, not the clock on the wall, so that other processes of the machine count little.
The garbage collector runs as it does by default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Pass", "one_pass", "rounds_us"]

Pass = Callable[[], int]
"""Does something many times and returns how often."""


def one_pass(call: Callable[[Any], object], arguments: Sequence[Any]) -> int:
    """Call once with each argument, in a plain loop that adds as little as a loop can."""
    for argument in arguments:
        call(argument)
    return len(arguments)


def rounds_us(contenders: Mapping[str, Pass], rounds: int) -> dict[str, list[float]]:
    """Microseconds per call in each round, by contender. Every other round goes through them backwards."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for work in contenders.values():
        work()
    order = list(contenders.items())
    for _ in range(rounds):
        for name, work in order:
            begun_ns = time.thread_time_ns()
            calls = work()
            times[name].append((time.thread_time_ns() - begun_ns) / calls / 1_000)
        order.reverse()
    return times
