"""Sliding log: the time of every accepted token.

The only window that is exact in both directions: never above the limit in any window, and never refusing what
would fit. It pays with memory in proportion to the limit, so the limit is capped (``bounds.SLIDING_LOG_LIMIT_MAX``).
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, TypeAlias

from sluicegate.algorithms._fields import check_capacity, check_integer
from sluicegate.algorithms.spec import OnChange, Spec
from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, Verdict, new_verdict
from sluicegate.bounds import CLOCK_BEHIND_US_MAX, NOW_US_MAX, SLIDING_LOG_LIMIT_MAX, WINDOW_US_MAX

__all__ = ["SlidingLog"]

_Log: TypeAlias = tuple[int, ...]
"""(sum of all counts, time, count, time, count, ...), times rising. Tokens of one microsecond share an entry."""


@dataclass(frozen=True, slots=True)
class SlidingLog:
    """At most ``limit`` tokens in any interval of ``window_us``; a token counts for exactly ``window_us``.

    State: (total, time, count, time, count, ...) of the accepted hits, oldest first; entries that have left the window
    are dropped by the next charge. A refusal while the whole log is live takes constant time; a charge copies the log.
    Entries later than now were written before the clock went back: by up to ``bounds.CLOCK_BEHIND_US_MAX`` they stay, and
    new hits count as of the latest; by more they are taken to now. ValueError names a number out of range, and for a
    limit above the cap says what to use instead.
    """

    algorithm: ClassVar[str] = "sliding_log"

    limit: int
    window_us: int

    def __post_init__(self) -> None:
        check_capacity("limit", self.limit)
        if self.limit > SLIDING_LOG_LIMIT_MAX:
            raise ValueError(
                f"limit: a sliding log holds at most {SLIDING_LOG_LIMIT_MAX} tokens, got {self.limit}; "
                "a strict sliding_window needs a few integers for any limit"
            )
        check_integer("window_us", self.window_us, 1, WINDOW_US_MAX)

    @property
    def capacity(self) -> int:
        """The limit."""
        return self.limit

    @property
    def shape(self) -> str:
        """The window's length."""
        return str(self.window_us)

    def admit(self, state: _Log | None, now_us: int, cost: int) -> _Log | None:
        """The log with this hit, or None when it does not fit now."""
        if state is None:
            return (cost, now_us, cost) if cost <= self.limit else None
        log = self._at(state, now_us)
        total = log[0] + cost
        if total > self.limit:
            return None
        return _appended(log, now_us, cost)

    def stamped(self, state: _Log | None, now_us: int, cost: int, stamp_us: int) -> _Log:
        """The log with a hit that fits now, counted at ``stamp_us`` >= ``now_us``, or at its latest time where that is later."""
        log = (0,) if state is None else self._at(state, now_us)
        return _appended(log, stamp_us, cost)

    def _at(self, state: _Log, now_us: int) -> _Log:
        """The live part of the log: without entries that have left the window."""
        if len(state) == 1:
            return state
        state = self.clamp(state, now_us)
        if state[1] > now_us - self.window_us:
            return state
        gone = bisect_right(state[1::2], now_us - self.window_us)
        live = state[1 + 2 * gone :]
        return (sum(live[1::2]), *live)

    def verdict(self, state: _Log | None, now_us: int, cost: int, admitted: bool) -> Verdict:
        """``reset_after_us`` of a pass is the time until the last token has left the window."""
        log = (0,) if state is None else self._at(state, now_us)
        remaining = max(self.limit - log[0], 0)
        if admitted:
            return new_verdict((ALLOWED, remaining, 0, log[-2] + self.window_us - now_us if len(log) > 1 else 0, 0))
        if cost > self.limit:
            return new_verdict((NEVER_FITS, remaining, None, 0, 0))
        needed = log[0] + cost - self.limit
        index = 2
        while (needed := needed - log[index]) > 0:
            index += 2
        wait_us = log[index - 1] + self.window_us - now_us
        return new_verdict((DENIED, remaining, wait_us, wait_us, 0))

    def clamp(self, state: _Log, now_us: int) -> _Log:
        """The log, entries later than now moved to now where the clock was set back."""
        if len(state) == 1 or state[-2] - now_us <= CLOCK_BEHIND_US_MAX:
            return state
        return _pulled_back(state, now_us)

    def expires_us(self, state: _Log) -> int:
        """When the last token has left the window; 0 of an empty log."""
        return state[-2] + self.window_us if len(state) > 1 else 0

    def charge_refused(self, state: _Log | None, now_us: int, cost: int) -> _Log:
        """The log after a refused hit that counts: of the newest tokens, at most the limit.

        Counting hits push the oldest out, so a client who keeps hammering stays refused. A cost that never fits counts
        nothing.
        """
        log = (0,) if state is None else self._at(state, now_us)
        if cost > self.limit:
            return log if state is None else state
        return _newest(_appended(log, now_us, cost), self.limit)

    def refund(self, state: _Log, now_us: int, cost: int, charged_us: int) -> _Log:
        """Takes the charge's tokens out of the entry of its time, while that is in the window."""
        if now_us - charged_us >= self.window_us:
            return state
        index = bisect_right(state[1::2], charged_us) * 2 - 1
        if index < 1 or state[index] != charged_us:
            return state
        given = min(cost, state[index + 1])
        left = state[index + 1] - given
        kept = (charged_us, left) if left else ()
        return (state[0] - given, *state[1:index], *kept, *state[index + 2 :])

    def grant(self, state: _Log, now_us: int, tokens: int) -> tuple[_Log, int]:
        """See ``Spec``. The newest hits leave the log."""
        log = self._at(state, now_us)
        given = min(log[0], tokens)
        return (_oldest(log, log[0] - given), given) if given else (state, 0)

    def carry(self, old: Spec, state: _Log, now_us: int, how: OnChange) -> _Log | None:
        """The newest tokens stay, up to the limit; under ``scale`` each time's share of the limit, rounded up."""
        if not isinstance(old, SlidingLog) or how is OnChange.RESET:
            return None
        log = old._at(state, now_us)
        if how is OnChange.SCALE:
            log = _scaled(log, self.limit, old.limit)
        log = _newest(log, self.limit)
        return log if log[0] else None

    def most_admitted(self, interval_us: int) -> int:
        """The limit, times the windows the interval is cut into."""
        return self.limit * -(-interval_us // self.window_us) if interval_us > 0 else 0

    def state_bytes(self) -> int:
        """A log of ``limit`` hits at different times."""
        entries = 1 + 2 * self.limit
        return sys.getsizeof(()) + 8 * entries + self.limit * sys.getsizeof(NOW_US_MAX) + sys.getsizeof(self.limit)


def _appended(log: _Log, now_us: int, cost: int) -> _Log:
    """The log with one more hit, at the latest time in it if the clock is behind that."""
    total = log[0] + cost
    if len(log) > 1 and log[-2] >= now_us:
        return (total, *log[1:-1], log[-1] + cost)
    return (total, *log[1:], now_us, cost)


def _pulled_back(log: _Log, now_us: int) -> _Log:
    """The log with all entries from ``now_us`` on in one entry at ``now_us``."""
    earlier = bisect_right(log[1::2], now_us - 1)
    kept = log[1 : 1 + 2 * earlier]
    return (log[0], *kept, now_us, log[0] - sum(kept[1::2]))


def _newest(log: _Log, limit: int) -> _Log:
    """The newest ``limit`` tokens of the log."""
    surplus = log[0] - limit
    if surplus <= 0:
        return log
    index = 2
    while surplus >= log[index]:
        surplus -= log[index]
        index += 2
    return (limit, log[index - 1], log[index] - surplus, *log[index + 1 :])


def _oldest(log: _Log, total: int) -> _Log:
    """The oldest ``total`` tokens of the log."""
    surplus = log[0] - total
    end = len(log)
    while surplus and surplus >= log[end - 1]:
        surplus -= log[end - 1]
        end -= 2
    return (total, *log[1 : end - 1], log[end - 1] - surplus) if end > 1 else (0,)


def _scaled(log: _Log, numerator: int, denominator: int) -> _Log:
    """The log with its sums, counted from the newest, multiplied and rounded up: newer tokens stay longer."""
    sums = [-(-total * numerator // denominator) for total in accumulate(reversed(log[2::2]))]
    entries: list[int] = []
    for time_us, total, before in zip(reversed(log[1::2]), sums, [0, *sums], strict=False):
        if total > before:
            entries += (total - before, time_us)
    return (sums[-1] if sums else 0, *reversed(entries))
