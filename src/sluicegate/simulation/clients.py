"""Clients with counters of their own, decided exactly: the store's bucket, every gateway's deny cache, and the local share while a master is away.

Only what leaves a gateway is an event. A client's checks are a Poisson process at every gateway, which forgets its past: so the first check after a
refusal has ended comes an exponential time later, and those that were refused meanwhile are one Poisson count. Both are exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeAlias

from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.simulation.draws import Stratum, Zipf, poisson
from sluicegate.simulation.sweep import Sweep
from sluicegate.stores.near.rechecks import HAMMERED, Rechecks, room_us

__all__ = ["Caches", "Client", "Clients", "Counts", "local_share"]


class _Pace(NamedTuple):
    """What a gateway's deny cache knows of a client: its last ``factor``, when the cost should have passed, checks that it has ``turned`` away, and until when."""

    factor: int = 1
    due_us: float = 0.0
    turned: int = 0
    last_us: float = 0.0


_Event: TypeAlias = tuple[float, int, int, float, float, _Pace]
"""(time of a check that its gateway's deny cache does not know, client, gateway, when a refusal is known there, its end by the store's word, its pace)."""

_AWAY_US = 100_000


@dataclass(frozen=True, slots=True)
class Caches:
    """The deny caches of all gateways: the product's ``Rechecks`` decide when a gateway asks again. ``learn_passes``: an admission that leaves less than is
    asked is taken for a refusal of the next check, whose wait is known as well.
    """

    rechecks: Rechecks
    nodes: int
    learn_passes: bool = True

    def stretches(self, spec: TokenBucket) -> bool:
        """Whether refusals of such a counter may last longer than the store said."""
        return self.rechecks.stretch_max_us > 0 and self.nodes > 1 and room_us(spec) > 0

    def pace(
        self, before: _Pace, spec: TokenBucket, wait_us: int, time_us: float, came_us: float, *, passed: bool
    ) -> _Pace:
        """What is known after an answer: as ``Denials`` follows one refusal by another."""
        rechecks = self.rechecks
        if not self.stretches(spec):
            return _Pace()
        due_us = rechecks.due_us(wait_us, int(came_us))
        if not before.last_us or time_us - before.last_us > rechecks.stretch_max_us:
            return _Pace(1, due_us)
        turned = min(before.turned, HAMMERED - 1)
        if time_us < before.last_us and not passed:
            return before._replace(due_us=due_us, turned=turned)
        taken = before.turned >= HAMMERED and rechecks.taken(wait_us, int(time_us), int(before.due_us))
        factor = rechecks.factor(before.factor, self.nodes, passed=passed, taken=taken)
        return _Pace(factor, due_us, turned // 2 if passed else turned)


class Counts:
    """What happened to checks of clients that left their deny cache, each played client counted as many times as it stands for.

    ``asked``: sent to the store, which ``admitted`` or ``refused`` them. ``degraded`` and ``degraded_refused``: decided by the local share.
    """

    __slots__ = ("admitted", "asked", "degraded", "degraded_refused", "refused")

    def __init__(self) -> None:
        self.asked = self.admitted = self.refused = self.degraded = self.degraded_refused = 0.0

    @property
    def checks(self) -> float:
        """All of them."""
        return self.asked + self.degraded + self.degraded_refused


class Client:
    """One client that is played. ``rate``: checks per microsecond at one gateway; ``weight``: how many clients it stands for."""

    __slots__ = ("exact", "master", "offered", "rank", "rate", "shares", "spec", "state", "sweep", "weight")

    def __init__(self, rank: int, rate: float, offered: float, spec: TokenBucket, weight: float, master: int) -> None:
        self.rank = rank
        self.rate = rate
        self.offered = offered
        """Checks per microsecond, all gateways together."""
        self.spec = spec
        self.weight = weight
        self.master = master
        self.state: int | None = None
        self.sweep = Sweep(spec)
        self.exact = 0
        """Tokens that the store let pass."""
        self.shares: dict[int, int] = {}
        """State of the local share by gateway, while the master is away."""

    @property
    def over(self) -> bool:
        """Asks for more than its limit."""
        return self.offered * self.spec.period_us > self.spec.tokens


def local_share(spec: TokenBucket, gateways: int) -> TokenBucket:
    """What one gateway lets pass by itself while the store is away: rate / gateways, and a capacity of at least 1."""
    return TokenBucket(max(1, spec.capacity // gateways), spec.tokens, spec.period_us * gateways)


class Clients:
    """The clients that are played. ``calls[m]`` collects (time, gateway) of clients that stand for themselves; ``others`` how many calls the rest made. ``span``: begin and end of
    the time that is counted, and the length of its parts, in microseconds.
    """

    def __init__(
        self,
        chosen: Sequence[Stratum],
        zipf: Zipf,
        checks_per_us: float,
        gateways: int,
        masters: int,
        tiers: Sequence[tuple[TokenBucket, float]],
        caches: Caches,
        span: tuple[int, int, int],
        affinity: bool,
        draw: Random,
    ) -> None:
        self.gateways = gateways
        self.caches = caches
        self.counts = Counts()
        self.calls: list[list[tuple[float, int]]] = [[] for _ in range(masters)]
        self.others = 0.0
        self.delays: list[float] = [0.0] * masters
        """How long a check is on its way to being decided, by master; below 0 while the master is away."""
        self.begin_us, self.end_us, self.part_us = span
        parts = -(-(self.end_us - self.begin_us) // self.part_us)
        self.refused_here = [0.0] * parts
        """Checks that the deny cache refused in each part of the time that is counted, and those the local share refused."""
        self.refused_degraded = [0.0] * parts
        self.all: list[Client] = []
        self._draw = draw
        self._events: list[_Event] = []
        for stratum in chosen:
            phase = draw.random()
            for place, rank in enumerate(stratum.ranks):
                spec = _tier(tiers, place + phase)
                offered = checks_per_us * zipf.share(rank)
                homes = 1 if affinity else gateways
                client = Client(rank, offered / homes, offered, spec, stratum.weight, draw.randrange(masters))
                self.all.append(client)
                self._begin(len(self.all) - 1, client, homes)
        heapq.heapify(self._events)

    def _begin(self, index: int, client: Client, homes: int) -> None:
        """Who asks for more than its limit has been at it for long: its bucket is empty, and gateways are somewhere in a refusal."""
        draw, spec, caches = self._draw, client.spec, self.caches
        hold_us, factor = 0.0, 1
        if client.over:
            client.state = spec.capacity * spec.period_us - draw.randrange(spec.period_us)
            wait_us = spec.period_us // spec.tokens
            hold_us = caches.rechecks.plain_us(wait_us)
            if homes > 1 and caches.stretches(spec) and client.rate * hold_us > HAMMERED:
                factor = caches.nodes
                hold_us = caches.rechecks.stretched_us(spec, wait_us, factor, draw.randrange(256))
        for gateway in range(self.gateways) if homes > 1 else (draw.randrange(self.gateways),):
            ends_us = draw.random() * hold_us
            if ends_us:
                self._refused(client.rate * ends_us * client.weight, 0.0, ends_us, degraded=False)
            first_us = ends_us + draw.expovariate(client.rate)
            self._events.append(
                (first_us, index, gateway, 0.0, 0.0, _Pace(factor, ends_us, HAMMERED if factor > 1 else 0, ends_us))
            )

    # ------------------------------------------------------------------ playing

    def play(self, until_us: float) -> None:
        """All that happens before ``until_us``."""
        events, clients, delays, caches = self._events, self.all, self.delays, self.caches
        exponential, replace = self._draw.expovariate, heapq.heapreplace
        while events and events[0][0] < until_us:
            time_us, index, gateway, known_us, ends_us, pace = events[0]
            client = clients[index]
            delay_us = delays[client.master]
            far_us = 0.0
            if delay_us < 0.0:
                known_us, ends_us = time_us, self._share(client, gateway, time_us)
            else:
                passed, wait_us = self._ask(client, gateway, time_us, delay_us)
                if wait_us:
                    came_us = time_us + 2 * delay_us
                    if ends_us <= time_us:
                        known_us = came_us
                    pace = caches.pace(pace, client.spec, wait_us, time_us, came_us, passed=passed)
                    ends_us = max(ends_us, time_us + caches.rechecks.plain_us(wait_us))
                    if pace.factor > 1:
                        far_us = time_us + caches.rechecks.stretched_us(client.spec, wait_us, pace.factor, int(time_us))
                    pace = pace._replace(last_us=ends_us)
            next_us = time_us + exponential(client.rate)
            if known_us < next_us < ends_us:
                next_us, pace = self._turned(client, next_us, ends_us, far_us, pace, degraded=delay_us < 0.0)
            replace(events, (next_us, index, gateway, known_us, ends_us, pace))

    def _turned(
        self, client: Client, next_us: float, ends_us: float, far_us: float, pace: _Pace, *, degraded: bool
    ) -> tuple[float, _Pace]:
        """From ``next_us`` on checks are refused at a gateway: the first that is not, and what the deny cache knows then."""
        here = 1 + poisson(self._draw, client.rate * (ends_us - next_us))
        self._refused(here * client.weight, next_us, ends_us, degraded=degraded)
        last_us = ends_us
        if not degraded:
            turned = pace.turned + here
            if turned >= HAMMERED and far_us > ends_us:
                more = poisson(self._draw, client.rate * (far_us - ends_us))
                self._refused(more * client.weight, ends_us, far_us, degraded=False)
                last_us = far_us
            pace = pace._replace(turned=turned, last_us=last_us)
        return last_us + self._draw.expovariate(client.rate), pace

    def _ask(self, client: Client, gateway: int, time_us: float, delay_us: float) -> tuple[bool, int]:
        """One exact check: whether it passed, and how long the next one would wait, 0 where it is not known to be refused."""
        weight, counts = client.weight, self.counts
        counts.asked += weight
        if weight == 1.0:
            self.calls[client.master].append((time_us, gateway))
        else:
            self.others += weight
        at_us = int(time_us + delay_us)
        spec = client.spec
        after = spec.admit(client.state, at_us, 1)
        if after is not None:
            client.state = after
            client.exact += 1
            client.sweep.admitted(max(at_us, client.sweep.last_us), 1)
            counts.admitted += weight
            if not self.caches.learn_passes or spec.admit(after, at_us, 1) is not None:
                return True, 0
        else:
            counts.refused += weight
        return after is not None, spec.verdict(client.state, at_us, 1, admitted=False).retry_after_us or 1

    def _share(self, client: Client, gateway: int, time_us: float) -> float:
        """One check by the local share: when its refusals end, 0 where it passed."""
        share, at_us = local_share(client.spec, self.gateways), int(time_us)
        state = client.shares.get(gateway)
        after = share.admit(state, at_us, 1)
        if after is None:
            self.counts.degraded_refused += client.weight
            wait_us = share.verdict(state, at_us, 1, admitted=False).retry_after_us or 1
            # Not for longer: the master may be back.
            return time_us + min(wait_us, _AWAY_US)
        client.shares[gateway] = after
        client.sweep.admitted(max(at_us, client.sweep.last_us), 1)
        self.counts.degraded += client.weight
        return 0.0

    def _refused(self, checks: float, first_us: float, ends_us: float, *, degraded: bool) -> None:
        """So many checks are refused at the gateway between two times; what lies outside of the time that is counted is not."""
        each = checks / (ends_us - first_us)
        first_us, ends_us = max(first_us, self.begin_us), min(ends_us, self.end_us)
        into = self.refused_here if not degraded else self.refused_degraded
        while first_us < ends_us:
            part = int(first_us - self.begin_us) // self.part_us
            until_us = min(ends_us, self.begin_us + (part + 1) * self.part_us)
            into[part] += each * (until_us - first_us)
            first_us = until_us

    # ------------------------------------------------------------------ what happens to masters

    def of_master(self, master: int) -> dict[int, int | None]:
        """The states that a replica of this master has now, by client."""
        return {index: client.state for index, client in enumerate(self.all) if client.master == master}

    def restore(self, states: dict[int, int | None]) -> None:
        """A replica takes over with these states."""
        for index, state in states.items():
            self.all[index].state = state

    def begin_sweep(self) -> None:
        """Count and compare from now on."""
        self.counts = Counts()
        for client in self.all:
            client.exact = 0
            client.sweep = Sweep(client.spec)


def _tier(tiers: Sequence[tuple[TokenBucket, float]], place: float) -> TokenBucket:
    """The tier of the client at this place: parts of a tier are spread evenly over places, so that a small sample has its part of each."""
    for spec, part in tiers[1:]:
        if int((place + 1) * part) > int(place * part):
            return spec
    return tiers[0][0]
