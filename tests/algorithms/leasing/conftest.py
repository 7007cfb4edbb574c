"""A world of one store and a few holders of one counter, run from a seed: discrete events, clocks that drift, a network that fails."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest

from sluicegate.algorithms import FixedWindow, OnChange, Spec
from sluicegate.algorithms.leasing import (
    Holding,
    LeaseAsk,
    Leased,
    LeasedState,
    LeaseGrant,
    LeaseTerms,
    Spend,
    Turn,
)
from sluicegate.testing.intervals import Excess, Hit, worst_excess

START_US = 1_700_000_000_000_000
MS = 1_000
MILLION = 1_000_000


@dataclass
class Faults:
    """What may happen in a world. Probabilities are per message; times are mean intervals in microseconds, 0 for never."""

    lost: float = 0.05
    doubled: float = 0.05
    late: float = 0.05
    crash_us: int = 4_000_000
    stop_us: int = 3_000_000
    down_us: int = 5_000_000
    restart_us: int = 0
    flush_us: int = 0
    failover_us: int = 0
    lag_us: int = 100_000
    exact_us: int = 30_000
    burst_us: int = 400_000
    tick_us: int = 40_000
    drift_ppm: int = 10_000
    change_at_us: int = 0
    settled: bool = False


class Actor:
    """One holder: a process with a clock of its own, that asks the store and lets requests pass."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.born()

    def born(self) -> None:
        draw = self.world.draw
        self.ppm = draw.choice((-1, 1, 0)) * self.world.faults.drift_ppm
        self.name = f"{self.number:03d}{draw.randrange(100_000):05d}"
        self.origin_us = draw.randrange(10**9)
        self.holding = self.world.holding_type(self.world.terms)
        self.stopped_until_us = 0
        self.waiting = False

    def clock_us(self) -> int:
        return self.origin_us + self.world.now_us * (MILLION + self.ppm) // MILLION


