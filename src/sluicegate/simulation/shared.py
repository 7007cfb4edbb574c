"""Counters that all gateways share: the real protocol of leases on both sides, ``Leases`` in every gateway and ``Leased`` at the store.

Of a gateway's checks in one tick the number is drawn, and they are spent one after the other at one moment of it; so times are right to a tick. Messages
take their time, and every gateway's clock runs wrong by as much as the terms allow.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from sluicegate.algorithms.leasing import Leased, LeasedState, LeaseGrant, Turn
from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.spec import OnChange, State
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.bounds import LEASE_ITEMS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import StoreError
from sluicegate.simulation.clients import local_share
from sluicegate.simulation.sweep import Sweep
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.near.counter import LeasedCounter
from sluicegate.stores.near.heat import Heat
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings

__all__ = ["Gateway", "Offer", "SharedCounter", "SharedStore", "per_second"]

_MILLION = 1_000_000
_FIRST_LIFE = "life0000"


class SharedCounter:
    """One counter at its store. Admissions and refusals are counted, and every interval of the admissions is looked at."""

    def __init__(self, name: str, spec: TokenBucket, master: int, precision: Precision = Precision.LEASED) -> None:
        self.counter = Counter(name, spec, f"{name}:", precision=precision)
        self.master = master
        self.state: LeasedState | State | None = None
        self.leased = Leased(spec)
        self.sweep = Sweep(spec)
        self.since_us = 0
        """Since when it is asked, of the time that is counted."""
        self.history: list[tuple[int, int]] = []
        """Admissions (time, tokens) since ``watch``."""
        self._watched = False
        self._shares: dict[int, State] = {}
        self._pending: list[tuple[int, int]] = []
        self._last_us = 0
        self.begin_counting()

    def begin_counting(self) -> None:
        """Count, and compare intervals, from now on. ``local``: refused in the gateway; ``asked``: decided by the store; ``leased``: passed by tokens held."""
        self.sweep = Sweep(self.spec)
        self.offered = self.leased_passed = self.local = self.asked = self.asked_passed = self.degraded = 0
        self.lease_asks = self.share_passed = 0

    def watch(self) -> None:
        """Keep the history from now on."""
        self._watched = True

    @property
    def spec(self) -> TokenBucket:
        """The numbers in force at the store."""
        spec = self.leased.spec
        assert isinstance(spec, TokenBucket)
        return spec

    def turn(self, turn: Turn, counter: Counter, at_us: int) -> LeaseGrant:
        """One holder's step. ``counter`` may have other numbers than those in force: then they are in force from now on."""
        self.lease_asks += 1
        now_us = self._now(at_us)
        spec = counter.spec
        if spec != self.leased.spec:
            after = Leased(spec)
            if isinstance(self.state, LeasedState):
                self.state = after.carry(self.leased, self.state, now_us, OnChange.KEEP)
            self.leased = after
        self.state, grant = self.leased.turn(self.state, now_us, turn)
        return grant

    def exact(self, tokens: int, at_us: int) -> int:
        """So many checks of one token at the store, one after the other: how many pass."""
        decides = self.leased if isinstance(self.state, LeasedState) else self.leased.spec
        self.state, passed = _as_many(decides, self.state, tokens, self._now(at_us))
        return passed

    def decided(self, offer: Offer, gateway: Gateway, time_us: float, delay_us: float, gateways: int) -> None:
        """Count one gateway's checks, and have the store decide those it is asked about; where it is away, the gateway's share does."""
        self.offered += offer.passed + offer.refused + offer.exact
        self.leased_passed += offer.passed
        self.local += offer.refused
        pending = self._pending
        if offer.passed:
            heapq.heappush(pending, (int(time_us), offer.passed))
        if not offer.exact:
            return
        if delay_us < 0.0:
            passed = self._by_share(gateway.number, offer.exact, int(time_us), gateways)
            self.degraded += offer.exact
            self.share_passed += passed
            heapq.heappush(pending, (int(time_us), passed))
            return
        passed = self.exact(offer.exact, int(time_us + delay_us))
        self.asked += offer.exact
        self.asked_passed += passed
        if passed < offer.exact and offer.found is not None:
            refused = (
                self.leased.verdict(self.state, self._last_us, 1, admitted=False)
                if isinstance(self.state, LeasedState)
                else None
            )
            wait_us = refused.retry_after_us if refused else None
            if wait_us:
                offer.found.denied(1, wait_us, gateway.clock_us(time_us + 2 * delay_us))
        heapq.heappush(pending, (self._last_us, passed))

    def _by_share(self, gateway: int, checks: int, at_us: int, gateways: int) -> int:
        share, state = local_share(self.spec, gateways), self._shares.get(gateway)
        state, passed = _as_many(share, state, checks, at_us)
        if passed:
            self._shares[gateway] = state
        return passed

    def settle(self, until_us: int) -> int:
        """Compare what passed before ``until_us``, in its order; returns how much that was."""
        passed = 0
        while self._pending and self._pending[0][0] < until_us:
            time_us, tokens = heapq.heappop(self._pending)
            self.sweep.admitted(max(time_us, self.sweep.last_us), tokens)
            passed += tokens
            if self._watched:
                self.history.append((time_us, tokens))
        return passed

    def _now(self, at_us: int) -> int:
        self._last_us = max(self._last_us, at_us)
        return self._last_us


