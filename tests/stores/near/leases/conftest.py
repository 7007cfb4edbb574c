"""A fleet of processes with their leases in front of one store: discrete events, clocks of their own, a network that may fail."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from sluicegate.algorithms import OnChange, Precision, Spec
from sluicegate.algorithms.leasing import Leased, LeasedState, LeaseGrant, LeaseTerms, Turn
from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings
from sluicegate.testing.intervals import Excess, Hit, worst_excess

MS = 1_000
SECOND = 1_000_000
MILLION = 1_000_000


@dataclass
class Troubles:
    """What may happen. Probabilities are per call of the keeper or of an exact charge; times are means in microseconds, 0 for never."""

    lost: float = 0.0
    late: float = 0.0
    crash_us: int = 0
    stop_us: int = 0
    down_us: int = 0
    fork_us: int = 0
    restart_us: int = 0
    failover_us: int = 0
    drift_ppm: int = 0
    slow: float = 0.0


class LosingStore:
    """A store of one counter that restarts and fails over to a replica 100 ms behind. It decides no exact charge of a counter of another life."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.leased = Leased(fleet.spec)
        self.state: Any = None
        self.life = "0" * 16
        self.exact = self.lost_exact = self.events = 0
        self.copies: list[tuple[int, Any, int]] = []

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant]:
        grants = []
        for item in items:
            turn = Turn(holder, item.ask, terms.hold_us, self.life)
            self.state, grant = self.leased.turn(self.state, self.fleet.store_us(), turn)
            grants.append(grant)
        return grants

    def charge(self, cost: int) -> tuple[bool, int | None]:
        """(whether it passed, how long to wait)."""
        now_us, state = self.fleet.store_us(), self.state
        spec: Any = self.leased.spec
        if isinstance(state, LeasedState):
            if state.ledger.incarnation != self.life:
                return False, None
            spec = self.leased
        after = spec.admit(state, now_us, cost)
        if after is not None:
            self.state, self.exact = after, self.exact + cost
            return True, None
        return False, spec.verdict(state, now_us, cost, False).retry_after_us

    def copy(self) -> None:
        self.copies = [*self.copies[-5:], (self.fleet.now_us, self.state, self.exact)]

    def restart(self) -> None:
        """It comes back with all its writes, and a new life."""
        self.fleet.go_down()
        self.life = f"{self.fleet.draw.getrandbits(64):016x}"
        self.events += 1

    def failover(self) -> None:
        """A replica takes over that is behind: acknowledged writes are gone."""
        old = [copy for copy in self.copies if copy[0] <= self.fleet.now_us - 100 * MS]
        _, self.state, exact = old[-1] if old else (0, None, 0)
        self.lost_exact += self.exact - exact
        self.exact = exact
        self.restart()


