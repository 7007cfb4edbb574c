"""The decision API as one object that the application composes."""

from __future__ import annotations

from collections.abc import Callable

from sluicegate.clock import Clock
from sluicegate.doors.connections import Connections
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.api import DecisionApi, Scrape
from sluicegate.doors.http.protocol import HttpProtocol
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.http.site import Site
from sluicegate.doors.http.stats import HttpStats
from sluicegate.limiter.limiter import Limiter

__all__ = ["HttpDoor"]


class HttpDoor:
    """``open_listener(address, door.protocol_factory)`` serves it; ``await door.connections.drain(s)`` ends it.

    ``health_only`` leaves out what asks for the API token: all of ``/v1``. ``stats`` and ``connections`` are for the metrics exporter. See ``DecisionApi`` for ``ready``, ``metrics`` and ``scrape``.
    ``health_only``: serve liveness, readiness and metrics, and no decisions.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        clock: Clock,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        metrics: Callable[[], tuple[str, bytes]],
        scrape: Scrape | None = None,
        headers: RateHeaders | None = None,
        settings: HttpSettings | None = None,
        namespace: str = "default",
        health_only: bool = False,
    ) -> None:
        self.stats = HttpStats()
        self.settings = settings or HttpSettings()
        api = DecisionApi(
            limiter,
            headers or RateHeaders(),
            self.stats,
            clock,
            ready=ready,
            metrics=metrics,
            scrape=scrape,
            namespace=namespace,
        )
        routes = {path: route for path, route in api.routes().items() if not (health_only and route.guarded)}
        self._site = Site(routes, self.settings, clock, self.stats)

    @property
    def connections(self) -> Connections:
        """The live connections."""
        return self._site.connections

    def protocol_factory(self) -> HttpProtocol:
        """A protocol for one new connection."""
        return HttpProtocol(self._site)
