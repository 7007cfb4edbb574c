"""Regions without servers: stores that do what the script does, a network that fails, and worlds of regions run from seeds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from random import Random

import pytest

from sluicegate.algorithms import FixedWindow, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.spec import State
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.region_parts import PartStep, PartView
from sluicegate.stores.regional.broker import Broker, Use
from sluicegate.stores.regional.counters import Moving
from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.record import Record, read
from sluicegate.stores.regional.units import part_of
from sluicegate.testing.intervals import Hit, busiest, worst_excess

MS = 1_000
SECOND = 1_000_000
START_US = 1_700_000_000_000_000
NAMES = ("ap", "eu", "us")


def moving_of(spec: Spec) -> Moving:
    """A shared counter of these numbers."""
    return Moving(Counter("all", spec, counter_prefix("default", "all", spec.algorithm, spec.shape)), "*")


@dataclass
class Kept:
    """What a server keeps, and may lose: the record, the counter with its own numbers, and leases as (tokens, end)."""

    record: bytes = b""
    spec: Spec | None = None
    state: State | None = None
    leases: tuple[tuple[int, int], ...] = ()


class Region:
    """The server of one region: one counter that stands by its own numbers, its record, and the life of the server."""

    def __init__(self, plan: Plan, name: str, moving: Moving, clock: Callable[[], int]) -> None:
        self.plan, self.name, self.moving, self.clock = plan, name, moving, clock
        self.kept = Kept()
        self.life = f"{0:016x}"
        self.lives = count(1)
        self.admitted = self.refused = 0
        self.told = (0, 0)

    @property
    def floor(self) -> Spec:
        return self.moving.with_units(self.plan.kept(self.name)).spec

    @property
    def spec(self) -> Spec:
        """By what the counter decides now."""
        return self.kept.spec or self.floor

    def record(self) -> Record | None:
        return read(self.kept.record)

    # -------------------------------------------------------------- the script

    def out(self) -> int:
        now_us = self.clock()
        return sum(tokens for tokens, end_us in self.kept.leases if end_us > now_us)

    def left(self) -> int:
        """Tokens left; what is out of a bucket is not given back by time."""
        kept, now_us = self.kept, self.clock()
        left = self.spec.verdict(kept.state, now_us, 0, True).remaining
        return max(0, min(left, self.spec.capacity - self.out())) if isinstance(self.spec, TokenBucket) else left

    def used(self) -> int:
        """What counts of a window now, more than its limit too."""
        wide = part_of(self.moving.counter.spec, (1 << 6000) - 1)
        assert isinstance(wide, FixedWindow | SlidingWindow)
        return wide.capacity - wide.verdict(self.kept.state, self.clock(), 0, True).remaining

    def admit(self, cost: int) -> bool:
        """An exact charge."""
        kept, now_us = self.kept, self.clock()
        spec, state = self.spec, self.bounded()
        if isinstance(spec, TokenBucket) and self.left() < cost:
            return False
        after = spec.admit(state, now_us, cost)
        if after is None:
            return False
        kept.spec, kept.state = spec, after
        return True

    def bounded(self) -> State | None:
        """The state, in which time does not bring back what is out."""
        state, now_us, out = self.kept.state, self.clock(), self.out()
        if not isinstance(self.spec, TokenBucket) or out == 0:
            return state
        least = now_us * self.spec.tokens + min(out, self.spec.capacity) * self.spec.period_us
        return least if state is None or state < least else state

    def grant(self, tokens: int, hold_us: int) -> int:
        """A lease: tokens that are spent at any time until its end."""
        size = min(tokens, self.left())
        if size and self.admit(size) and isinstance(self.spec, TokenBucket):
            now_us = self.clock()
            live = tuple([lease for lease in self.kept.leases if lease[1] > now_us])
            self.kept.leases = (*live, (size, now_us + hold_us))
        return size

    def do(self, step: PartStep) -> PartView:
        """One step, as ``region.lua`` does it."""
        kept, now_us = self.kept, self.clock()
        self.told = (self.told[0] + step.admitted, self.told[1] + step.refused)
        written = step.record is not None and step.expected == kept.record and step.life == self.life
        differs = kept.spec is not None and kept.spec != step.counter.spec
        spec = step.counter.spec
        if written:
            assert step.record is not None
            if isinstance(spec, TokenBucket):
                left = step.left if kept.spec is None else self.left()
                if differs or kept.spec is None:
                    least = max(0, min(left, spec.capacity - self.out()))
                    used = spec.capacity - least
                    kept.state = now_us * spec.tokens + used * spec.period_us
            self.kept.record, kept.spec = step.record, spec
            differs = False
        bucket = isinstance(spec, TokenBucket)
        used = (self.spec.capacity - self.left()) if bucket else self.used()
        return PartView(
            written, differs, 0 if kept.spec is None else kept.spec.capacity, used, self.left(),
            self.out() if bucket else 0, *self.told, kept.record, now_us, self.life,
        )  # fmt: skip

    # -------------------------------------------------------------- what may happen to it

    def live_anew(self) -> None:
        self.life = f"{next(self.lives):016x}"

    def expire(self) -> None:
        """The counter has recovered and was collected."""
        if self.kept.state is not None and self.left() == self.spec.capacity and not self.out():
            self.kept.spec = self.kept.state = None


@dataclass
class Faults:
    """What may happen in a world. Probabilities are per call; times are mean intervals in microseconds, 0 for never."""

    lost: float = 0.05
    late: float = 0.1
    crash_us: int = 3 * SECOND
    cut_us: int = 4 * SECOND
    restart_us: int = 0
    rollback_us: int = 0
    flush_us: int = 0
    lease: float = 0.2
    skew_us: int = 20 * MS
    flow_per_s: int = 300
    shift_us: int = 4 * SECOND


class Wire:
    """A region's server as one broker sees it: calls are lost before or after they are done, or done much later."""

    def __init__(self, world: World, home: str, region: Region) -> None:
        self.world, self.home, self.region = world, home, region

    def parts(self, steps: Sequence[PartStep]) -> list[PartView | StoreError]:
        world, draw = self.world, self.world.draw
        if frozenset((self.home, self.region.name)) in world.cut or world.now_us < world.away_us.get(
            self.region.name, 0
        ):
            return [StoreError("not reached")] * len(steps)
        views: list[PartView | StoreError] = []
        for step in steps:
            chance = draw.random()
            if chance < world.faults.lost:
                views.append(StoreError("lost before it was done"))
                continue
            if chance < world.faults.late:
                world.later(draw.randrange(3 * SECOND), lambda step=step: self.region.do(step))  # type: ignore[misc]
                views.append(StoreError("no reply in time"))
                continue
            view = self.region.do(step)
            world.check_units()
            views.append(StoreError("the reply was lost") if draw.random() < world.faults.lost else view)
        return views