@dataclass
class World:
    """``run`` plays ``length_us``; ``hits`` are the admissions by the store's clock, ``excess`` the worst interval."""

    seed: int
    spec: Spec
    faults: Faults = field(default_factory=Faults)
    later: Spec | None = None
    leased_type: type[Leased] = Leased
    holding_type: type[Holding] = Holding
    terms: LeaseTerms = field(default_factory=lambda: LeaseTerms(ttl_us=200 * MS))
    actors_count: int = 4
    gap_us: int = 4 * MS

    def __post_init__(self) -> None:
        self.draw = Random(self.seed)
        self.now_us = 0
        self.events = self.messages = self.spent_leased = self.changed_us = self.lost_exact = 0
        self.state: object = None
        self.leased = self.leased_type(self.spec)
        self.incarnation = "0" * 16
        self.down_until_us = 0
        self.ppm = self.draw.choice((-1, 0, 1)) * self.faults.drift_ppm
        self.hits: list[Hit] = []
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.copies: list[tuple[int, object, int]] = []
        self.exact_admitted = 0
        self.lost_times: list[int] = []
        self.actors = [Actor(self, number) for number in range(self.actors_count)]

    # ------------------------------------------------------------------ running

    def at(self, after_us: int, act: Callable[[], None]) -> None:
        self.events += 1
        heapq.heappush(self.queue, (self.now_us + after_us, self.events, act))

    def often(self, mean_us: int, act: Callable[[], None]) -> None:
        if mean_us:

            def again() -> None:
                act()
                self.at(1 + int(self.draw.expovariate(1 / mean_us)), again)

            self.at(1 + int(self.draw.expovariate(1 / mean_us)), again)

    def run(self, length_us: int = 5_000_000) -> World:
        faults = self.faults
        for actor in self.actors:
            self.often(self.gap_us, partial(self.request, actor))
            self.often(faults.tick_us, partial(self.tick, actor))
            self.often(faults.crash_us, actor.born)
            self.often(faults.stop_us, partial(self.stop, actor))
        self.often(faults.down_us, self.go_down)
        self.often(faults.restart_us, self.restart)
        self.often(faults.flush_us, self.flush)
        self.often(faults.failover_us, self.failover)
        self.often(faults.exact_us, self.exact)
        self.often(faults.burst_us, self.burst)
        self.often(faults.lag_us // 3, self.copy)
        if faults.change_at_us:
            self.at(faults.change_at_us, self.change)
        while self.queue and self.queue[0][0] <= length_us:
            self.now_us, _, act = heapq.heappop(self.queue)
            act()
        return self

    def store_us(self) -> int:
        return START_US + self.now_us * (MILLION + self.ppm) // MILLION

    # ------------------------------------------------------------------ the store

    @property
    def up(self) -> bool:
        return self.now_us >= self.down_until_us

    def turn(self, name: str, ask: LeaseAsk) -> LeaseGrant:
        turn = Turn(name, ask, self.terms.hold_us, self.incarnation)
        self.state, grant = self.leased.turn(self.state, self.store_us(), turn)
        return grant

    def exact(self) -> None:
        """An exact charge of a counter that is leased in this life of the server."""
        state = self.state
        if self.up and isinstance(state, LeasedState) and state.ledger.incarnation == self.incarnation:
            cost = self.draw.choice((1, 1, 2, 5))
            after = self.leased.admit(state, self.store_us(), cost)
            if after is not None:
                self.state = after
                self.exact_admitted += cost
                self.hits.append((self.store_us(), cost))

    def burst(self) -> None:
        """All that is held is spent at once, and (where there are exact charges) all that is left beside it."""
        for actor in self.actors:
            now_us = actor.clock_us()
            left = actor.holding.left(now_us) if self.now_us >= actor.stopped_until_us else 0
            spend = actor.holding.spend(left, now_us) if left else None
            if spend is not None and actor.holding.conclude(spend, now_us):
                self.spent_leased += left
                self.hits.append((self.store_us(), left))
        for _ in range(100 if self.faults.exact_us else 0):
            self.exact()

    def change(self) -> None:
        assert self.later is not None
        leased = self.leased_type(self.later)
        if isinstance(self.state, LeasedState):
            self.state = leased.carry(self.leased, self.state, self.store_us(), OnChange.KEEP)
        self.leased = leased
        self.changed_us = self.store_us()

    def go_down(self) -> None:
        self.down_until_us = self.now_us + self.draw.randrange(300 * MS)

    def restart(self) -> None:
        """A server that comes back with all its writes, and a new life."""
        self.go_down()
        self.new_life()

    def new_life(self) -> None:
        self.incarnation = f"{self.draw.getrandbits(64):016x}"
        self.lost_times.append(self.store_us())

    def flush(self) -> None:
        self.state = None
        self.lost_times.append(self.store_us())
        self.lost_exact += self.exact_admitted
        self.exact_admitted = 0

    def copy(self) -> None:
        self.copies = [*self.copies[-5:], (self.now_us, self.state, self.exact_admitted)]

    def failover(self) -> None:
        """A replica takes over that is behind: acknowledged writes are gone."""
        old = [copy for copy in self.copies if copy[0] <= self.now_us - self.faults.lag_us]
        _, self.state, exact = old[-1] if old else (0, None, 0)
        self.lost_exact += self.exact_admitted - exact
        self.exact_admitted = exact
        self.new_life()

    # ------------------------------------------------------------------ the network

    def send(self, act: Callable[[], None]) -> None:
        faults, draw = self.faults, self.draw
        self.messages += 1
        if draw.random() < faults.lost:
            return
        for _ in range(2 if draw.random() < faults.doubled else 1):
            slow = draw.random() < faults.late
            self.at(draw.randrange(100, 400 * MS if slow else 5 * MS), act)

    # ------------------------------------------------------------------ the holders

    def stop(self, actor: Actor) -> None:
        """SIGSTOP, often for longer than a lease."""
        actor.stopped_until_us = self.now_us + self.draw.randrange(600 * MS)

    def tick(self, actor: Actor) -> None:
        """Ask the store: reports, a wish where little is left, sometimes a return."""
        if self.now_us < actor.stopped_until_us:
            self.at(actor.stopped_until_us - self.now_us, lambda: self.tick(actor))
            return
        holding, draw = actor.holding, self.draw
        now_us = actor.clock_us()
        want = draw.choice((0, 3, 10, 40)) if holding.left(now_us) < 10 else 0
        close = draw.random() < 0.15 or (holding.wanted and draw.random() < 0.5)
        ask = holding.ask(now_us, want=want, share=draw.choice((1, 2, 8)), close=close, settled=self.faults.settled)

        def arrive() -> None:
            if self.up:
                grant = self.turn(name, ask)
                self.send(lambda: self.answer(actor, holding, ask, grant))

        name = actor.name
        self.send(arrive)
        if draw.random() < 0.1:
            holding.failed(ask)

    def answer(self, actor: Actor, holding: Holding, ask: LeaseAsk, grant: LeaseGrant) -> None:
        if self.now_us < actor.stopped_until_us:
            self.at(actor.stopped_until_us - self.now_us, lambda: self.answer(actor, holding, ask, grant))
        elif actor.holding is holding:
            holding.answered(ask, grant, actor.clock_us())

    def request(self, actor: Actor) -> None:
        if self.now_us < actor.stopped_until_us:
            return
        cost = self.draw.choice((1, 1, 1, 2, 3))
        spend = actor.holding.spend(cost, actor.clock_us())
        if spend is not None:
            holding = actor.holding
            slow = self.draw.random() < 0.05
            self.at(
                self.draw.randrange(300 * MS if slow else 2 * MS), lambda: self.conclude(actor, holding, spend, cost)
            )

    def conclude(self, actor: Actor, holding: Holding, spend: Spend, cost: int) -> None:
        if self.now_us < actor.stopped_until_us:
            self.at(actor.stopped_until_us - self.now_us, lambda: self.conclude(actor, holding, spend, cost))
        elif actor.holding is not holding:
            return
        elif self.draw.random() < 0.1:
            holding.give_back(spend)
        elif holding.conclude(spend, actor.clock_us()):
            self.spent_leased += cost
            self.hits.append((self.store_us(), cost))

    # ------------------------------------------------------------------ checking

    def excess(self) -> Excess | None:
        """The interval that exceeds the bound by most; every interval is looked at."""
        specs = [self.spec] if self.later is None else [self.spec, self.later]
        found = worst_excess(self.hits, lambda d: max(spec.most_admitted(d) for spec in specs) + self.lost_exact)
        if found is None and self.later is not None:
            bound_us = self.changed_us + self.terms.hold_us
            before = [hit for hit in self.hits if hit[0] < self.changed_us]
            after = [hit for hit in self.hits if hit[0] >= bound_us]
            found = worst_excess(before, self.spec.most_admitted) or worst_excess(after, self.later.most_admitted)
        if found is None and isinstance(self.spec, FixedWindow) and self.later is None:
            found = self._window_excess(self.spec)
        return found

    def _window_excess(self, spec: FixedWindow) -> Excess | None:
        sums: dict[int, int] = {}
        for time_us, cost in self.hits:
            start_us = spec.bounds_us(time_us)[0]
            sums[start_us] = sums.get(start_us, 0) + cost
        for start_us, admitted in sums.items():
            if admitted > spec.limit + self.lost_exact:
                return Excess(start_us, start_us + spec.window_us, admitted, spec.limit)
        return None

    def told(self, excess: Excess | None) -> str:
        """What a failure prints."""
        return f"seed {self.seed} of {self.spec}: {excess}, exact charges lost {self.lost_exact}"


@pytest.fixture
def make_world() -> Callable[..., World]:
    """``make_world(seed, spec, **faults)``: a world to be run; other arguments in ``options``."""

    def make(seed: int, spec: Spec, options: dict[str, object] | None = None, **faults: object) -> World:
        return World(seed, spec, Faults(**faults), **(options or {}))  # type: ignore[arg-type]

    return make
