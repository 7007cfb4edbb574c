"""A breaker: what keeps calls from a server that does not answer.

    closed ── enough failures ──> open ── a probe is due ──> open, probing ── it succeeds ──> closed
                                   ^                                │ it fails, the next pause is longer
                                   └────────────────────────────────┘

While it is closed calls are sent. While it is open none is: callers get their error at once instead of waiting for a timeout each,
and one of them at a time is told to probe. The breaker sends nothing itself and has no timer.

Failures are weighed against successes, so that a server that loses more than a third of its calls is left alone too, and one
that loses a call now and then is not. Calls that wait at the same time fail together, for one reason: a call counts only where
it began after the last failure that counted.
"""

from __future__ import annotations

from random import Random
from typing import Final

from sluicegate.bounds import BREAKER_FAILURES, BREAKER_PROBE_FIRST_US, BREAKER_PROBE_MAX_US
from sluicegate.clock import Clock
from sluicegate.stores.locks import Locked

__all__ = ["Breaker"]

_FAILURE, _SUCCESS = 2, 1
_NEVER_US: Final = -(1 << 62)
_OPENS_AT: Final = _FAILURE * BREAKER_FAILURES


class Breaker(Locked):
    """The breaker of one server. Safe from any thread; a forked child begins as a new process does.

    ``closed``: calls may be sent. ``calm``: closed, and nothing would be changed by another success, so ``succeeded`` need
    not be called. ``state``: "unknown" until the first success or until it opens, then "up" or "down". ``since_us``: monotonic
    time of its last change. ``error``: the last failure since it is up. ``opened``, ``probes``: how often it opened, and probes begun.
    """

    __slots__ = (
        "_clock", "_counted_us", "_next_us", "_pause_us", "_probing", "_random", "_weight",
        "calm", "closed", "error", "opened", "probes", "since_us", "state",
    )  # fmt: skip

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self.opened = 0
        self.probes = 0
        super().__init__()

    def _renew_lock(self) -> None:
        super()._renew_lock()
        # Whoever was probing is not in this process.
        self.closed = True
        self.calm = False
        self.state = "unknown"
        self.since_us = self._clock.monotonic_us()
        self.error: str | None = None
        self._weight = 0
        self._counted_us = _NEVER_US
        self._next_us = 0
        self._pause_us = 0
        self._probing = False

    def succeeded(self) -> None:
        """A call was answered. While the breaker is open that is no news: a probe decides."""
        with self._lock:
            if not self.closed:
                return
            if self.state != "up":
                self._become("up")
            self._weight = max(self._weight - _SUCCESS, 0)
            if not self._weight:
                self.calm = True
                self.error = None
                self._pause_us = 0

    def failed(self, began_us: int, error: str) -> None:
        """A call that began at the monotonic ``began_us`` was not answered, or by an error that the next call would meet too."""
        with self._lock:
            if not self.closed:
                return
            self.error = error
            if began_us <= self._counted_us:
                return
            self._counted_us = self._clock.monotonic_us()
            self.calm = False
            self._weight += _FAILURE
            if self._weight >= _OPENS_AT:
                self.closed = False
                self.opened += 1
                self._probing = False
                self._lengthen_pause()
                self._become("down")
                self._schedule()

    def take_probe(self) -> bool:
        """Whether the caller is to probe now, and to report by ``probed``; True for one caller at a time, while open only."""
        if self._clock.monotonic_us() < self._next_us:
            return False
        with self._lock:
            if self.closed or self._probing:
                return False
            self._probing = True
            self.probes += 1
            return True

    def probed(self, error: str | None) -> None:
        """The probe that ``take_probe`` asked for succeeded (None) or failed."""
        with self._lock:
            if self.closed or not self._probing:
                return
            self._probing = False
            if error is None:
                self.closed = True
                self.error = None
                self._weight = _FAILURE
                self._become("up")
            else:
                self.error = error
                self._lengthen_pause()
                self._schedule()

    def _lengthen_pause(self) -> None:
        self._pause_us = min(max(2 * self._pause_us, BREAKER_PROBE_FIRST_US), BREAKER_PROBE_MAX_US)

    def _schedule(self) -> None:
        # Many processes lose a server at one moment; they should not come back at one.
        self._next_us = self._clock.monotonic_us() + self._random.randint(self._pause_us // 2, self._pause_us)

    def _become(self, state: str) -> None:
        self.state = state
        self.since_us = self._clock.monotonic_us()
