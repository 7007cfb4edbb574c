"""Whatever the deny cache refuses, the store would have refused at that moment: held against every algorithm, by wrong clocks."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from small_specs import SPECS

from sluicegate.algorithms import Spec
from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near.denials import Denials

PPM = st.sampled_from((-10_000, -7, 0, 10_000))
"""By how much a clock runs fast or slow: the most there is, in both directions, is what finds the faults."""

KEY = "default:api:x:-:0:ip:1"
TRUSTED_FOR_EVER_US = 1 << 60


@dataclass(frozen=True)
class Step:
    """Some time, then a request of one of two processes; the answer of the first is on its way for a while, and so is the question."""

    pause: int
    cost: int
    here: bool
    there_us: int
    back_us: int


STEPS = st.lists(
    st.builds(Step, st.integers(0, 300), st.integers(1, 9), st.booleans(), st.integers(0, 900), st.integers(0, 900)),
    min_size=4,
    max_size=60,
)


class World:
    """True time, and two clocks that are wrong by so many millionths."""

    def __init__(self, store_ppm: int, node_ppm: int) -> None:
        self.clock = ManualClock()
        self._origin_us = self.clock.now_us()
        self._true_us = 0
        self._store_ppm = store_ppm
        self._node_ppm = node_ppm

    def pass_us(self, delta_us: int) -> None:
        """Let true time pass."""
        self._true_us += delta_us
        due_us = self._origin_us + self._true_us * (1_000_000 + self._store_ppm) // 1_000_000
        self.clock.advance(due_us - self.clock.now_us())

    @property
    def node_us(self) -> int:
        """What the process reads."""
        return self._true_us * (1_000_000 + self._node_ppm) // 1_000_000


@settings(max_examples=1_500)
@given(SPECS, STEPS, PPM, PPM, st.integers(1, 3))
def test_what_is_refused_here_is_refused_by_the_store(
    spec: Spec, steps: list[Step], store_ppm: int, node_ppm: int, scale: int
) -> None:
    """A local refusal of any algorithm and cost agrees with the store, while others charge the same counter and all clocks are wrong by a hundredth."""
    world = World(store_ppm, node_ppm)
    store = MemoryStore(world.clock)
    denials = Denials(10, TRUSTED_FOR_EVER_US, LeaseTerms(drift_ppm=10_000))
    counter = Counter("api", spec, "default:api:x:-:0:")
    for step in steps:
        # Hundredths of the window, so that most pauses end shortly before or after something comes back.
        world.pass_us(step.pause * scale * max(spec.window_us // 300, 1))
        cost = min(step.cost, spec.capacity)
        charge = ((counter, "ip:1", cost),)
        if not step.here:
            store.decide_one(charge)
            continue
        wait_us = denials.refuses(KEY, spec, cost, world.node_us)
        if wait_us is not None:
            assert wait_us >= 1
            assert not store.decide_one(charge, peek=True).admitted
            continue
        sent_us, epoch = world.node_us, denials.epoch
        world.pass_us(step.there_us)
        (verdict,) = store.decide_one(charge).verdicts()
        world.pass_us(step.back_us)
        if verdict.retry_after_us:
            denials.learn(KEY, spec, cost, verdict.retry_after_us, sent_us, epoch, world.node_us)


@settings(max_examples=300)
@given(SPECS, st.integers(1, 9), st.integers(0, 9))
def test_a_refusal_is_repeated_until_just_before_the_cost_passes(spec: Spec, cost: int, charged: int) -> None:
    """By right clocks the store is asked again at most two hundredths before it would admit, so the cache is worth having."""
    clock = ManualClock()
    store = MemoryStore(clock)
    counter = Counter("api", spec, "default:api:x:-:0:")
    cost = min(cost, spec.capacity)
    for _ in range(charged):
        store.decide_one(((counter, "ip:1", 1),))
    (verdict,) = store.decide_one(((counter, "ip:1", cost),), peek=True).verdicts()
    wait_us = verdict.retry_after_us
    if not wait_us:
        return
    denials = Denials(10, TRUSTED_FOR_EVER_US, LeaseTerms(drift_ppm=10_000))
    denials.learn(KEY, spec, cost, wait_us, 0, 0, 0)
    last_us = wait_us * 98 // 100 - 1
    if last_us >= 0:
        assert denials.refuses(KEY, spec, cost, last_us) == wait_us - last_us
    assert denials.refuses(KEY, spec, cost, wait_us) is None
