"""The two-counter form of the sliding window: this window's count, and a share of the last one's."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TypeAlias

from sluicegate.bounds import CAPACITY_MAX, CLOCK_BEHIND_US_MAX, NOW_US_MAX

__all__ = ["Estimate"]

_Pair: TypeAlias = tuple[int, int, int]
"""(start of the window in microseconds, its count, the count of the window before)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Used = current + ceil(previous * overlap), the overlap being the part of the last window still in view."""

    limit: int
    window_us: int

    def at(self, state: _Pair | None, now_us: int) -> _Pair:
        """The state as of the window of now, or of its own while a clock that went back is catching up.

        Where the clock was set back all counts as current: what share of it lies how far back cannot be known.
        """
        window_us = self.window_us
        start_us = now_us - now_us % window_us
        if state is None:
            return start_us, 0, 0
        written_us, current, previous = state
        if written_us == start_us:
            return state
        if written_us > start_us:
            if written_us - now_us <= CLOCK_BEHIND_US_MAX:
                return state
            return start_us, min(current + previous, self.limit), 0
        return start_us, 0, current if written_us + window_us == start_us else 0

    def used(self, state: _Pair, now_us: int) -> int:
        """The estimate of a state that is ``at`` now."""
        start_us, current, previous = state
        return current - (-previous * self._overlap_us(start_us, now_us) // self.window_us)

    def _overlap_us(self, start_us: int, now_us: int) -> int:
        """The part of the window before that is in view: all of it until the clock has caught up with the start."""
        return self.window_us - max(now_us - start_us, 0)

    def admit(self, state: _Pair | None, now_us: int, cost: int) -> _Pair | None:
        start_us, current, previous = self.at(state, now_us)
        current += cost
        overlap_us = self._overlap_us(start_us, now_us)
        if current - (-previous * overlap_us // self.window_us) > self.limit:
            return None
        return start_us, current, previous

    def wait_us(self, state: _Pair, now_us: int, cost: int) -> int:
        """The time until ``cost`` <= limit passes, of a state that is ``at`` now and refuses it."""
        start_us, current, previous = state
        window_us = self.window_us
        room = self.limit - cost - current
        if room >= 0 and previous:
            # ceil(previous * overlap / window) <= room  <=>  overlap <= room * window // previous
            overlap_us = room * window_us // previous
            if overlap_us > 0:
                return start_us + window_us - overlap_us - now_us
        # In the next window today's current is the previous one, whole at first.
        overlap_us = min((self.limit - cost) * window_us // current, window_us) if current else window_us
        return start_us + 2 * window_us - overlap_us - now_us

    def reset_us(self, state: _Pair, now_us: int) -> int:
        return state[0] + self.window_us - now_us

    def expires_us(self, state: _Pair) -> int:
        start_us, current, previous = state
        windows = 2 if current else 1 if previous else 0
        return start_us + windows * self.window_us

    def refused(self, state: _Pair, now_us: int, cost: int) -> _Pair:
        """The state with a refused ``cost`` <= limit in the current window; the previous one makes room for it."""
        start_us, current, previous = state
        return self.capped((start_us, current + cost, previous), now_us)

    def capped(self, state: _Pair, now_us: int) -> _Pair:
        """The state, used at most the limit; the older count gives way."""
        start_us, current, previous = state
        current = min(current, self.limit)
        room = (self.limit - current) * self.window_us // self._overlap_us(start_us, now_us)
        return start_us, current, min(previous, room)

    def refund(self, state: _Pair, cost: int, charged_us: int) -> _Pair:
        """Takes the tokens out of the window of the charge."""
        start_us, current, previous = state
        age = (start_us + self.window_us - 1 - charged_us) // self.window_us
        if age == 0:
            return start_us, max(current - cost, 0), previous
        return (start_us, current, max(previous - cost, 0)) if age == 1 else state

    def granted(self, state: _Pair, now_us: int, tokens: int) -> tuple[_Pair, int]:
        """(a state that is ``at`` now with up to ``tokens`` less used, how many less)."""
        start_us, current, previous = state
        from_current = min(current, tokens)
        overlap_us = self._overlap_us(start_us, now_us)
        share = -(-previous * overlap_us // self.window_us)
        from_share = min(share, tokens - from_current)
        if from_share:
            # The most of the window before whose share is so much smaller.
            previous = (share - from_share) * self.window_us // overlap_us
        return (start_us, current - from_current, previous), from_current + from_share

    def scaled(self, state: _Pair, denominator: int) -> _Pair:
        """Each count times limit / ``denominator``, rounded up."""
        start_us, current, previous = state
        return start_us, -(-current * self.limit // denominator), -(-previous * self.limit // denominator)

    def most_admitted(self, interval_us: int) -> int:
        """Windows touched times the limit, less what the weight of a full window before takes off at least."""
        if interval_us <= 0:
            return 0
        # The worst interval begins with the last microsecond of a window.
        windows = -(-(interval_us - 1) // self.window_us) + 1
        if windows == 2:
            overlap_us = self.window_us - (interval_us - 2)
            return 2 * self.limit - -(-self.limit * overlap_us // self.window_us)
        # A window that follows a used one loses at least one token to its weight; one that follows an unused one may be
        # full, but then the unused one gave up its whole limit. Where that is 1, every other window is full.
        return max(windows * self.limit - (windows - 1), self.limit * -(-windows // 2))

    def state_bytes(self) -> int:
        return sys.getsizeof((0, 0, 0)) + sys.getsizeof(NOW_US_MAX) + 2 * sys.getsizeof(CAPACITY_MAX)