class Offer(NamedTuple):
    """What became of one gateway's checks of one counter in one tick. ``exact``: what the store must be asked. ``found``: the counter's leases there, if it is leased."""

    passed: int
    refused: int
    exact: int
    found: LeasedCounter | None

    @property
    def low(self) -> bool:
        """Tokens should be asked for at once."""
        return self.found is not None and self.found.low


class Gateway:
    """One process: its leases, and its own clock, which is ``ppm`` fast."""

    def __init__(self, number: int, gateways: int, settings: NearSettings, draw: Random) -> None:
        self.number = number
        self.leases = Leases(settings, draw.random)
        self.leases.nodes = gateways
        self.ppm = draw.randint(-settings.terms.drift_ppm, settings.terms.drift_ppm)
        self.origin_us = draw.randrange(10**9)
        self.heat = Heat(settings, self.clock_us(0))
        self.promoted_us = 0.0
        """When the first counter was found hot; 0 for not yet."""
        self.counters: dict[str, Counter] = {}
        """What this gateway was told of each counter."""

    def clock_us(self, time_us: float) -> int:
        """What its clock says."""
        return self.origin_us + int(time_us) * (_MILLION + self.ppm) // _MILLION

    def offer(self, name: str, checks: int, time_us: float) -> Offer:
        """Let so many checks pass as leases allow; the others are refused here, or are the store's to decide."""
        now_us = self.clock_us(time_us)
        found = self.leases.find(self.counters[name], "*", now_us)
        if found is None:
            return Offer(0, 0, checks, None)
        passed = min(found.left(now_us), checks)
        if passed and not found.take(passed, now_us):
            passed = 0
        exact = 0
        for _ in range(checks - passed):
            if found.take(1, now_us):
                passed += 1
            elif found.waits_us(1, now_us) is None:
                exact += 1
        return Offer(passed, checks - passed - exact, exact, found)

    def heated(self, counter: SharedCounter, exact: int, time_us: float) -> None:
        """The store was asked so often for a counter that is leased only while it is hot."""
        now_us = self.clock_us(time_us)
        key, heat = counter.counter.prefix + "*", self.heat
        risen = sum([heat.saw(key, now_us) for _ in range(exact)]) > 0
        if now_us >= heat.due_us:
            risen = bool(heat.step(now_us)[0]) or risen
        if risen:
            self.leases.promote(counter.counter, "*", now_us)
            self.promoted_us = self.promoted_us or time_us

    def told(self, counter: Counter, time_us: float) -> None:
        """The counter has other numbers from now on."""
        self.counters[counter.name] = counter
        self.leases.find(counter, "*", self.clock_us(time_us))


