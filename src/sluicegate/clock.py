"""The only reader of time.

Two readings with different uses: ``now_us`` is wall time (integer microseconds since the Unix epoch) and
dates counters; ``monotonic_us`` never goes back and measures durations (timeouts, intervals, ages). A
wall clock can be stepped by NTP or an administrator, so algorithms treat time that goes back as no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["US_PER_MS", "US_PER_S", "Clock", "ManualClock", "SystemClock", "steady_us", "wall_ns"]

US_PER_MS = 1_000
US_PER_S = 1_000_000


class Clock(Protocol):
    """A source of time. Implementations are safe to call from any thread."""

    def now_us(self) -> int:
        """Wall time in microseconds since the epoch; may step in either direction."""
        ...

    def monotonic_us(self) -> int:
        """Microseconds from an arbitrary origin; never decreases within one process."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000


class ManualClock:
    """A clock that moves only when told to: for logs that carry their own time, simulation and tests.

    ``start_us`` is the first wall reading. The monotonic reading starts at 0 and follows ``advance`` but
    not ``set``, exactly as a real monotonic clock ignores a wall-clock step.
    """

    __slots__ = ("_monotonic_us", "_now_us")

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = start_us
        self._monotonic_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._monotonic_us

    def advance(self, delta_us: int) -> None:
        """Let ``delta_us`` microseconds pass on both readings (>= 0)."""
        if delta_us < 0:
            raise ValueError(f"delta_us must be >= 0, got {delta_us}; use set() to step the wall clock")
        self._now_us += delta_us
        self._monotonic_us += delta_us

    def set(self, now_us: int) -> None:
        """Step the wall clock to ``now_us``, in either direction."""
        self._now_us = now_us


def wall_ns(clock: Clock) -> Callable[[], int]:
    """A function that gives ``clock.now_us() * 1000``, by the shortest way there is.

    For code that reads the time on every request and divides by 1000 itself: for the machine's clock that saves a call.
    """
    if type(clock) is SystemClock:
        return time.time_ns
    return lambda: clock.now_us() * 1_000


def steady_us(clock: Clock) -> Callable[[], int]:
    """A function that gives microseconds from an arbitrary origin and never goes back, also counting time the machine slept.

    ``clock.monotonic_us``, except for the machine's clock where the system has one that goes on while it is suspended (Linux). For
    what must end in time whatever happens to the machine; a virtual machine that is paused stops on both.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if type(clock) is not SystemClock or boot is None:
        return clock.monotonic_us
    return lambda: time.clock_gettime_ns(boot) // 1_000
