"""The gRPC door as one object that the application composes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from sluicegate.clock import Clock
from sluicegate.doors.connections import Connections
from sluicegate.doors.grpc.service import Services
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.grpc.site import GrpcSite
from sluicegate.doors.grpc.stats import GrpcStats
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.listen import Address, Listener, open_listener
from sluicegate.doors.refusals import Refusals
from sluicegate.doors.tracing import Tracer
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.limiter.limiter import Limiter

if TYPE_CHECKING:
    from sluicegate.doors.grpc.aio import AioListener, AioServer

__all__ = ["ENGINES", "GrpcDoor", "is_installed"]

AUTO: Final = "auto"
ENGINES: Final = (AUTO, "ngh2", "grpcio")
Certificates = Callable[[], tuple[bytes, bytes, bytes | None]]
_PACKAGES: Final = {"ngh2": "ngh2", "grpcio": "grpc_reflection"}
"""What shows that an engine's extra is installed: grpcio by itself is in many environments, and its reflection needs it."""
_EXTRAS: Final = {"ngh2": "envoy", "grpcio": "envoy-grpcio"}


def is_installed() -> bool:
    """Whether there is anything that speaks HTTP/2: ngh2, of the extra ``envoy``, or grpcio, of ``envoy-grpcio``."""
    return any(find_spec(package) is not None for package in _PACKAGES.values())


class GrpcDoor:
    """``await door.open(address)`` serves it; ``await door.connections.drain(s)`` ends it.

    ``engine``: who speaks HTTP/2. ``auto`` is ngh2 where it is installed, else grpcio. ``stats`` and ``connections`` are for the metrics
    exporter. ``certificates``: PEM of certificate, key and authorities of clients now, for the engine that opens its own listener; around a
    ``protocol_factory`` whoever listens puts TLS. See ``Services`` for ``ready``, ``refusals`` and ``namespace``. Raises MissingExtra where the engine is not installed, ConfigurationError for
    one that is not known.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        clock: Clock,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        headers: RateHeaders | None = None,
        settings: GrpcSettings | None = None,
        refusals: Refusals | None = None,
        namespace: str = "default",
        engine: str = AUTO,
        certificates: Certificates | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.engine = _chosen(engine)
        self.stats = GrpcStats()
        self.settings = settings or GrpcSettings()
        services = Services(
            limiter, headers or RateHeaders(), clock, self.stats, ready=ready, refusals=refusals, namespace=namespace
        )
        self.connections: Connections | AioServer
        if self.engine == "ngh2":
            from sluicegate.doors.grpc.protocol import GrpcProtocol

            site = GrpcSite(services.routes, self.settings, self.stats, services.health, tracer)
            self.connections = site.connections
            self.protocol_factory: Callable[[], asyncio.Protocol] | None = lambda: GrpcProtocol(site)
            """A protocol for one new connection; None where the engine opens its own listener."""
        else:
            from sluicegate.doors.grpc.aio import AioServer

            self._server = self.connections = AioServer(
                services.routes, self.settings, self.stats, services.health, certificates, tracer
            )
            self.protocol_factory = None

    async def open(self, address: Address, *, reuse_port: bool = False) -> Listener | AioListener:
        """Listen; see ``open_listener``."""
        if self.protocol_factory is None:
            return await self._server.open(address, reuse_port=reuse_port)
        return await open_listener(address, self.protocol_factory, reuse_port=reuse_port)


def _chosen(engine: str) -> str:
    if engine not in ENGINES:
        raise ConfigurationError(f"grpc_engine: want one of {', '.join(ENGINES)}, got {engine!r}")
    candidates = ENGINES[1:] if engine == AUTO else (engine,)
    for name in candidates:
        if find_spec(_PACKAGES[name]) is not None:
            return name
    raise MissingExtra(_EXTRAS[candidates[0]], "the gRPC listener")
