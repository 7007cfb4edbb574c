"""When a process that ended is started again."""

from __future__ import annotations

from sluicegate.bounds import RESTART_PAUSE_FIRST_S, RESTART_PAUSE_MAX_S, STEADY_LIFE_S
from sluicegate.clock import US_PER_S, Clock

__all__ = ["Pacing"]


class Pacing:
    """The pauses of one process: none after a life of ``STEADY_LIFE_S``, and after shorter lives none at first, then longer ones.

    So a process that cannot live is started once in ``RESTART_PAUSE_MAX_S``, for as long as there is hope that its reason goes away.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._born_us = clock.monotonic_us()
        self._pause_s = 0.0

    def born(self) -> None:
        """It has been started."""
        self._born_us = self._clock.monotonic_us()

    def died(self) -> float:
        """It has ended; returns the seconds to wait before it is started again."""
        if self._clock.monotonic_us() - self._born_us >= STEADY_LIFE_S * US_PER_S:
            self._pause_s = 0.0
            return 0.0
        pause_s = self._pause_s
        self._pause_s = min(max(2 * pause_s, RESTART_PAUSE_FIRST_S), RESTART_PAUSE_MAX_S)
        return pause_s
