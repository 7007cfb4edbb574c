"""Requests in order of time, from a log that is only nearly in order.

A server logs a request when it ends and stamps it with when it began (or several workers write in turns), so lines are out of
order by as much as requests last. Lines are held back until the log is ``window_us`` further. The order that comes out is
that of the pairs (time, place in the log), where a line more than the window behind the newest time counts as late and
takes the time the log had reached: it is decided, and never before what is decided already.

One broken clock must not end this. A time far ahead would make every line after it late, so a leap of more than an hour
and the window is believed when a second line confirms it.

Lines are sorted in batches as large as what is held back, so a line is sorted twice on average; sorting what is nearly
in order takes a tenth of a microsecond per line, a heap one.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import Final

from sluicegate.bounds import REPLAY_BATCH_LINES
from sluicegate.clock import US_PER_S
from sluicegate.replaying.planner import Item

__all__ = ["Orderer"]

_time_of = itemgetter(0)
_NEVER: Final = -(1 << 62)
_LEAP_US: Final = 3_600 * US_PER_S


class Orderer:
    """Takes the requests of one log and gives them back in order of time, stable for equal times.

    Holds at most ``lines_max`` (>= 2) requests, a batch and those of one call; where the window has more, the older half is given early
    (``shortened`` says that this happened). ``late``: requests behind the window. ``first_us``, ``last_us``: the log's
    earliest and latest time, once all is given; None for an empty log.
    """

    __slots__ = (
        "_ahead_us",
        "_floor_us",
        "_held",
        "_leap_us",
        "_lines_max",
        "_newest_us",
        "_sort_at",
        "_step",
        "_window_us",
        "first_us",
        "last_us",
        "late",
        "shortened",
    )

    def __init__(self, window_us: int, lines_max: int) -> None:
        self._window_us = window_us
        self._leap_us = max(window_us, _LEAP_US)
        self._lines_max = lines_max
        self._held: list[Item] = []
        self._step = self._sort_at = min(REPLAY_BATCH_LINES, lines_max)
        self._newest_us = self._floor_us = _NEVER
        self._ahead_us: int | None = None
        self.first_us: int | None = None
        self.last_us: int | None = None
        self.late = 0
        self.shortened = False

    def feed(self, items: list[Item]) -> list[Item]:
        """Take the next requests of the log; gives those whose turn has come, often none."""
        window_us, leap_us, newest_us, floor_us = self._window_us, self._leap_us, self._newest_us, self._floor_us
        append = self._held.append
        for item in items:
            us = item[0]
            if us > newest_us:
                newest_us = us if us - newest_us <= leap_us else self._leap(us, newest_us)
                floor_us = max(floor_us, newest_us - window_us)
            if us < floor_us:
                self._late(us)
                item = (floor_us, item[1])
            append(item)
        self._newest_us, self._floor_us = newest_us, floor_us
        return self._release() if len(self._held) >= self._sort_at else []

    def finish(self) -> list[Item]:
        """The rest, when the log has ended."""
        held, self._held = self._held, []
        held.sort(key=_time_of)
        return self._given(held)

    def _leap(self, us: int, newest_us: int) -> int:
        """The newest believed time after a line far ahead of it."""
        ahead_us, self._ahead_us = self._ahead_us, us
        if ahead_us is None or us < ahead_us - self._leap_us:
            return newest_us
        if us > ahead_us + self._leap_us:
            return max(newest_us, ahead_us)
        self._ahead_us = None
        return max(us, ahead_us)

    def _late(self, us: int) -> None:
        self.late += 1
        self.first_us = us if self.first_us is None else min(self.first_us, us)

    def _release(self) -> list[Item]:
        held = self._held
        held.sort(key=_time_of)
        end = bisect_left(held, self._floor_us, key=_time_of)
        if len(held) - end > self._lines_max:
            end = len(held) - self._lines_max // 2
            self._floor_us = max(self._floor_us, held[end][0])
            self.shortened = True
        given = held[:end]
        del held[:end]
        self._sort_at = min(2 * len(held), self._lines_max) + self._step
        return self._given(given)

    def _given(self, items: list[Item]) -> list[Item]:
        if items:
            first_us = items[0][0]
            self.first_us = first_us if self.first_us is None else min(self.first_us, first_us)
            self.last_us = items[-1][0]
        return items