class _Message(NamedTuple):
    """An answer on its way to a gateway."""

    time_us: float
    order: int
    gateway: Gateway
    items: Sequence[LeaseItem]
    grants: Sequence[LeaseGrant | StoreError]


class SharedStore:
    """The shared counters of all masters, and the messages between them and gateways."""

    def __init__(self, counters: Sequence[SharedCounter], gateways: Sequence[Gateway], settings: NearSettings) -> None:
        self.counters = {one.counter.name: one for one in counters}
        for gateway in gateways:
            gateway.counters = {one.counter.name: one.counter for one in counters}
        self.lives: dict[int, str] = {}
        self.lease_calls: dict[int, list[tuple[float, int]]] = {}
        """Steps since they were last taken out, by master: (time, counters)."""
        self.items = 0
        self._settings = settings
        self._messages: list[_Message] = []
        self._order = 0

    def step(self, gateway: Gateway, time_us: float, delays: Sequence[float], deadline_us: float) -> None:
        """One gateway asks what it has to ask. ``delays``: the time on the way by master, below 0 where it is away."""
        items = gateway.leases.step(gateway.clock_us(time_us))
        by_master: dict[int, list[LeaseItem]] = {}
        for item in items:
            by_master.setdefault(self.counters[item.counter.name].master, []).append(item)
        for master, asked in by_master.items():
            delay_us = delays[master]
            grants: list[LeaseGrant | StoreError] = []
            if delay_us < 0.0:
                grants = [StoreError("away") for _ in asked]
                self._send(time_us + deadline_us, gateway, asked, grants)
                continue
            for first in range(0, len(asked), LEASE_ITEMS_MAX):
                part = asked[first : first + LEASE_ITEMS_MAX]
                self.lease_calls.setdefault(master, []).append((time_us, len(part)))
                self.items += len(part)
            grants += [self._turn(gateway, item, master, time_us + delay_us) for item in asked]
            self._send(time_us + 2 * delay_us, gateway, asked, grants)

    def _turn(self, gateway: Gateway, item: LeaseItem, master: int, at_us: float) -> LeaseGrant:
        turn = Turn(gateway.leases.holder, item.ask, self._settings.terms.hold_us, self.lives.get(master, _FIRST_LIFE))
        return self.counters[item.counter.name].turn(turn, item.counter, int(at_us))

    def _send(
        self,
        time_us: float,
        gateway: Gateway,
        items: Sequence[LeaseItem],
        grants: Sequence[LeaseGrant | StoreError],
    ) -> None:
        self._order += 1
        heapq.heappush(self._messages, _Message(time_us, self._order, gateway, items, grants))

    def deliver(self, until_us: float) -> None:
        """Answers that have come by then."""
        while self._messages and self._messages[0].time_us <= until_us:
            found = heapq.heappop(self._messages)
            found.gateway.leases.answered(found.items, found.grants, found.gateway.clock_us(found.time_us))

    def replaced(self, master: int, states: dict[str, LeasedState | State | None]) -> None:
        """A replica serves with these states, in a new life."""
        self.lives[master] = f"life{len(self.lives) + 1:04d}"
        for name, state in states.items():
            self.counters[name].state = state

    def states_of(self, master: int) -> dict[str, LeasedState | State | None]:
        """What a replica of this master has now."""
        return {name: one.state for name, one in self.counters.items() if one.master == master}


def per_second(tokens: float) -> TokenBucket:
    """So many per second, rounded, at least 1; and half of that at once, or leases would not serve it."""
    whole = max(1, round(tokens))
    return TokenBucket(max(1, whole // 2), whole, US_PER_S)


def _as_many(spec: Any, state: Any, tokens: int, now_us: int) -> tuple[Any, int]:
    """So many charges of one token, one after the other: the state after those that fit, and how many they are."""
    passed, step = 0, tokens
    while step:
        after = spec.admit(state, now_us, step) if passed + step <= tokens else None
        if after is None:
            step //= 2
        else:
            state = after
            passed += step
    return state, passed
