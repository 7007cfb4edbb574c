"""The decision API as one object that the application composes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from sluicegate.clock import Clock
from sluicegate.doors.connections import Connections
from sluicegate.doors.durations import Durations, sampled, sampled_later
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.api import DecisionApi
from sluicegate.doors.http.peers import Peers
from sluicegate.doors.http.protocol import HttpProtocol
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.http.site import Route, Site
from sluicegate.doors.http.stats import HttpStats
from sluicegate.doors.refusals import Refusals
from sluicegate.doors.tracing import Tracer
from sluicegate.limiter.limiter import Limiter

__all__ = ["HttpDoor"]


class HttpDoor:
    """``open_listener(address, door.protocol_factory)`` serves it; ``await door.connections.drain(s)`` ends it.

    ``stats`` and ``connections`` are for the metrics exporter. See ``DecisionApi`` for the other arguments.
    ``health_only``: serve liveness, readiness and metrics, and nothing that asks for the API token: what decides. ``paths``: those to
    serve; None: all. ``tracer``: makes spans of requests whose callers are sampled; None: there are none.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        clock: Clock,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        metrics: Callable[[], tuple[str, bytes]],
        peers: Peers | None = None,
        headers: RateHeaders | None = None,
        settings: HttpSettings | None = None,
        refusals: Refusals | None = None,
        nginx_deny_status: int = 403,
        ruleset: Callable[[], bytes] | None = None,
        namespace: str = "default",
        health_only: bool = False,
        paths: Container[str] | None = None,
        tracer: Tracer | None = None,
        open_metrics: Callable[[], tuple[str, bytes]] | None = None,
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
            open_metrics=open_metrics,
            peers=peers,
            refusals=refusals,
            nginx_deny_status=nginx_deny_status,
            ruleset=ruleset,
            namespace=namespace,
            operated=self.settings.api_token is not None,
        )
        routes = {
            path: route
            for path, route in api.routes().items()
            if not (health_only and route.guarded) and (paths is None or path in paths)
        }
        self.durations = Durations(clock)
        """Of a sample of the requests to ``/v1/check``, from their last byte to their answer."""
        check = routes.get("/v1/check")
        if check is not None:
            routes[check.path] = replace(
                check,
                handlers={method: sampled(each, self.durations) for method, each in check.handlers.items()},
                later={method: sampled_later(each, self.durations) for method, each in check.later.items()},
            )
        self._site = Site(routes, self.settings, clock, self.stats, tracer, self.durations)

    @property
    def routes(self) -> Mapping[str, Route]:
        """What is served, by path."""
        return self._site.routes

    @property
    def connections(self) -> Connections:
        """The live connections."""
        return self._site.connections

    def protocol_factory(self) -> HttpProtocol:
        """A protocol for one new connection."""
        return HttpProtocol(self._site)