class Node:
    """One process: its leases, its clock, the requests that come to it, and the keeper's turns."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.number = number
        self.ppm = fleet.draw.choice((-1, 0, 1)) * fleet.troubles.drift_ppm
        self.origin_us = fleet.draw.randrange(10**9)
        self.stopped_until_us = 0
        self.begin()

    def begin(self) -> None:
        self.leases = Leases(self.fleet.settings, self.fleet.draw.random)
        self.leases.nodes = self.fleet.nodes_seen
        self.under_way = False
        self.next_us = 0
        self.scheduled_us = -1
        self.offered = self.leased = self.exact = self.refused_here = self.admitted = 0

    def fork(self) -> None:
        """The process goes on as a forked child of itself, and the parent stops in this moment."""
        self.leases.forked()
        self.under_way = False
        self.scheduled_us = -1

    def clock_us(self) -> int:
        return self.origin_us + self.fleet.now_us * (MILLION + self.ppm) // MILLION

    # ------------------------------------------------------------------ requests

    def request(self, cost: int = 1) -> None:
        """One request, decided as a near store does."""
        fleet = self.fleet
        if fleet.now_us < self.stopped_until_us:
            return
        now_us = self.clock_us()
        self.offered += cost
        fleet.offers.append((fleet.store_us(), cost))
        entry = self.leases.find(fleet.counter, "*", now_us)
        if entry is not None:
            if fleet.troubles.slow and fleet.draw.random() < fleet.troubles.slow:
                spend = entry.spend(cost, now_us)
                if spend is not None:
                    fleet.at(fleet.draw.randrange(300 * MS), lambda: self.conclude(self.leases, entry, spend, cost))
                    return
            elif entry.take(cost, now_us):
                if entry.low:
                    self.poke()
                self.leased += cost
                self.admit(cost)
                return
            if entry.low:
                self.poke()
            if entry.waits_us(cost, now_us) is not None:
                self.refused_here += cost
                return
        leases = self.leases
        fleet.at(fleet.way_us(), lambda: self.ask_exactly(leases, entry, cost))

    def conclude(self, leases: Leases, entry: Any, spend: Any, cost: int) -> None:
        if self.leases is leases and self.fleet.now_us >= self.stopped_until_us:
            if self.fleet.draw.random() < 0.2:
                entry.give_back(spend)
            elif entry.conclude(spend, self.clock_us()):
                self.leased += cost
                self.admit(cost)

    def ask_exactly(self, leases: Leases, entry: Any, cost: int) -> None:
        fleet = self.fleet
        self.exact += 1
        if not fleet.up:
            return
        admitted, wait_us = fleet.charge(cost)
        if admitted:
            # By the store in this moment, whoever hears of it.
            self.admit(cost)
        elif entry is not None and self.leases is leases:
            sent_us = self.clock_us()
            if wait_us:
                fleet.at(fleet.way_us(), lambda: entry.denied(cost, wait_us, max(sent_us, self.clock_us())))

    def admit(self, cost: int) -> None:
        self.admitted += cost
        self.fleet.hits.append((self.fleet.store_us(), cost))

    # ------------------------------------------------------------------ the keeper

    def poke(self) -> None:
        self.turn_at(max(self.fleet.now_us + 100, self.next_us))

    def turn_at(self, time_us: int) -> None:
        """A keeper's turn then, if none comes before."""
        fleet = self.fleet
        if self.scheduled_us >= fleet.now_us and self.scheduled_us <= time_us:
            return
        self.scheduled_us = time_us
        leases = self.leases
        fleet.at(max(time_us - fleet.now_us, 0), lambda: self.turn(leases))

    def turn(self, leases: Leases) -> None:
        fleet = self.fleet
        if self.leases is not leases or self.under_way:
            return
        if fleet.now_us < self.stopped_until_us:
            fleet.at(self.stopped_until_us - fleet.now_us, lambda: self.turn(leases))
            return
        self.scheduled_us = -1
        self.next_us = fleet.now_us + leases.tick_us // 16
        items = leases.step(self.clock_us())
        if items:
            self.under_way = True
            fleet.asks += len(items)
            fleet.at(fleet.way_us(), lambda: self.arrive(leases, items))
        else:
            self.again()

    def again(self) -> None:
        due_us = self.leases.next_due_us()
        if due_us is not None:
            self.turn_at(max(self.fleet.now_us + max(due_us - self.clock_us(), 0), self.next_us))

    def arrive(self, leases: Leases, items: Sequence[LeaseItem]) -> None:
        fleet, draw = self.fleet, self.fleet.draw
        error = StoreError("lost")
        grants: Sequence[LeaseGrant | StoreError] = [error] * len(items)
        if fleet.up and draw.random() >= fleet.troubles.lost:
            fleet.clock.set(fleet.store_us())
            grants = (fleet.losing or fleet.store).lease(leases.holder, fleet.settings.terms, items)
            if draw.random() < fleet.troubles.lost:
                grants = [error] * len(items)
        late = draw.random() < fleet.troubles.late
        fleet.at(draw.randrange(400 * MS) if late else fleet.way_us(), lambda: self.answer(leases, items, grants))

    def answer(self, leases: Leases, items: Sequence[LeaseItem], grants: Sequence[LeaseGrant | StoreError]) -> None:
        fleet = self.fleet
        if self.leases is not leases:
            return
        if fleet.now_us < self.stopped_until_us:
            fleet.at(self.stopped_until_us - fleet.now_us, lambda: self.answer(leases, items, grants))
            return
        self.under_way = False
        fleet.news += len(leases.answered(items, grants, self.clock_us()))
        self.again()


