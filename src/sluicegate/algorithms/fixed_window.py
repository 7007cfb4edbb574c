"""Fixed window: one count per aligned window.

The cheapest algorithm and the loosest: a caller who spends one window's limit at its end and the next one's at its
start is admitted twice the limit within a moment. Windows are aligned to the epoch (weeks to Monday, UTC) or, on
request, to the calendar of a time zone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sluicegate.algorithms import _calendar
from sluicegate.algorithms._fields import check_capacity, check_integer
from sluicegate.algorithms.spec import OnChange, Spec
from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, Verdict, new_verdict
from sluicegate.bounds import CAPACITY_MAX, CLOCK_BEHIND_US_MAX, NOW_US_MAX, WINDOW_US_MAX

__all__ = ["FixedWindow"]

_DAY_US = 86_400 * 1_000_000
_AHEAD_US = -CLOCK_BEHIND_US_MAX

# 1970-01-01 was a Thursday; whole weeks start on a Monday, the first of which was the 5th.
_MONDAY_US = 4 * _DAY_US


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """At most ``limit`` tokens in each window of ``window_us``.

    ``align="epoch"``: windows are counted from 1970-01-01 00:00 UTC, those of whole weeks from Monday 1970-01-05.
    ``align="calendar"``: the window is the ``unit`` (``day``, ``week`` from Monday, ``month``, ``year``) of the time
    zone ``tz``; ``window_us`` is then the unit's nominal length (1, 7, 30 or 365 days), used for display only.

    In any interval of D microseconds at most ``limit * (ceil((D - 1) / window_us) + 1)`` tokens are admitted: twice the
    limit around an edge. State: (start of the window in microseconds, count). A window that has
    not begun was written before the clock went back: up to ``bounds.CLOCK_BEHIND_US_MAX`` before its start it counts on,
    earlier its count is taken into the window of now. ValueError names a bad number.
    """

    algorithm: ClassVar[str] = "fixed_window"

    limit: int
    window_us: int
    align: Literal["epoch", "calendar"] = "epoch"
    tz: str = "UTC"
    unit: str | None = None
    # Within this time of a window's start the window has not ended: the length of an epoch window, and less than the
    # shortest of a calendar's.
    _shortest_us: int = field(init=False, repr=False, compare=False)
    _origin_us: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_capacity("limit", self.limit)
        check_integer("window_us", self.window_us, 1, WINDOW_US_MAX)
        if self.align == "calendar":
            shortest_us = _calendar.checked(self.unit, self.tz, self.window_us)
        elif self.align == "epoch":
            if self.unit is not None or self.tz != "UTC":
                name, value = ("unit", self.unit) if self.unit is not None else ("tz", self.tz)
                raise ValueError(f'{name}: only align="calendar" takes one, got {value!r}')
            shortest_us = self.window_us
        else:
            raise ValueError(f'align: must be "epoch" or "calendar", got {self.align!r}')
        object.__setattr__(self, "_shortest_us", shortest_us)
        object.__setattr__(self, "_origin_us", 0 if self.window_us % (7 * _DAY_US) else _MONDAY_US)

    @property
    def capacity(self) -> int:
        """The limit."""
        return self.limit

    @property
    def shape(self) -> str:
        """The window's length, or unit and time zone of a calendar window."""
        return str(self.window_us) if self.unit is None else f"{self.unit}@{self.tz}"

    def bounds_us(self, now_us: int) -> tuple[int, int]:
        """Start and end of the window that holds ``now_us``."""
        if self.unit is not None:
            start_us = _calendar.start_us(now_us, self.unit, self.tz)
            return start_us, _calendar.end_us(start_us, self.unit, self.tz)
        start_us = now_us - (now_us - self._origin_us) % self.window_us
        return start_us, start_us + self.window_us

    def _end_us(self, start_us: int) -> int:
        if self.unit is not None:
            return _calendar.end_us(start_us, self.unit, self.tz)
        return start_us + self.window_us

    def admit(self, state: tuple[int, int] | None, now_us: int, cost: int) -> tuple[int, int] | None:
        """The window and its count after the charge, or None when it does not fit now."""
        if state is not None:
            start_us, count = state
            if _AHEAD_US <= now_us - start_us < self._shortest_us:
                count += cost
                return (start_us, count) if count <= self.limit else None
        start_us, count = self._at(state, now_us)
        count += cost
        return (start_us, count) if count <= self.limit else None

    def unit_admit(self) -> Callable[[tuple[int, int], int], tuple[int, int] | None]:
        """See ``UnitSpec``. The window that is there serves nearly always; a new one is ``admit``'s business."""
        limit, ahead_us, shortest_us, otherwise = self.limit, _AHEAD_US, self._shortest_us, self.admit

        def admit(state: tuple[int, int], now_us: int) -> tuple[int, int] | None:
            start_us, count = state
            if ahead_us <= now_us - start_us < shortest_us:
                return (start_us, count + 1) if count < limit else None
            return otherwise(state, now_us, 1)

        return admit

    def _at(self, state: tuple[int, int] | None, now_us: int) -> tuple[int, int]:
        """The window to count in: that of now, with the count of one it was taken from if the clock was set back."""
        if state is None:
            return self.bounds_us(now_us)[0], 0
        start_us, count = state
        if now_us >= self._end_us(start_us):
            return self.bounds_us(now_us)[0], 0
        return state if start_us - now_us <= CLOCK_BEHIND_US_MAX else (self.bounds_us(now_us)[0], count)

    def verdict(self, state: tuple[int, int] | None, now_us: int, cost: int, admitted: bool) -> Verdict:
        """``reset_after_us`` is the time until the window ends."""
        start_us, count = self._at(state, now_us)
        remaining = max(self.limit - count, 0)
        if not admitted and cost > self.limit:
            return new_verdict((NEVER_FITS, remaining, None, 0, 0))
        wait_us = self._end_us(start_us) - now_us
        if admitted:
            return new_verdict((ALLOWED, remaining, 0, wait_us, 0))
        return new_verdict((DENIED, remaining, wait_us, wait_us, 0))

    def clamp(self, state: tuple[int, int], now_us: int) -> tuple[int, int]:
        """The state, its count moved into the window of now where the clock was set back."""
        return state if state[0] - now_us <= CLOCK_BEHIND_US_MAX else self._at(state, now_us)

    def expires_us(self, state: tuple[int, int]) -> int:
        """The end of the window."""
        return self._end_us(state[0])

    def charge_refused(self, state: tuple[int, int] | None, now_us: int, cost: int) -> tuple[int, int]:
        """The count after a refused charge that counts, at most the limit. A cost that never fits counts nothing."""
        start_us, count = self._at(state, now_us)
        if cost > self.limit:
            return (start_us, count) if state is None else state
        return start_us, min(count + cost, self.limit)

    def refund(self, state: tuple[int, int], now_us: int, cost: int, charged_us: int) -> tuple[int, int]:
        """Gives back within the window of the charge, while it lasts."""
        start_us, count = state
        end_us = self._end_us(start_us)
        if start_us <= charged_us < end_us and now_us < end_us:
            return start_us, max(count - cost, 0)
        return state

    def grant(self, state: tuple[int, int], now_us: int, tokens: int) -> tuple[tuple[int, int], int]:
        """See ``Spec``. Of the window that runs."""
        start_us, count = self._at(state, now_us)
        given = min(count, tokens)
        return ((start_us, count - given), given) if given else (state, 0)

    def carry(self, old: Spec, state: tuple[int, int], now_us: int, how: OnChange) -> tuple[int, int] | None:
        """The count stays (``keep``) or its share of the limit does (``scale``, rounded up); at most the limit."""
        if not isinstance(old, FixedWindow) or how is OnChange.RESET:
            return None
        start_us, count = old.clamp(state, now_us)
        if how is OnChange.SCALE:
            count = -(-count * self.limit // old.limit)
        return start_us, min(count, self.limit)

    def most_admitted(self, interval_us: int) -> int:
        """The limit, times the windows such an interval can touch; of a calendar's the shortest windows."""
        if interval_us <= 0:
            return 0
        return self.limit * (-(-(interval_us - 1) // self._shortest_us) + 1)

    def state_bytes(self) -> int:
        """A pair of two ints."""
        return sys.getsizeof((0, 0)) + sys.getsizeof(NOW_US_MAX) + sys.getsizeof(CAPACITY_MAX)
