"""What all connections of one gateway share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Protocol

from sluicegate.clock import US_PER_S, Clock
from sluicegate.doors.connections import Connections
from sluicegate.doors.gateway.forward import Forwarder
from sluicegate.doors.gateway.names import Names, request_names, response_names
from sluicegate.doors.gateway.pool import Pool
from sluicegate.doors.gateway.settings import Settings
from sluicegate.doors.gateway.stats import Stats
from sluicegate.doors.gateway.target import Target
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.refusals import Refusals
from sluicegate.doors.tracing import Tracer
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.engine import Engine
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.resolver import IdentityResolver

__all__ = ["Context", "Decider"]


class Decider(Protocol):
    """The part of a limiter that the gateway uses."""

    @property
    def resolver(self) -> IdentityResolver:
        """By the rules in force; another object when they change."""
        ...

    @property
    def engine(self) -> Engine:
        """The compiled rules in force."""
        ...

    @property
    def waits(self) -> bool:
        """Whether decisions may take time, so that they are to be submitted."""
        ...

    def check(self, facts: Facts, cost: int = 1) -> Decision: ...

    def submit(self, facts: Facts, done: Callable[[Decision], None]) -> None:
        """``check`` by callback; ``done`` may be called before this returns."""
        ...


class Context:
    """Shared by the connections of one gateway; used on the loop's thread only."""

    def __init__(
        self,
        limiter: Decider,
        upstreams: Sequence[str],
        headers: RateHeaders,
        settings: Settings,
        clock: Clock,
        refusals: Refusals | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.tracer = tracer
        self.limiter = limiter
        self.refusals = refusals or Refusals(limiter)
        self.headers = headers
        self.settings = settings
        self.clock = clock
        self.stats = Stats()
        self.clients = Connections(on_tick=self._tick, more=self._upstreams_in_use)
        self.pool = Pool([Target.parse(url) for url in upstreams], settings, self.stats, self.clients)
        self.forwarder = Forwarder(settings)
        self.response_names = response_names(headers.names)
        self.exposed = headers.exposed.encode("ascii")
        self.resolver = limiter.resolver
        self.request_names = self._names_of(self.resolver)
        self._date_s = 0
        self._date_line = b""

    def follow_rules(self) -> IdentityResolver:
        """The resolver in force; what depends on it is made anew when the rules have changed."""
        resolver = self.limiter.resolver
        if resolver is not self.resolver:
            self.resolver = resolver
            self.request_names = self._names_of(resolver)
        return resolver

    def date_line(self) -> bytes:
        """A ``Date`` field for an answer of our own."""
        now_s = self.clock.now_us() // US_PER_S
        if now_s != self._date_s:
            self._date_s = now_s
            self._date_line = f"Date: {formatdate(now_s, usegmt=True)}\r\n".encode("ascii")
        return self._date_line

    def crashed(self, error: BaseException, close: Callable[[], None]) -> None:
        """A fault of ours in a callback: one connection is lost, it is counted and reported, and nothing else happens."""
        self.stats.internal_errors += 1
        asyncio.get_running_loop().call_exception_handler({"message": "gateway connection failed", "exception": error})
        close()

    def _tick(self) -> None:
        self.pool.expire(self.clients.now_s)

    def _upstreams_in_use(self) -> bool:
        # Connections are kept beyond the last client, and they have to be given up too when nobody comes.
        return self.pool.in_use

    @staticmethod
    def _names_of(resolver: IdentityResolver) -> Names:
        config = resolver.config
        return request_names([name.encode() for name in sorted(config.identity_headers | config.forwarding_headers)])
