"""The gRPC door as one object that the application composes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec

from sluicegate.clock import Clock
from sluicegate.doors.connections import Connections
from sluicegate.doors.grpc.service import Services
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.grpc.site import GrpcSite
from sluicegate.doors.grpc.stats import GrpcStats
from sluicegate.doors.headers import RateHeaders
from sluicegate.errors import MissingExtra
from sluicegate.limiter.limiter import Limiter

__all__ = ["GrpcDoor", "is_installed"]


def is_installed() -> bool:
    """Whether what the door needs is there: the package ngh2, of the extra ``envoy``."""
    return find_spec("ngh2") is not None


class GrpcDoor:
    """``open_listener(address, door.protocol_factory)`` serves it; ``await door.connections.drain(s)`` ends it.

    ``stats`` and ``connections`` are for the metrics exporter. See ``Services`` for ``ready`` and ``namespace``.
    Raises MissingExtra where ngh2 is not installed.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        clock: Clock,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        headers: RateHeaders | None = None,
        settings: GrpcSettings | None = None,
        namespace: str = "default",
    ) -> None:
        try:
            from sluicegate.doors.grpc.protocol import GrpcProtocol
        except ImportError as error:
            raise MissingExtra("envoy", "the gRPC listener") from error
        self._protocol = GrpcProtocol
        self.stats = GrpcStats()
        self.settings = settings or GrpcSettings()
        services = Services(limiter, headers or RateHeaders(), clock, self.stats, ready=ready, namespace=namespace)
        self._site = GrpcSite(services.routes, self.settings, self.stats)

    @property
    def connections(self) -> Connections:
        """The live connections."""
        return self._site.connections

    def protocol_factory(self) -> asyncio.Protocol:
        """A protocol for one new connection."""
        return self._protocol(self._site)
