"""What all connections of one gRPC door share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluicegate.doors.connections import Connections
from sluicegate.doors.grpc.calls import UNIMPLEMENTED, Call, Route
from sluicegate.doors.grpc.heads import HeadReader
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.grpc.stats import OTHER_METHOD, GrpcStats

__all__ = ["GrpcSite"]

_GOLDEN: Final = 0.618_033_988_749_895
"""Multiples of it, without their whole part, are spread evenly however many there are."""


class GrpcSite:
    """Routes, settings, counts and the registry of connections."""

    def __init__(self, routes: Mapping[bytes, Route], settings: GrpcSettings, stats: GrpcStats) -> None:
        self.routes = routes
        self.settings = settings
        self.stats = stats
        other = Route(OTHER_METHOD, _no_such_method, stats.calls[OTHER_METHOD], guarded=False)
        self.heads = HeadReader(routes, other, settings.token)
        self.connections = Connections(interval_s=settings.sweep_s)

    def age_s(self) -> float:
        """How long the connection that was added last may live: ``settings.age_s``, a tenth more or less."""
        return self.settings.age_s * (0.9 + 0.2 * (self.connections.opened * _GOLDEN % 1.0))


def _no_such_method(_message: bytes, call: Call) -> None:
    call.fail(UNIMPLEMENTED, "no such method")