@dataclass
class World:
    """Regions, two brokers in each, and requests that move from region to region. ``hits``: what was admitted, in order of time."""

    seed: int
    spec: Spec
    plan: Plan = field(default_factory=lambda: Plan(dict.fromkeys(NAMES, 1), Fraction(9, 10)))
    faults: Faults = field(default_factory=Faults)
    length_us: int = 25 * SECOND

    def __post_init__(self) -> None:
        self.draw = Random(f"{self.seed} {self.spec}")
        self.now_us = START_US
        self.events: list[tuple[int, int, Callable[[], object]]] = []
        self.numbers = count()
        self.epochs = count(1)
        self.cut: set[frozenset[str]] = set()
        self.away_us: dict[str, int] = {}
        self.hits: list[Hit] = []
        self.windows: dict[int, int] = {}
        self.moving = moving_of(self.spec)
        skew = {name: self.draw.randrange(-self.faults.skew_us, self.faults.skew_us + 1) for name in NAMES}
        self.regions = {
            name: Region(self.plan, name, self.moving, lambda name=name: self.now_us + skew[name])  # type: ignore[misc]
            for name in NAMES
        }
        self.flow = dict.fromkeys(NAMES, 1)
        self.transfers = 0
        self.brokers = {(name, number): self.broker(name) for name in NAMES for number in range(2)}

    def broker(self, home: str) -> Broker:
        wires = {name: Wire(self, home, region) for name, region in self.regions.items()}
        return Broker(self.plan, home, wires, lambda: f"e{next(self.epochs)}")

    def later(self, delay_us: int, act: Callable[[], object]) -> None:
        heapq.heappush(self.events, (self.now_us + delay_us, next(self.numbers), act))

    def every(self, mean_us: int, act: Callable[[], object]) -> None:
        """``act`` at random times, about this far apart; never where that is 0."""
        if mean_us:

            def again() -> None:
                act()
                self.every(mean_us, act)

            self.later(self.draw.randrange(mean_us * 2) + 1, again)

    # -------------------------------------------------------------- what happens

    def beat(self, key: tuple[str, int]) -> None:
        region = self.regions[key[0]]
        use = Use(self.moving, region.admitted, region.refused)
        region.admitted = region.refused = 0
        broker = self.brokers[key]
        broker.step([use], self.now_us - START_US)
        self.transfers += broker.stats.taken
        broker.stats.taken = 0
        self.check_units()

    def request(self) -> None:
        names = [name for name in NAMES for _ in range(self.flow[name])]
        region = self.regions[self.draw.choice(names)]
        if self.now_us < self.away_us.get(region.name, 0):
            return
        cost = self.draw.choice((1, 1, 1, 2, 3))
        if self.draw.random() < self.faults.lease:
            hold_us = 500 * MS
            size = region.grant(4 * cost, hold_us)
            region.admitted += size
            # A window's lease ends with the window; these are spent at once.
            spread_us = hold_us if isinstance(self.spec, TokenBucket) else 1
            for _ in range(size):
                self.later(self.draw.randrange(spread_us), lambda: self.hits.append((self.now_us, 1)))
            self.count(region, size)
        elif region.admit(cost):
            region.admitted += cost
            self.hits.append((self.now_us, cost))
            self.count(region, cost)
        else:
            region.refused += cost

    def count(self, region: Region, cost: int) -> None:
        """Count an admission in the window of its region's clock."""
        window = region.clock() // self.spec.window_us
        self.windows[window] = self.windows.get(window, 0) + cost

    def shift(self) -> None:
        self.flow = {name: self.draw.choice((0, 1, 8)) for name in NAMES}
        self.flow[self.draw.choice(NAMES)] += 1

    def restart(self, *, rollback: bool) -> None:
        """A server comes back with another life; ``rollback``: without the last second of its writes."""
        region = self.regions[self.draw.choice(NAMES)]
        if rollback:
            region.kept = self.snapshots[region.name]
            self.away_us[region.name] = self.now_us + 1
        region.live_anew()

    def snap(self) -> None:
        """What each server would come back with: its writes of up to a second ago."""
        copies = {
            name: Kept(region.kept.record, region.kept.spec, region.kept.state, region.kept.leases)
            for name, region in self.regions.items()
        }
        self.later(SECOND, lambda: self.snapshots.update(copies))

    def flush(self) -> None:
        self.regions[self.draw.choice(NAMES)].kept = Kept()

    def partition(self) -> None:
        one, other = self.draw.sample(NAMES, 2)
        self.cut ^= {frozenset((one, other))}

    def leave(self) -> None:
        self.away_us[self.draw.choice(NAMES)] = self.now_us + self.draw.randrange(2 * SECOND)

    def crash(self) -> None:
        key = self.draw.choice(sorted(self.brokers))
        self.brokers[key] = self.broker(key[0])

    def run(self) -> World:
        faults, draw = self.faults, self.draw
        self.snapshots = {name: Kept() for name in NAMES}
        for key in self.brokers:
            self.every(250 * MS, lambda key=key: self.beat(key))  # type: ignore[misc]
        self.every(SECOND // faults.flow_per_s, self.request)
        self.every(faults.shift_us, self.shift)
        self.every(faults.cut_us, self.partition)
        self.every(faults.cut_us, self.leave)
        self.every(faults.crash_us, self.crash)
        self.every(200 * MS, self.snap)
        self.every(SECOND, self.regions[draw.choice(NAMES)].expire)
        self.every(faults.restart_us, lambda: self.restart(rollback=False))
        self.every(faults.rollback_us, lambda: self.restart(rollback=True))
        self.every(faults.flush_us, self.flush)
        end_us = START_US + self.length_us
        while self.events and self.events[0][0] < end_us:
            self.now_us, _, act = heapq.heappop(self.events)
            act()
        return self

    # -------------------------------------------------------------- what must hold

    def check_units(self) -> None:
        """At every moment the parts by which the regions decide are no more than the whole, and no unit is held twice."""
        specs = [region.spec for region in self.regions.values()]
        capacity = sum(spec.capacity for spec in specs)
        assert capacity <= self.spec.capacity, (
            f"seed {self.seed}: {capacity} tokens of {self.spec.capacity} at {self.now_us}"
        )
        if isinstance(self.spec, TokenBucket):
            rate = sum(Fraction(spec.tokens, spec.period_us) for spec in specs if isinstance(spec, TokenBucket))
            whole = Fraction(self.spec.tokens, self.spec.period_us)
            assert rate <= whole, f"seed {self.seed}: a rate of {rate} of {whole} at {self.now_us}"
        seen = 0
        for region in self.regions.values():
            record = region.record()
            if record is not None and record.life == region.life:
                assert not record.held & seen, f"seed {self.seed}: units are held twice at {self.now_us}"
                seen |= record.held

    def excess(self) -> str | None:
        """The interval of the merged history that is above the whole's bound; every one is checked. Clocks apart by S make one S longer."""
        spec, limit = self.spec, self.spec.capacity
        apart_us = 2 * self.faults.skew_us
        found: object = None
        if isinstance(spec, TokenBucket):
            if not _fits(self.hits, spec):
                found = worst_excess(self.hits, spec.most_admitted)
        elif isinstance(spec, FixedWindow):
            found = next(((window, count) for window, count in self.windows.items() if count > limit), None)
        else:
            most = limit if isinstance(spec, SlidingWindow) and spec.sub_windows else 2 * limit
            found = max(0, busiest(self.hits, spec.window_us - apart_us) - most) or None
        return None if found is None else f"seed {self.seed}, {spec}: {found}"


def _fits(hits: Sequence[Hit], spec: TokenBucket) -> bool:
    """Whether one bucket of these numbers admits all of this: then no interval holds more than it may."""
    room, before_us = spec.capacity * spec.period_us, 0
    for time_us, cost in hits:
        room = min(spec.capacity * spec.period_us, room + (time_us - before_us) * spec.tokens) - cost * spec.period_us
        before_us = time_us
        if room < 0:
            return False
    return True


@pytest.fixture
def make_world() -> Callable[..., World]:
    """A world of this seed and these numbers, with faults by name."""

    def make(seed: int, spec: Spec, plan: Plan | None = None, **faults: float) -> World:
        settings = {"plan": plan} if plan is not None else {}
        return World(seed, spec, faults=Faults(**faults), **settings)  # type: ignore[arg-type]

    return make
