"""Notes of what ends when, so that what has ended is found without a look at everything else."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from sluicegate.clock import US_PER_S

__all__ = ["Due"]

T = TypeVar("T")

_SLICE_US: Final = 60 * US_PER_S


class Due(Generic[T]):
    """Items by the minute in which they end. Not safe between threads: its owner has a lock.

    A note says no more than that an item may have ended: one that was put again with a later end has two.
    """

    __slots__ = ("_order", "_slices", "notes")

    def __init__(self) -> None:
        self._slices: dict[int, list[T]] = {}
        self._order: list[int] = []
        self.notes = 0
        """How many notes there are."""

    def add(self, expires_us: int, item: T) -> None:
        """Note that ``item`` ends at ``expires_us``."""
        minute = expires_us // _SLICE_US
        found = self._slices.get(minute)
        if found is None:
            found = self._slices[minute] = []
            heappush(self._order, minute)
        found.append(item)
        self.notes += 1

    def take(self, now_us: int, at_most: int | None = None) -> Iterator[T]:
        """The items of the minutes that are over, ``at_most`` of them (None: all); their notes are gone."""
        left = self.notes if at_most is None else at_most
        while self._order and (self._order[0] + 1) * _SLICE_US <= now_us:
            found = self._slices[self._order[0]]
            while found:
                if left <= 0:
                    return
                left -= 1
                self.notes -= 1
                yield found.pop()
            del self._slices[heappop(self._order)]
