"""The clock that leases end by."""

from __future__ import annotations

import time

from sluicegate.clock import ManualClock, SystemClock, steady_us


def test_a_manual_clock_is_followed() -> None:
    """It moves with ``advance`` and not with a step of the wall clock."""
    clock = ManualClock()
    read = steady_us(clock)
    clock.advance(5)
    clock.set(0)
    assert read() == 5


def test_the_machine_is_asked_for_the_time_since_it_was_started() -> None:
    """Where the system has a clock that goes on while it is suspended, that is read; it does not go back."""
    read = steady_us(SystemClock())
    first = read()
    if hasattr(time, "CLOCK_BOOTTIME"):
        assert abs(first - time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000) < 60_000_000
    assert read() >= first
