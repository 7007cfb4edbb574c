"""A master as a queue: checks ride together as the store sends them, and the server does one call after the other."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from random import Random

from sluicegate.bounds import REDIS_BATCH_MAX, SIM_LATENCY_US_MAX
from sluicegate.simulation.calibration import Calibration

__all__ = ["Latencies", "Master"]


class Latencies:
    """How often each latency was seen, in steps of a microsecond; what is above ``SIM_LATENCY_US_MAX`` counts as that. ``longest_us`` is exact."""

    __slots__ = ("counts", "longest_us", "total")

    def __init__(self) -> None:
        self.counts = [0] * (SIM_LATENCY_US_MAX + 1)
        self.longest_us = 0.0
        self.total = 0

    def add(self, latency_us: float, times: int = 1) -> None:
        """``times`` checks took so long."""
        self.counts[int(latency_us) if latency_us < SIM_LATENCY_US_MAX else SIM_LATENCY_US_MAX] += times
        self.total += times
        if latency_us > self.longest_us and times:
            self.longest_us = latency_us

    def merge(self, other: Latencies) -> None:
        """Count what the other has counted too."""
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.longest_us = max(self.longest_us, other.longest_us)

    def at(self, *parts: float) -> list[float]:
        """The latencies below which these parts (0 to 1, growing) of all are; 0 where there are none. The upper end of the step."""
        found: list[float] = []
        seen, step = 0, -1
        for part in parts:
            wanted = part * self.total
            while seen < wanted and step < SIM_LATENCY_US_MAX:
                step += 1
                seen += self.counts[step]
            found.append(min(float(step + 1), self.longest_us))
        return found


class Master:
    """One server, asked by ``gateways`` lanes with one call in flight each. All times are microseconds.

    What a gateway asks while its lane has a call in flight waits for the answer and leaves as one call, of ``REDIS_BATCH_MAX`` at most. The server takes calls in
    the order in which they were sent; the way there takes ``oneway_us``, the way back the same and an exponential ``jitter_us`` more. It is a queue M/G/1
    where nothing waits for a lane.
    """

    def __init__(
        self, costs: Calibration, gateways: int, oneway_us: float, jitter_us: float, deadline_us: float, draw: Random
    ) -> None:
        self._costs = costs
        self._oneway_us = oneway_us
        self._jitter_us = jitter_us
        self._deadline_us = deadline_us
        self._draw = draw
        self._waiting: list[deque[float]] = [deque() for _ in range(gateways)]
        self._busy = [False] * gateways
        self._back: list[tuple[float, int]] = []
        self._free_us = 0.0
        self.begin_counting()

    def begin_counting(self) -> None:
        """Count from now on."""
        self.latencies = Latencies()
        self.calls = self.checks = self.lease_calls = self.late = 0
        self.busy_us = 0.0

    def play(self, until_us: float, checks: Sequence[tuple[float, int]], leases: Sequence[tuple[float, int]]) -> None:
        """Exact checks (time, gateway) and steps of leases (time, counters) up to ``until_us``, each in order of time."""
        back, waiting, busy = self._back, self._waiting, self._busy
        steps = iter(leases)
        step = next(steps, None)
        for time_us, gateway in checks:
            while step is not None and step[0] <= time_us:
                self._lanes_until(step[0])
                self._lease(step[0], step[1])
                step = next(steps, None)
            if back and back[0][0] <= time_us:
                self._lanes_until(time_us)
            if busy[gateway]:
                waiting[gateway].append(time_us)
            else:
                self._send(time_us, gateway, (time_us,))
        while step is not None:
            self._lanes_until(step[0])
            self._lease(step[0], step[1])
            step = next(steps, None)
        self._lanes_until(until_us)

    @property
    def backlog_us(self) -> float:
        """When the server has done all that it was sent."""
        return self._free_us

    def _lanes_until(self, time_us: float) -> None:
        """Answers that have come back by then: their lanes send what waits."""
        back, waiting = self._back, self._waiting
        while back and back[0][0] <= time_us:
            came_us, gateway = heapq.heappop(back)
            line = waiting[gateway]
            if not line:
                self._busy[gateway] = False
            elif len(line) <= REDIS_BATCH_MAX:
                self._send(came_us, gateway, tuple(line))
                line.clear()
            else:
                self._send(came_us, gateway, [line.popleft() for _ in range(REDIS_BATCH_MAX)])

    def _send(self, time_us: float, gateway: int, asked: Sequence[float]) -> None:
        costs, size = self._costs, len(asked)
        service_us = costs.exact_call_us + size * costs.exact_check_us
        self._free_us = done_us = max(self._free_us, time_us + self._oneway_us) + service_us
        self.busy_us += service_us
        back_us = done_us + self._oneway_us + self._jitter_us * self._draw.expovariate(1.0)
        self._busy[gateway] = True
        heapq.heappush(self._back, (back_us, gateway))
        self.calls += 1
        self.checks += size
        add, own_us, deadline_us = self.latencies.add, costs.local_check_us + costs.ask_us, self._deadline_us
        if back_us - asked[0] <= deadline_us:
            for asked_us in asked:
                add(back_us - asked_us + own_us)
            return
        for asked_us in asked:
            # Who waits for longer was told so at its deadline, and decided without the store.
            self.late += back_us - asked_us > deadline_us
            add(min(back_us - asked_us, deadline_us) + own_us)

    def _lease(self, time_us: float, counters: int) -> None:
        service_us = self._costs.lease_call_us + counters * self._costs.lease_item_us
        self._free_us = max(self._free_us, time_us + self._oneway_us) + service_us
        self.busy_us += service_us
        self.lease_calls += 1
