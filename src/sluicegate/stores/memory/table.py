"""The bounded table of a memory store: who is forgotten, when, and in how large steps.

Theory of operation. A Python dict never gives memory back when keys are deleted, finding its oldest key gets slower with
every deletion at its front, and growing a dict of a million keys stops the world for tens of milliseconds. So the table
is a row of *segments* of bounded size:

- ``young`` takes every key that is written. When it is full it joins ``aging`` and a new one begins.
- ``aging`` holds full segments, oldest first. Writing a key that sits in one moves it to ``young``, so what is in the
  oldest segment has not been charged for longest. Segments are emptied from the left and dropped whole.
- ``kept`` holds counters that were found refusing while room was being made.

Two things empty segments. The *sweep* starts every ``SWEEP_PERIOD_US`` of store time, looks at each counter once, drops
the expired and moves the rest to ``young``. *Making room* happens when a key is added to a full table: the oldest
counters are looked at, the expired and those that refuse nobody go, those that refuse are kept. Both work in bounded
steps inside the calls of others; there is no thread. Refusing counters go only after a whole pass over the table found
nothing else: whoever is over the limit cannot become unlimited by flooding the table with other keys.

Looking at a bounded number of counters may find only refusing ones. The new key is then added all the same, into a
reserve that is set aside below the cap; the pass ends before the reserve does, and the debt is paid before the next pass.

Roads not taken: an exact LRU list (``OrderedDict``) costs every hit, not only every insert; a heap by expiry does too;
one large dict has the pauses described above.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from sluicegate.algorithms.spec import Spec, State
from sluicegate.bounds import (
    MEMORY_EXAMINED_PER_STEP,
    MEMORY_RESERVE_DIVISOR,
    MEMORY_SEGMENT_MIN,
    MEMORY_SEGMENTS,
    MEMORY_SWEEP_CALLS,
    MEMORY_SWEEP_STEP_MIN,
    MEMORY_TABLE_SMALL,
)
from sluicegate.stores.memory.segment import Place, Segment
from sluicegate.stores.memory.stats import MemoryStats

__all__ = ["ALWAYS_US", "SWEEP_PERIOD_US", "CounterTable"]

SWEEP_PERIOD_US: Final = 60_000_000
"""Store time between two sweeps: an expired counter is gone at most two of these after it expired, if calls come."""

ALWAYS_US: Final = -(1 << 62)
"""A ``wake_us`` that is always due."""

_RECHECK_US: Final = 1_000_000
"""How long a counter that was found refusing is taken for refusing before it is looked at again."""


class CounterTable:
    """Counters by key, at most ``max_counters`` of them. Not safe under threads: its store holds a lock.

    ``young`` is open to the store's fast paths: a counter found there may be changed in place. ``wake_us``: from this
    store time on, ``tidy`` wants to be called before anything else.
    """

    __slots__ = (
        "_aging",
        "_examined_max",
        "_kept",
        "_kept_since_us",
        "_max",
        "_next_sweep_us",
        "_segment_max",
        "_soft_max",
        "_stats",
        "_sweep_step",
        "_sweeping",
        "count",
        "wake_us",
        "young",
    )

    def __init__(self, max_counters: int, stats: MemoryStats) -> None:
        small = max_counters <= MEMORY_TABLE_SMALL
        self.young = Segment()
        self.wake_us = ALWAYS_US
        self.count = 0
        self._aging: deque[Segment] = deque()
        self._kept = Segment()
        self._kept_since_us = 0
        self._max = max_counters
        self._soft_max = max_counters if small else max_counters - max_counters // MEMORY_RESERVE_DIVISOR
        self._examined_max = 2 * max_counters + 2 if small else MEMORY_EXAMINED_PER_STEP
        self._segment_max = max(MEMORY_SEGMENT_MIN, max_counters // MEMORY_SEGMENTS)
        self._stats = stats
        self._sweeping = 0
        self._sweep_step = 0
        self._next_sweep_us = ALWAYS_US

    def __len__(self) -> int:
        return self.count

    def find(self, key: str) -> Place | None:
        """Where ``key`` is, expired or not; moves nothing."""
        slot = self.young.slot_of(key)
        if slot is not None:
            return Place(self.young, slot)
        slot = self._kept.slot_of(key)
        if slot is not None:
            return Place(self._kept, slot)
        for segment in self._aging:
            slot = segment.slot_of(key)
            if slot is not None:
                return Place(segment, slot)
        return None

    def write(self, key: str, place: Place | None, state: State, spec: Spec, now_us: int) -> None:
        """Write ``key``, found at ``place`` (None: not there), and make it one of the youngest.

        Makes room first where the table is full, which may have moved or evicted the counter since it was found.
        """
        if place is not None and not place.valid:
            place = self.find(key)
        if place is not None and place.segment is self.young:
            place.set(state, spec)
            return
        born_us = now_us
        if place is None:
            self.count += 1
            if now_us < self._next_sweep_us - SWEEP_PERIOD_US:
                self.wake_us = ALWAYS_US  # The clock was stepped back: the next call plans the sweeps anew.
        else:
            born_us = place.born_us
            place.segment.take(key)
        if self.count > self._soft_max:
            self._make_room(now_us)
        self._add_young(key, state, spec, born_us)

    def drop(self, key: str) -> bool:
        """Forget ``key``; False where it was not there."""
        place = self.find(key)
        if place is None:
            return False
        place.segment.take(key)
        self.count -= 1
        return True

    def clear(self) -> None:
        """Forget everything at once."""
        self.young = Segment()
        self._kept = Segment()
        self._aging.clear()
        self._sweeping = self.count = 0

    def tidy(self, now_us: int) -> None:
        """One bounded step of the sweep; begins a sweep where one is due, also after the clock was stepped back."""
        if not self._sweeping:
            if self._next_sweep_us - SWEEP_PERIOD_US <= now_us < self._next_sweep_us:
                self.wake_us = self._next_sweep_us
                return
            self._begin_sweep(now_us)
        for _ in range(self._sweep_step):
            if not self._trim_head():
                break
            key, state, spec, born_us = self._aging[0].pop()
            if spec.expires_us(state) <= now_us:
                self.count -= 1
                self._stats.swept += 1
            else:
                self._add_young(key, state, spec, born_us)
        if not self._trim_head():
            self.wake_us = self._next_sweep_us

    def _begin_sweep(self, now_us: int) -> None:
        self._next_sweep_us = now_us + SWEEP_PERIOD_US
        if self._kept.index:
            self._aging.append(self._kept)
            self._kept = Segment()
        self._rotate()
        self._sweeping = len(self._aging)
        self._sweep_step = max(MEMORY_SWEEP_STEP_MIN, self.count // MEMORY_SWEEP_CALLS + 1)
        self.wake_us = ALWAYS_US

    def _trim_head(self) -> bool:
        """Drop empty segments at the old end; True while the sweep has a counter left to look at there."""
        aging = self._aging
        while aging and not aging[0].index:
            aging.popleft()
            if self._sweeping:
                self._sweeping -= 1
        return self._sweeping > 0

    def _add_young(self, key: str, state: State, spec: Spec, born_us: int) -> None:
        if len(self.young.states) >= self._segment_max:
            self._rotate()
        self.young.add(key, state, spec, born_us)

    def _rotate(self) -> None:
        """Begin a new young segment, also where the old one holds only slots that were given up."""
        if self.young.index:
            self._aging.append(self.young)
        if self.young.states:
            self.young = Segment()

    def _make_room(self, now_us: int) -> None:
        """Bring the count down to its limit, looking at a bounded number of counters; the cap itself always holds."""
        for _ in range(self._examined_max):
            if self.count <= self._soft_max:
                return
            if not self._unexamined(now_us):
                self._evict_refusing()
                continue
            key, state, spec, born_us = self._aging[0].pop()
            if spec.expires_us(state) <= now_us:
                self.count -= 1
                self._stats.swept += 1
            elif spec.admit(state, now_us, 1) is None:
                self._kept.add(key, state, spec, born_us)
            else:
                self.count -= 1
                self._stats.evicted_live += 1
        if self.count > self._max:
            self._evict_refusing()

    def _unexamined(self, now_us: int) -> bool:
        """Whether the head of ``aging`` has a counter to look at; starts a new pass where that is due."""
        self._trim_head()
        if not self._aging:
            self._rotate()
        if not self._aging and self._kept.index and self._may_recheck(now_us):
            self._aging.append(self._kept)
            self._kept = Segment()
            self._kept_since_us = now_us
        return bool(self._aging)

    def _may_recheck(self, now_us: int) -> bool:
        """Only without debt (one counter over, the one being added), and not more often than once a second."""
        return self.count == self._soft_max + 1 and abs(now_us - self._kept_since_us) >= _RECHECK_US

    def _evict_refusing(self) -> None:
        """The last resort: the counter that was found refusing most recently."""
        for segment in (self._kept, *self._aging, self.young):
            if segment.index:
                segment.pop()
                self.count -= 1
                self._stats.evicted_live += 1
                self._stats.evicted_refusing += 1
                return
