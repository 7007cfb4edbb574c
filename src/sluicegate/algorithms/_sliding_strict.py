"""The strict form of the sliding window: sub-windows, the oldest counted whole."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from sluicegate.bounds import CAPACITY_MAX, CLOCK_BEHIND_US_MAX, NOW_US_MAX

__all__ = ["Strict"]

_Counts: TypeAlias = tuple[int, ...]
"""(number of the newest sub-window since the epoch, its count, the count of the one before, ... the oldest's)."""


@dataclass(frozen=True, slots=True)
class Strict:
    """Used = the counts of ``sub_windows`` + 1 sub-windows of ``step_us``, the current one being the newest.

    Any interval of the window's length touches at most so many, hence never holds more than the limit. What it costs:
    a token counts for up to (sub_windows + 1) steps, so the sustained rate is sub_windows / (sub_windows + 1).
    """

    limit: int
    sub_windows: int
    step_us: int

    def at(self, state: _Counts | None, now_us: int) -> _Counts:
        """The counts as of the sub-window of now, or of their own while a clock that went back is catching up.

        Where the clock was set back, the counts of sub-windows that have not begun are taken into that of now.
        """
        number = now_us // self.step_us
        kept = self.sub_windows + 1
        if state is None:
            return number, *[0] * kept
        passed = number - state[0]
        if passed == 0:
            return state
        if passed < 0:
            if state[0] * self.step_us - now_us <= CLOCK_BEHIND_US_MAX:
                return state
            ahead = min(-passed, self.sub_windows)
            return number, sum(state[1 : 2 + ahead]), *state[2 + ahead :], *[0] * ahead
        passed = min(passed, kept)
        return number, *[0] * passed, *state[1 : 1 + kept - passed]

    def used(self, state: _Counts, now_us: int) -> int:  # noqa: ARG002 - one signature for both forms
        return sum(state) - state[0]

    def admit(self, state: _Counts | None, now_us: int, cost: int) -> _Counts | None:
        counts = self.at(state, now_us)
        if sum(counts) - counts[0] + cost > self.limit:
            return None
        return counts[0], counts[1] + cost, *counts[2:]

    def wait_us(self, state: _Counts, now_us: int, cost: int) -> int:
        """The time until enough of the oldest sub-windows have left, of a state that is ``at`` now and refuses."""
        needed = self.used(state, now_us) + cost - self.limit
        age = self.sub_windows
        while (needed := needed - state[1 + age]) > 0:
            age -= 1
        return self._leaves_us(state, age) - now_us

    def _leaves_us(self, state: _Counts, age: int) -> int:
        """When the sub-window ``age`` steps before the newest leaves the sum."""
        return (state[0] - age + self.sub_windows + 1) * self.step_us

    def reset_us(self, state: _Counts, now_us: int) -> int:
        return max(self.expires_us(state) - now_us, 0)

    def expires_us(self, state: _Counts) -> int:
        for age, count in enumerate(state[1:]):
            if count:
                return self._leaves_us(state, age)
        return state[0] * self.step_us

    def refused(self, state: _Counts, now_us: int, cost: int) -> _Counts:
        """The counts with a refused ``cost`` <= limit in the current sub-window; the oldest make room for it."""
        return self.capped((state[0], state[1] + cost, *state[2:]), now_us)

    def capped(self, state: _Counts, now_us: int) -> _Counts:  # noqa: ARG002 - one signature for both forms
        """The newest tokens, at most the limit."""
        room, counts = self.limit, []
        for count in state[1:]:
            counts.append(min(count, room))
            room -= counts[-1]
        return state[0], *counts

    def refund(self, state: _Counts, cost: int, charged_us: int) -> _Counts:
        """Takes the tokens out of the sub-window of the charge."""
        age = state[0] - charged_us // self.step_us
        if not 0 <= age <= self.sub_windows:
            return state
        index = 1 + age
        return *state[:index], max(state[index] - cost, 0), *state[index + 1 :]

    def granted(self, state: _Counts, now_us: int, tokens: int) -> tuple[_Counts, int]:  # noqa: ARG002 - one signature for both forms
        """(a state that is ``at`` now with up to ``tokens`` less used, the newest first; how many less)."""
        left, counts = tokens, []
        for count in state[1:]:
            counts.append(count - min(count, left))
            left -= min(count, left)
        return (state[0], *counts), tokens - left

    def scaled(self, state: _Counts, denominator: int) -> _Counts:
        """The sums, counted from the newest, times limit / ``denominator``, rounded up: newer tokens stay longer."""
        sums = [-(-total * self.limit // denominator) for total in accumulate(state[1:])]
        return state[0], *(total - before for total, before in zip(sums, [0, *sums], strict=False))

    def most_admitted(self, interval_us: int) -> int:
        """The limit for every sub_windows + 1 sub-windows the interval can touch."""
        if interval_us <= 0:
            return 0
        touched = -(-(interval_us - 1) // self.step_us) + 1
        return self.limit * -(-touched // (self.sub_windows + 1))

    def state_bytes(self) -> int:
        counts = self.sub_windows + 1
        return sys.getsizeof(()) + 8 * (counts + 1) + sys.getsizeof(NOW_US_MAX) + counts * sys.getsizeof(CAPACITY_MAX)
