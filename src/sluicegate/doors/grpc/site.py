"""What all connections of one gRPC door share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sluicegate.doors.connections import Connections
from sluicegate.doors.grpc.calls import UNIMPLEMENTED, Call, Route
from sluicegate.doors.grpc.heads import HeadReader
from sluicegate.doors.grpc.service import HEALTH_SERVICE
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.grpc.stats import OTHER_METHOD, GrpcStats
from sluicegate.doors.grpc.watches import Watches
from sluicegate.doors.tracing import Tracer

__all__ = ["GrpcSite"]

_GOLDEN: Final = 0.618_033_988_749_895
"""Multiples of it, without their whole part, are spread evenly however many there are."""


class GrpcSite:
    """Routes, settings, counts, the registry of connections and who watches the health. ``health``: see ``Watches``."""

    def __init__(
        self,
        routes: Mapping[bytes, Route],
        settings: GrpcSettings,
        stats: GrpcStats,
        health: Callable[[str], int],
        tracer: Tracer | None = None,
    ) -> None:
        self.watches = Watches(health)
        watch = Route("Watch", self.watches.begin, stats.calls["Watch"], guarded=False)
        self.routes = routes = {**routes, f"/{HEALTH_SERVICE}/Watch".encode(): watch}
        self.settings = settings
        self.stats = stats
        other = Route(OTHER_METHOD, _no_such_method, stats.calls[OTHER_METHOD], guarded=False)
        self.heads = HeadReader(routes, other, settings.token, tracer)
        self.connections = Connections(interval_s=settings.sweep_s, on_tick=self.watches.look)

    def age_s(self) -> float:
        """How long the connection that was added last may live: ``settings.age_s``, a tenth more or less."""
        return self.settings.age_s * (0.9 + 0.2 * (self.connections.opened * _GOLDEN % 1.0))


def _no_such_method(_message: bytes, call: Call) -> None:
    call.fail(UNIMPLEMENTED, "no such method")
