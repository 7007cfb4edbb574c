"""How fast a process that ends is started again."""

from __future__ import annotations

from sluicegate.app.workers.pacing import Pacing
from sluicegate.bounds import RESTART_PAUSE_FIRST_S, RESTART_PAUSE_MAX_S, STEADY_LIFE_S
from sluicegate.clock import US_PER_S, ManualClock


def lives(clock: ManualClock, pacing: Pacing, life_s: float) -> float:
    """One life of this length, and the pause after it."""
    pacing.born()
    clock.advance(int(life_s * US_PER_S))
    pause_s = pacing.died()
    clock.advance(int(pause_s * US_PER_S))
    return pause_s


def test_pauses_grow_to_the_longest() -> None:
    """What dies at once is restarted at once the first time, then after pauses that double up to the longest."""
    clock = ManualClock()
    pacing = Pacing(clock)
    pauses = [lives(clock, pacing, 0.1) for _ in range(9)]
    assert pauses == [0, *(RESTART_PAUSE_FIRST_S * 2**n for n in range(6)), RESTART_PAUSE_MAX_S, RESTART_PAUSE_MAX_S]


def test_a_long_life_makes_up_for_short_ones() -> None:
    """After a life of ``STEADY_LIFE_S`` there is no pause, and the pauses begin anew."""
    clock = ManualClock()
    pacing = Pacing(clock)
    for _ in range(5):
        lives(clock, pacing, 0.1)
    assert lives(clock, pacing, STEADY_LIFE_S) == 0
    assert [lives(clock, pacing, 0.1) for _ in range(2)] == [0, RESTART_PAUSE_FIRST_S]


def test_what_cannot_live_takes_little() -> None:
    """In an hour a process that ends after a second is started at most once in ``RESTART_PAUSE_MAX_S``, the beginning apart."""
    clock = ManualClock()
    pacing = Pacing(clock)
    begun_us = clock.monotonic_us()
    starts = 0
    while clock.monotonic_us() - begun_us < 3_600 * US_PER_S:
        lives(clock, pacing, 1)
        starts += 1
    assert starts <= 3_600 / (RESTART_PAUSE_MAX_S + 1) + 10
