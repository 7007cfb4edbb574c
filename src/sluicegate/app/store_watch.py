"""The store as one server process sees it: connected at start, told each second that the process lives, and how it is.

A store that many processes share may be absent, at start and later. That stops no server: the failure policies of the rules
decide meanwhile, the log says so once, and once more when it is over, and ``/readyz`` and ``/metrics`` show it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sluicegate.app import logs
from sluicegate.app.region_watch import RegionWatch
from sluicegate.clock import US_PER_S, Clock
from sluicegate.doors.durations import Durations
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.base import FleetStore, ServerHealth
from sluicegate.stores.regional.store import RegionalStore

__all__ = ["StoreWatch", "address_of"]

_BEAT_S: Final = 1.0
"""Seconds between two heartbeats, and two looks at how the store is."""

_LOOK_S: Final = 1.0
"""Seconds that such a look may take."""

_LOOKS: Final = 2
"""Looks in a row that must find leases failing before it is told: an exchange that was late once is no news."""


class StoreWatch:
    """``address``: where the store is, without its secrets. A store inside the process is always well."""

    def __init__(self, limiter: Limiter, url: str, clock: Clock) -> None:
        self.address = address_of(url)
        self._limiter = limiter
        self._fleet = limiter.store if isinstance(limiter.store, FleetStore) else None
        self._regions = RegionWatch(limiter.store.status) if isinstance(limiter.store, RegionalStore) else None
        self._clock = clock
        self.latency = Durations(clock)
        """Of the heartbeat that the store is told each second, to its answer or the end of its deadline."""
        self._down: dict[str, ServerHealth] = {}
        self._failing = False
        """The last look found that calls fail although no server is down."""
        self._told_failing = False
        self._leases_failing = 0
        """Looks in a row that found that the exchanges of leases fail."""

    async def warm(self) -> None:
        """Connect and make ready, within a second, so that the first request need not."""
        if not self._limiter.waits:
            return
        if await self._limiter.awarm():
            logs.event(logging.INFO, "store_ready", store=self.address)
        else:
            self._down = {server.address: server for server in self.servers() if server.state == "down"}
            errors = [server.error for server in self.servers() if server.error is not None]
            error = errors[0] if errors else None
            logs.event(logging.WARNING, "store_absent", store=self.address, error=error)

    async def keep_watching(self) -> None:
        """Beat and look, for as long as the process serves; where calls fail, or a server says they would, also whether the store decides."""
        while self._fleet is not None:
            try:
                began_us = self._clock.monotonic_us()
                await self._fleet.abeat()
                self.latency.add(began_us)
                # A store with a long deadline must not keep the next beat waiting.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._limiter.alook(suspect=any(server.state == "failing" for server in self.servers()))
            except Exception:  # noqa: BLE001
                # A fault of ours must not end the watch; without beats the others only count one process less.
                logs.LOGGER.exception("store_watch_failed")
            self._look()
            await asyncio.sleep(_BEAT_S)

    def servers(self) -> Sequence[ServerHealth]:
        """How each server of the store is; none for a store inside the process."""
        return () if self._fleet is None else self._fleet.health()

    @property
    def nodes(self) -> int | None:
        """How many processes were seen to use the store lately; None for a store inside the process."""
        return None if self._fleet is None else self._fleet.nodes

    def detail(self) -> dict[str, Any]:
        """What ``/readyz`` says of the store."""
        detail: dict[str, Any] = {"store": self.address}
        if self._fleet is not None:
            servers = self.servers()
            since_us = [server.since_us for server in servers if server.state in ("down", "failing")]
            if self._limiter.failing_since_us is not None:
                since_us.append(self._limiter.failing_since_us)
            detail["degraded_since"] = self._time(min(since_us)) if since_us else None
            detail["degraded_error"] = self._limiter.failing_error
            detail["nodes"] = self._fleet.nodes
            detail["servers"] = [
                {
                    "address": server.address,
                    "state": server.state,
                    "since": self._time(server.since_us),
                    "error": server.error,
                }
                for server in servers
            ]
        if self._regions is not None:
            detail |= self._regions.detail(lambda ago_us: self._time(self._clock.monotonic_us() - ago_us))
        return detail

    def _look(self) -> None:
        """Log what has changed since the last look."""
        down = {server.address: server for server in self.servers() if server.state == "down"}
        for address in down.keys() - self._down.keys():
            logs.event(logging.WARNING, "store_down", server=address, error=down[address].error)
        for address in self._down.keys() - down.keys():
            logs.event(logging.INFO, "store_up", server=address)
        self._down = down
        self._look_at_calls(self._limiter.failing_error if not down else None)
        near = self._limiter.near
        self._look_at_leases(None if near is None or down else near.failure)
        if self._regions is not None:
            self._regions.look()

    def _look_at_calls(self, error: str | None) -> None:
        """Log that servers answer and decide nothing all the same: another key secret, a right that is missing."""
        if error is not None and self._failing and not self._told_failing:
            # At two looks in a row: a call that was late once is no news.
            logs.event(logging.WARNING, "store_failing", store=self.address, error=error)
            self._told_failing = True
        elif error is None and self._told_failing:
            logs.event(logging.INFO, "store_answers", store=self.address)
            self._told_failing = False
        self._failing = error is not None

    def _look_at_leases(self, error: str | None) -> None:
        """Log that the store decides and grants no leases: a right that is missing."""
        if error is not None:
            self._leases_failing += 1
            if self._leases_failing == _LOOKS:
                logs.event(logging.WARNING, "leases_failing", store=self.address, error=error)
        else:
            if self._leases_failing >= _LOOKS:
                logs.event(logging.INFO, "leases_answer", store=self.address)
            self._leases_failing = 0

    def _time(self, since_us: int) -> str:
        """The wall time of a monotonic one, to the second."""
        wall_us = self._clock.now_us() - max(0, self._clock.monotonic_us() - since_us)
        return datetime.fromtimestamp(wall_us // US_PER_S, UTC).isoformat().replace("+00:00", "Z")


def address_of(url: str) -> str:
    """A store's URL without what must not be shown: user and password, and the parameters of a store over a network."""
    scheme, separator, rest = url.partition("://")
    if scheme.lower() == "memory":
        return url
    # A password may hold any character that somebody forgot to escape, so all up to the last "@" goes, wherever it stands.
    return f"{scheme}{separator}{rest.partition('?')[0].partition('#')[0].rpartition('@')[2]}"
