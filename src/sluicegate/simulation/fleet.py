"""The fleet: ticks in which clients, shared counters and masters are played one after the other.

What one part needs of another it takes from the tick before: how long a check is on its way, how many requests clients' counters let pass. Inside a tick
clients, leases and queues are discrete events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from sluicegate.algorithms.precision import Precision
from sluicegate.bounds import BREAKER_FAILURES, SIM_HEAD_CLIENTS, SIM_STRATUM_CLIENTS
from sluicegate.clock import US_PER_S
from sluicegate.simulation.calibration import Calibration
from sluicegate.simulation.clients import Caches, Clients
from sluicegate.simulation.draws import Zipf, poisson, strata
from sluicegate.simulation.events import Event, event_of
from sluicegate.simulation.masters import Master
from sluicegate.simulation.plan import FREE, PAID, FleetPlan, Scenario
from sluicegate.simulation.shared import Gateway, SharedCounter, SharedStore, per_second
from sluicegate.stores.near.rechecks import Rechecks
from sluicegate.stores.near.settings import NearSettings

__all__ = ["BIN_US", "Bin", "Fleet"]

BIN_US = 250_000
"""What a point of the charts stands for."""

_STEPS_PER_HORIZON = 4


@dataclass
class Bin:
    """A part of the time: checks, how many of them sent a charge, calls by master, what passed of the counter that is watched, checks decided without their store."""

    checks: float = 0.0
    sent: float = 0.0
    calls: list[int] = field(default_factory=list)
    passed: int = 0
    degraded: float = 0.0


class Fleet:
    """One run. ``play`` runs it to its end; then everything that a report says can be read."""

    def __init__(self, plan: FleetPlan, costs: Calibration, near: NearSettings | None = None) -> None:
        self.plan = plan
        self.costs = costs
        self.near = near = near or NearSettings()
        self.draw = draw = Random(plan.seed)  # noqa: S311 -- a model that can be repeated; nothing is kept secret by it
        zipf = Zipf(plan.keys, plan.exponent)
        # Whoever asks for less than half of the least limit is never refused, and needs no state.
        self.last_played = zipf.rank_at(0.5 * FREE.tokens / FREE.period_us / plan.usual_per_us)
        self.clients = Clients(
            strata(draw, SIM_HEAD_CLIENTS, self.last_played, SIM_STRATUM_CLIENTS), zipf, plan.usual_per_us,
            plan.gateways, plan.masters, ((FREE, 1.0), (PAID, plan.paid)), Caches(Rechecks(near.terms, near.trust_us, near.stretch_max_us), plan.gateways, plan.learn_passes),
            (plan.begin_us, plan.end_us, BIN_US), plan.affinity, draw,
        )  # fmt: skip
        self.tail_per_us = plan.usual_per_us * zipf.shares(self.last_played + 1, plan.keys)
        self.masters = [
            Master(costs, plan.gateways, plan.oneway_us, plan.jitter_us, plan.deadline_us, draw)
            for _ in range(plan.masters)
        ]
        self.gateways = [Gateway(number, plan.gateways, near, draw) for number in range(plan.gateways)]
        self.passing_per_s = self._passing_per_s()
        self.floor = SharedCounter("global", per_second(1.5 * self.passing_per_s), 0)
        search_per_s = 0.8 * plan.endpoint_part * self.passing_per_s
        self.search = SharedCounter("endpoint", per_second(search_per_s), 1 % plan.masters)
        self.counters = [self.floor, self.search]
        self.viral: SharedCounter | None = None
        if plan.scenario is Scenario.VIRAL:
            viral_per_s = 0.6 * plan.viral_part * plan.checks_per_us * US_PER_S
            self.viral = SharedCounter("viral", per_second(viral_per_s), 2 % plan.masters, Precision.AUTO)
            self.counters.append(self.viral)
        self.shared = SharedStore(self.counters, self.gateways, near)
        self._viral_checks = 0
        self.away: int | None = None
        self.viral_per_us = 0.0
        self.tail_asked = self.tail_degraded = 0
        self.bins: list[Bin] = []
        self.event: Event = event_of(plan.scenario)(self)
        self._arrivals: list[list[tuple[float, int]]] = [[] for _ in self.masters]

    def _passing_per_s(self) -> float:
        """What all clients' limits let pass together, by arithmetic."""
        total = self.tail_per_us
        for client in self.clients.all:
            total += client.weight * min(client.offered, client.spec.tokens / client.spec.period_us)
        return total * US_PER_S

    # ------------------------------------------------------------------ time

    def play(self) -> None:
        """The whole run."""
        plan = self.plan
        begin_us = plan.begin_us
        counted = False
        for tick, start_us in enumerate(range(0, plan.end_us, plan.tick_us)):
            if not counted and start_us >= begin_us:
                counted = True
                self._begin_counting()
            self.event.at(start_us)
            self._tick(tick, start_us, self._bin(start_us - begin_us) if counted else Bin(calls=[0] * plan.masters))
        for into, here, degraded in zip(
            self.bins, self.clients.refused_here, self.clients.refused_degraded, strict=True
        ):
            into.checks += here + degraded
            into.degraded += degraded

    def _begin_counting(self) -> None:
        self.clients.begin_sweep()
        self.tail_asked = self.tail_degraded = self.shared.items = 0
        for master in self.masters:
            master.begin_counting()
        for counter in self.counters:
            counter.begin_counting()

    def _bin(self, passed_us: int) -> Bin:
        while len(self.bins) <= passed_us // BIN_US:
            self.bins.append(Bin(calls=[0] * len(self.masters)))
        return self.bins[passed_us // BIN_US]

    def delays(self, now_us: float) -> list[float]:
        """How long a check is on its way to being decided, by master; below 0 where none is decided in time."""
        plan, found = self.plan, []
        for number, master in enumerate(self.masters):
            waits_us = max(0.0, master.backlog_us - now_us)
            there_us = plan.oneway_us + waits_us + self.costs.exact_call_us + self.costs.exact_check_us
            late = number == self.away or there_us + plan.oneway_us > plan.deadline_us
            found.append(-1.0 if late else there_us)
        return found

    def _tick(self, tick: int, start_us: int, into: Bin) -> None:
        plan, clients = self.plan, self.clients
        end_us = start_us + plan.tick_us
        delays = self.delays(start_us)
        clients.delays = delays
        counts = clients.counts
        checks, passed = counts.checks, counts.admitted + counts.degraded
        asked, degraded = counts.asked, counts.degraded + counts.degraded_refused
        clients.play(end_us)
        tail = poisson(self.draw, self.tail_per_us * plan.tick_us)
        others = poisson(self.draw, clients.others)
        clients.others = 0.0
        passed = counts.admitted + counts.degraded - passed + tail
        sent = counts.asked - asked + self._alone(start_us, tail, others, delays)
        degraded_tail = tail - (sent - (counts.asked - asked))
        items = self.shared.items
        viral_degraded = self.viral.degraded if self.viral else 0
        viral_sent = self._gateways(tick, start_us, passed / plan.gateways, delays)
        into.checks += counts.checks - checks + tail + self._viral_checks
        into.sent += sent + viral_sent + self.shared.items - items
        into.degraded += counts.degraded + counts.degraded_refused - degraded + degraded_tail
        into.degraded += (self.viral.degraded if self.viral else 0) - viral_degraded
        watched = self.viral or self.floor
        for counter in self.counters:
            settled = counter.settle(start_us)
            into.passed += settled if counter is watched else 0
        self._masters(end_us, into)

    def _alone(self, start_us: int, tail: int, others: int, delays: list[float]) -> int:
        """Checks of clients that are not played, and of those that others stand for, at masters drawn for each; how many of the former were sent."""
        draw, plan = self.draw, self.plan
        random, tick_us, gateways, masters = draw.random, plan.tick_us, plan.gateways, plan.masters
        sent = 0
        for number in range(tail + others):
            master = int(random() * masters)
            if delays[master] < 0.0:
                continue
            if number < tail:
                sent += 1
            self._arrivals[master].append((start_us + random() * tick_us, int(random() * gateways)))
        self.tail_asked += sent
        self.tail_degraded += tail - sent
        return sent

    def _gateways(self, tick: int, start_us: int, passed: float, delays: list[float]) -> int:
        """Every gateway, each at its own moment of the tick: answers come, requests take tokens, the store is asked. Returns the viral checks that were sent."""
        plan, draw, shared = self.plan, self.draw, self.shared
        steps = max(1, self.near.horizon_us // _STEPS_PER_HORIZON // plan.tick_us)
        viral_mean = self.viral_per_us * plan.tick_us / plan.gateways
        self._viral_checks = sent = 0
        for gateway in self.gateways:
            time_us = start_us + plan.tick_us * (gateway.number + draw.random()) / plan.gateways
            shared.deliver(time_us)
            requests = poisson(draw, passed)
            low = self._offer(gateway, self.floor, requests, time_us, delays)[1]
            searches = poisson(draw, passed * plan.endpoint_part)
            low = self._offer(gateway, self.search, searches, time_us, delays)[1] or low
            if self.viral is not None and viral_mean:
                checks = poisson(draw, viral_mean)
                exact, viral_low = self._offer(gateway, self.viral, checks, time_us, delays)
                self._viral_checks += checks
                sent += exact
                low = viral_low or low
                gateway.heated(self.viral, exact, time_us)
            if low or tick % steps == gateway.number % steps:
                shared.step(gateway, time_us, delays, plan.deadline_us)
        return sent

    def _offer(
        self, gateway: Gateway, counter: SharedCounter, checks: int, time_us: float, delays: list[float]
    ) -> tuple[int, bool]:
        """One gateway's checks of one counter: how many were sent, and whether it should ask for tokens at once."""
        found = gateway.offer(counter.counter.name, checks, time_us)
        delay_us = delays[counter.master]
        if found.exact and delay_us >= 0.0:
            # Those of the global and the endpoint's counter ride in calls of their clients' counters; a viral client has only this one.
            self._arrivals[counter.master] += [(time_us, gateway.number)] * found.exact
        counter.decided(found, gateway, time_us, delay_us, self.plan.gateways)
        return (found.exact if delay_us >= 0.0 else 0), found.low

    def _masters(self, end_us: int, into: Bin) -> None:
        for number, master in enumerate(self.masters):
            arrivals = self._arrivals[number]
            arrivals += self.clients.calls[number]
            self.clients.calls[number] = []
            arrivals.sort()
            before = master.calls + master.lease_calls
            master.play(end_us, arrivals, self.shared.lease_calls.pop(number, ()))
            into.calls[number] += master.calls + master.lease_calls - before
            self._arrivals[number] = []

    def lose(self, master: int) -> None:
        """A master is gone: the first calls of every gateway wait in vain, then none is sent."""
        self.away = master
        queue = self.masters[master]
        queue.latencies.add(self.plan.deadline_us, BREAKER_FAILURES * self.plan.gateways)
        queue.late += BREAKER_FAILURES * self.plan.gateways
