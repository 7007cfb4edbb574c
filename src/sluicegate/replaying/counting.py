"""What a replay counts beside its rules, in bounded memory: clients and minutes."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from sluicegate.bounds import REPLAY_CLIENTS_MAX, REPLAY_MINUTES_SHOWN
from sluicegate.clock import US_PER_S
from sluicegate.replaying.planner import Item

__all__ = ["Minute", "Minutes", "TopClients"]

_MINUTE_US = 60 * US_PER_S


class TopClients:
    """Counts by client, exact while there are at most ``clients_max`` of them.

    When there are twice as many, the half with the smallest counts is forgotten, and ``error`` grows by the largest count
    forgotten: every count is at least what it says and at most ``error`` more (lossy counting, after Manku and Motwani 2002).
    """

    __slots__ = ("_clients_max", "_counts", "error")

    def __init__(self, clients_max: int = REPLAY_CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._counts: dict[str, int] = {}
        self.error = 0

    def add(self, client: str) -> None:
        """Count one more of ``client``."""
        self._counts[client] = self._counts.get(client, 0) + 1
        if len(self._counts) > 2 * self._clients_max:
            ranked = sorted(self._counts.items(), key=lambda entry: -entry[1])
            self.error += ranked[self._clients_max][1]
            self._counts = dict(ranked[: self._clients_max])

    def top(self, number: int) -> list[tuple[str, int]]:
        """The clients with the largest counts, largest first; equal ones by name."""
        return heapq.nsmallest(number, self._counts.items(), key=lambda entry: (-entry[1], entry[0]))


class Minute(NamedTuple):
    """One minute of the log, by the microsecond it starts at."""

    start_us: int
    requests: int
    refused: int


class Minutes:
    """The busiest minutes of requests that come in order of time."""

    __slots__ = ("_busiest", "_current", "_shown")

    def __init__(self, shown: int = REPLAY_MINUTES_SHOWN) -> None:
        self._shown = shown
        self._busiest: list[tuple[int, int, Minute]] = []
        self._current = Minute(0, 0, 0)

    def add(self, items: Sequence[Item], refused: Sequence[int]) -> None:
        """Count a batch; ``refused`` are the indexes of the refused requests in it, ascending."""
        begin = refused_begin = 0
        while begin < len(items):
            start_us = items[begin][0] // _MINUTE_US * _MINUTE_US
            end = bisect_left(items, start_us + _MINUTE_US, lo=begin, key=lambda item: item[0])
            refused_end = bisect_left(refused, end, lo=refused_begin)
            if start_us != self._current.start_us:
                self._close()
                self._current = Minute(start_us, 0, 0)
            _, requests, already = self._current
            self._current = Minute(start_us, requests + end - begin, already + refused_end - refused_begin)
            begin, refused_begin = end, refused_end

    def busiest(self) -> list[Minute]:
        """The minutes with the most requests, most first; of equal ones the earlier. Ends the counting."""
        self._close()
        return [minute for _, _, minute in sorted(self._busiest, reverse=True)]

    def _close(self) -> None:
        minute = self._current
        if minute.requests:
            heapq.heappush(self._busiest, (minute.requests, -minute.start_us, minute))
            if len(self._busiest) > self._shown:
                heapq.heappop(self._busiest)
        self._current = Minute(0, 0, 0)