@dataclass
class Fleet:
    """``run`` plays; ``hits`` are the admissions by the store's clock."""

    seed: int
    spec: Spec
    rates: Callable[[int, int], float]
    """(node, time in microseconds) -> requests per second."""
    nodes_count: int = 8
    settings: NearSettings = field(default_factory=NearSettings)
    troubles: Troubles = field(default_factory=Troubles)
    later: tuple[int, Spec] | None = None
    nodes_seen: int = 0
    costs: Sequence[int] = (1,)

    def __post_init__(self) -> None:
        self.nodes_seen = self.nodes_seen or self.nodes_count
        self.draw = Random(self.seed)
        self.now_us = self.order = self.asks = self.news = 0
        self.ppm = self.draw.choice((-1, 0, 1)) * self.troubles.drift_ppm
        self.clock = ManualClock()
        self.origin_us = self.clock.now_us()
        self.store = MemoryStore(self.clock)
        losing = self.troubles.restart_us or self.troubles.failover_us
        self.losing = LosingStore(self) if losing else None
        self.hits: list[Hit] = []
        self.offers: list[Hit] = []
        self.started = False
        self.down_until_us = 0
        self.changed_us = 0
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.counter = self.made(self.spec)
        self.nodes = [Node(self, number) for number in range(self.nodes_count)]

    def made(self, spec: Spec) -> Counter:
        prefix = counter_prefix("test", "world", spec.algorithm, spec.shape)
        return Counter("world", spec, prefix, on_change=OnChange.KEEP, precision=Precision.LEASED)

    def at(self, after_us: int, act: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now_us + after_us, self.order, act))

    def way_us(self) -> int:
        return self.draw.randrange(100, 500)

    @property
    def up(self) -> bool:
        return self.now_us >= self.down_until_us

    def store_us(self) -> int:
        return self.origin_us + self.now_us * (MILLION + self.ppm) // MILLION

    def charge(self, cost: int) -> tuple[bool, int | None]:
        """An exact charge in the store: (whether it passed, how long to wait)."""
        if self.losing is not None:
            return self.losing.charge(cost)
        self.clock.set(self.store_us())
        answer = self.store.decide_one([(self.counter, "*", cost)])
        return answer.admitted, answer.verdicts()[0].retry_after_us

    def arrivals(self, node: Node) -> None:
        """Requests of a node, one after the other."""

        def again() -> None:
            rate = self.rates(node.number, self.now_us)
            if rate > 0:
                node.request(self.draw.choice(self.costs))
                self.at(1 + int(self.draw.expovariate(rate / SECOND)), again)
            else:
                self.at(20 * MS, again)

        self.at(self.draw.randrange(2 * MS), again)

    def often(self, mean_us: int, act: Callable[[], None]) -> None:
        if mean_us:

            def again() -> None:
                act()
                self.at(1 + int(self.draw.expovariate(1 / mean_us)), again)

            self.at(1 + int(self.draw.expovariate(1 / mean_us)), again)

    def run(self, length_us: int) -> Fleet:
        """Play until this time."""
        if not self.started:
            self.started = True
            self.start()
        while self.queue and self.queue[0][0] <= length_us:
            self.now_us, _, act = heapq.heappop(self.queue)
            act()
        self.now_us = length_us
        return self

    def start(self) -> None:
        troubles = self.troubles
        for node in self.nodes:
            self.arrivals(node)
            self.often(troubles.crash_us, node.begin)
            self.often(troubles.fork_us, node.fork)
            self.often(troubles.stop_us, lambda node=node: self.stop(node))  # type: ignore[misc]
        self.often(troubles.down_us, self.go_down)
        if self.losing is not None:
            self.often(30 * MS, self.losing.copy)
            self.often(troubles.restart_us, self.losing.restart)
            self.often(troubles.failover_us, self.losing.failover)
        if self.later is not None:
            self.at(self.later[0], self.change)

    def stop(self, node: Node) -> None:
        """SIGSTOP, often for longer than a lease."""
        node.stopped_until_us = self.now_us + self.draw.randrange(3 * self.settings.terms.ttl_us)

    def go_down(self) -> None:
        self.down_until_us = self.now_us + self.draw.randrange(2 * self.settings.terms.ttl_us)

    def change(self) -> None:
        assert self.later is not None
        self.counter = self.made(self.later[1])
        self.changed_us = self.store_us()

    # ------------------------------------------------------------------ what came of it

    def admitted(self, since_us: int = 0) -> int:
        return sum([cost for time_us, cost in self.hits if time_us >= self.origin_us + since_us])

    def excess(self) -> Excess | None:
        """The interval that exceeds the bound by most; every interval is looked at."""
        specs = [self.spec] if self.later is None else [self.spec, self.later[1]]
        more = self.losing.lost_exact if self.losing is not None else 0
        found = worst_excess(self.hits, lambda d: max([spec.most_admitted(d) for spec in specs]) + more)
        if found is None and self.later is not None:
            bound_us = self.changed_us + self.settings.terms.hold_us + SECOND // 10
            found = worst_excess([hit for hit in self.hits if hit[0] >= bound_us], self.later[1].most_admitted)
        return found

    def told(self) -> str:
        """What a failure prints."""
        return f"seed {self.seed} of {self.spec}: {self.excess()}"


@pytest.fixture
def make_fleet() -> Callable[..., Fleet]:
    """``make_fleet(seed, spec, rates, **options)``: a fleet to be run; ``troubles`` as a dict."""

    def make(seed: int, spec: Spec, rates: Callable[[int, int], float], **options: Any) -> Fleet:
        troubles = Troubles(**options.pop("troubles", {}))
        return Fleet(seed, spec, rates, troubles=troubles, **options)

    return make
