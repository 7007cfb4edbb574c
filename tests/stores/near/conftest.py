"""A store over no network in front of which a near store can stand, and near stores on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sluicegate.algorithms import Precision, Spec, TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.stores.base import Answer, Counter, Done, Receipt, Request, Single
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near import NearSettings, NearStore
from sluicegate.testing import LeasingStore


class ModelStore(LeasingStore):
    """A memory store with the type of one over a network. ``asked``: the requests it was asked to decide, peeks left out.

    ``flaky.down`` and the like make it fail; ``meanwhile`` is called before each decision, as if it took time.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryStore(clock))
        self.asked: list[Request] = []
        self.refunded: list[Receipt] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        self._note([request], peek=peek)
        return super().decide_one(request, peek=peek)

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        self._note(requests, peek=peek)
        return super().decide(requests, peek=peek)

    def decide_singles(self, charges: Sequence, *, peek: bool = False) -> tuple[int, list[Single]]:
        self._note([(charge,) for charge in charges], peek=peek)
        return super().decide_singles(charges, peek=peek)

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        self._note([request], peek=peek)
        super().submit(request, done, peek=peek)

    async def adecide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        self._note(requests, peek=peek)
        return await super().adecide(requests, peek=peek)

    def refund(self, receipts: Sequence[Receipt]) -> int:
        self.refunded += receipts
        return super().refund(receipts)

    async def arefund(self, receipts: Sequence[Receipt]) -> int:
        self.refunded += receipts
        return await super().arefund(receipts)

    def _note(self, requests: Sequence[Request], *, peek: bool) -> None:
        if not peek:
            self.asked += [list(request) for request in requests]
            self.meanwhile()


class Bench:
    """A clock, a model store and near stores in front of it, whose leases are kept by ``keep``, not by threads."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.model = ModelStore(self.clock)
        self.nears: list[NearStore] = []

    def near(self, settings: NearSettings | None = None) -> NearStore:
        """One more process."""
        near = NearStore(self.model, settings or NearSettings(), self.clock, keep=False)
        self.nears.append(near)
        return near

    def pass_us(self, delta_us: int) -> None:
        """Let time pass in steps of 10 ms, in which every process sends what its leases have to say."""
        while delta_us > 0:
            step_us = min(delta_us, 10_000)
            self.clock.advance(step_us)
            delta_us -= step_us
            for near in self.nears:
                near.step()

    def supply(self, near: NearStore, counter: Counter, subject: str = "*", tokens: int = 10) -> None:
        """Ask until ``near`` holds ``tokens`` of a counter."""
        for _ in range(2_000):
            leased = near.front.leases.find(counter, subject, near.now_us())
            assert leased is not None, "not leasable"
            if leased.left(near.now_us()) >= tokens:
                return
            near.decide_one([(counter, subject, max(tokens // 10, 1))])
            self.pass_us(10_000)
        raise AssertionError("no lease was granted")


@pytest.fixture
def bench() -> Bench:
    """One of them."""
    return Bench()


@pytest.fixture
def counter_of() -> Callable[..., Counter]:
    """``counter_of(name, spec, precision, ...)``: a counter as an engine makes it."""

    def make(
        name: str = "rule",
        spec: Spec | None = None,
        precision: Precision = Precision.EXACT,
        *,
        shadow: bool = False,
        denied_counts: bool = False,
    ) -> Counter:
        spec = spec or TokenBucket(100, 100, 60 * US_PER_S)
        prefix = counter_prefix("near", name, spec.algorithm, spec.shape)
        return Counter(name, spec, prefix, shadow, denied_counts, precision=precision)

    return make
