"""The composition root: the only place that names concrete stores and doors and puts them together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from sluicegate.app.analytics.accuracy import AccuracyWatch
from sluicegate.app.analytics.flusher import Flusher
from sluicegate.app.analytics.homes import open_home
from sluicegate.app.analytics.start import recording
from sluicegate.app.demo import DemoBackend
from sluicegate.app.feed.settings import FeedSettings
from sluicegate.app.feed.start import Feed
from sluicegate.app.key_sets import KeySets, fetch
from sluicegate.app.metrics import Metrics
from sluicegate.app.otel.environment import check_environment
from sluicegate.app.regions import in_region
from sluicegate.app.ruleset_source import RulesetSource
from sluicegate.app.settings import Settings
from sluicegate.app.status import Status
from sluicegate.app.store_watch import StoreWatch
from sluicegate.app.tls import HTTP_1, HTTP_2, ListenerTls
from sluicegate.app.workers.fleet import Fleet
from sluicegate.clock import Clock
from sluicegate.doors.gateway import Gateway
from sluicegate.doors.grpc.door import GrpcDoor
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.door import HttpDoor
from sluicegate.doors.http.peers import OPERATED_PATHS, PEER_PATHS
from sluicegate.doors.listen import Address, named, open_listener
from sluicegate.doors.refusals import Refusals
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.model import RuleSet
from sluicegate.rules.watched import RulesFile, RulesState
from sluicegate.stores.urls import open_store

if TYPE_CHECKING:
    from sluicegate.app.otel.start import OpenTelemetry

__all__ = ["Application", "Draining", "Listening", "Opener", "Role", "build"]

PRIVATE: Final = "private"


@dataclass(frozen=True, slots=True)
class Role:
    """One listener and what stands behind it. ``name`` is also that of its flag, but for that of a worker's own socket, which has none."""

    name: str
    address: Address
    protocol_factory: Callable[[], asyncio.Protocol] | None
    """None: ``opener`` opens the listener, which cannot be handed over as an open socket."""
    connections: Draining
    opener: Opener | None = None
    scheme: str = "http"
    """What clients are told to speak."""

    async def open(self, *, reuse_port: bool = False) -> Listening:
        """Open the listener; raises ConfigurationError."""
        with nullcontext() if self.name == PRIVATE else named(self.name):
            if self.protocol_factory is not None:
                return await open_listener(self.address, self.protocol_factory, reuse_port=reuse_port)
            assert self.opener is not None
            return await self.opener(self.address, reuse_port=reuse_port)


class Draining(Protocol):
    """What can be let finish; see ``Connections``."""

    async def drain(self, timeout_s: float) -> int: ...


class Listening(Protocol):
    """What accepts connections; see ``Listener``."""

    address: Address

    def close(self) -> None: ...


class Opener(Protocol):
    """What opens a listener of its own kind."""

    async def __call__(self, address: Address, *, reuse_port: bool) -> Listening: ...


class Application:
    """Everything one process runs, composed and not yet listening.

    ``roles`` are complete once ``start_gateway`` was called where a gateway is wanted: the gateway needs the URLs of its
    upstreams, and the demo backend's is known only when it listens.
    """

    def __init__(
        self,
        settings: Settings,
        rules: RulesFile | None,
        limiter: Limiter,
        clock: Clock,
        fleet: Fleet | None = None,
    ) -> None:
        self.settings = settings
        self.rules = rules
        self.rules_state = RulesState() if rules is None else rules.state
        self.limiter = limiter
        self.clock = clock
        self.headers = RateHeaders(settings.headers)
        self.refusals = Refusals(limiter, int(settings.retry_jitter_s))
        self.store_watch = StoreWatch(limiter, settings.store, clock)
        worker = None if fleet is None else fleet.worker
        self.feed = None if settings.feed is None else self._feed(settings.feed, worker)
        node = None if self.feed is None else self.feed.node
        source = "" if rules is None else str(rules.path)
        self.status = Status(self.rules_state, source, self.store_watch, clock, node)
        self.metrics = Metrics(self.rules_state, limiter, self.status, self.store_watch.latency, node)
        if fleet is not None:
            self.status.worker = fleet.worker
        self.key_sets = KeySets(lambda: limiter.resolver, clock, fetch)
        self.tls = {
            name: ListenerTls(name, files, clock, HTTP_2 if name == "grpc" else HTTP_1)
            for name, files in settings.tls.items()
        }
        self.metrics.tls = self.tls
        self.flusher = self._flusher(worker)
        self.metrics.flusher = self.flusher
        self.accuracy = self.metrics.accuracy = self._accuracy(worker)
        self.telemetry = _telemetry(settings, limiter)
        self.roles: list[Role] = []
        self.demo = DemoBackend() if settings.demo else None
        self.gateway: Gateway | None = None
        for name, address, health_only in (("api", settings.api, False), ("health", settings.health, True)):
            if address is not None:
                door = HttpDoor(
                    limiter,
                    clock=clock,
                    ready=self.status.ready,
                    metrics=self.metrics.exposition,
                    open_metrics=self.metrics.open_metrics,
                    peers=fleet,
                    headers=self.headers,
                    settings=settings.serving,
                    refusals=self.refusals,
                    nginx_deny_status=settings.authz_nginx_deny_status,
                    ruleset=RulesetSource(limiter, self.headers, settings.store),
                    health_only=health_only,
                    tracer=self.telemetry,
                )
                self.metrics.doors[name] = door
                self._add(Role(name, address, door.protocol_factory, door.connections))
        if settings.grpc is not None:
            self._add_grpc(settings.grpc)
        if fleet is not None:
            self._add_private_role(fleet)
        elif settings.control is not None and settings.control.own_api is not None:
            self._add_own_api(settings.control.own_api, settings.control.node_token)

    def _feed(self, settings: FeedSettings, worker: int | None) -> Feed:
        """The rules service; raises ConfigurationError for a file of it that cannot be used."""
        rules = self.rules
        return Feed(
            settings,
            self.limiter,
            self.clock,
            state=self.rules_state,
            data=self.settings.data,
            files=self.settings.data if rules is None else rules.path.parent,
            store=self.settings.store,
            worker=worker,
            first=rules is not None,
        )

    def _flusher(self, worker: int | None) -> Flusher | None:
        """What tells of decisions; raises ConfigurationError for settings of it that cannot be used."""
        settings = self.settings
        return recording(
            self.limiter, settings.analytics, settings.data, self.clock, node=settings.node_name, worker=worker
        )

    def _accuracy(self, worker: int | None) -> AccuracyWatch | None:
        """What judges the home in the data directory, where no rules service beside does; one process of several is enough."""
        settings = self.settings
        if settings.analytics.goes_to != "embedded" or settings.control is not None or worker not in (None, 0):
            return None
        return AccuracyWatch(open_home(settings.data), self.clock)

    def _add(self, role: Role, place: int | None = None) -> None:
        """A role, behind TLS where its listener has it. ``place``: None: after the others."""
        tls = self.tls.get(role.name)
        if tls is not None:
            factory = role.protocol_factory
            role = replace(role, scheme="https", protocol_factory=None if factory is None else tls.layer.over(factory))
        self.roles.insert(len(self.roles) if place is None else place, role)

    def _add_grpc(self, address: Address) -> None:
        """The rate limit service for Envoy; raises MissingExtra where nothing is installed that speaks HTTP/2."""
        tls = self.tls.get("grpc")
        door = GrpcDoor(
            self.limiter,
            clock=self.clock,
            ready=self.status.ready,
            headers=self.headers,
            settings=self.settings.calling,
            refusals=self.refusals,
            engine=self.settings.grpc_engine,
            certificates=None if tls is None else tls.live.pem,
            tracer=self.telemetry,
        )
        self.metrics.grpc = door
        self._add(Role("grpc", address, door.protocol_factory, door.connections, door.open))

    def _add_private_role(self, fleet: Fleet) -> None:
        """What one worker is and knows by itself, for the other workers and whoever may enter the directory of the socket."""
        address = Address(path=str(fleet.socket))
        door = HttpDoor(
            self.limiter,
            clock=self.clock,
            ready=self.status.ready,
            metrics=self.metrics.exposition,
            open_metrics=self.metrics.open_metrics,
            settings=replace(self.settings.serving, api_token=None),
            paths=PEER_PATHS,
        )
        self.roles.append(Role(PRIVATE, address, door.protocol_factory, door.connections))

    def _add_own_api(self, path: Path, token: str | None) -> None:
        """Operations on counters, for the rules service that was started with this process."""
        assert token is not None, "without it the API would be open"
        door = HttpDoor(
            self.limiter,
            clock=self.clock,
            ready=self.status.ready,
            metrics=self.metrics.exposition,
            open_metrics=self.metrics.open_metrics,
            settings=replace(self.settings.serving, api_token=token),
            paths=OPERATED_PATHS,
        )
        self.roles.append(Role(PRIVATE, Address(path=str(path)), door.protocol_factory, door.connections))

    def give_up(self, role: Role) -> None:
        """Go on without this role, which could not be opened and is not needed."""
        self.roles.remove(role)
        if role.name == "grpc":
            self.metrics.grpc = None

    def start_gateway(self, upstreams: Sequence[str]) -> None:
        """Compose the gateway in front of these; raises ConfigurationError for a URL that is none."""
        settings = self.settings
        if settings.gateway is None:
            return
        self.gateway = Gateway(
            self.limiter, upstreams, self.headers, settings.proxying, self.clock, self.refusals, self.telemetry
        )
        self.metrics.gateway = self.gateway
        self._add(Role("gateway", settings.gateway, self.gateway.protocol_factory, self.gateway.connections), 0)

    def apply(self, ruleset: RuleSet) -> None:
        """Put rules in service while traffic flows; called from the thread that watches the file."""
        self.limiter.apply(ruleset)

    async def close(self) -> None:
        """Release upstream connections and the store; tell what was not told yet of decisions."""
        if self.gateway is not None:
            await self.gateway.close()
        if self.feed is not None:
            await self.feed.close()
        if self.flusher is not None:
            # Every request has its answer by now.
            await asyncio.to_thread(self.flusher.stop)
        if self.accuracy is not None:
            await asyncio.to_thread(self.accuracy.close)
        await self.limiter.aclose()
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.close)


def _telemetry(settings: Settings, limiter: Limiter) -> OpenTelemetry | None:
    """Raises MissingExtra where it is wanted and not installed, ConfigurationError for variables that cannot be used."""
    if not settings.otel:
        return None
    from sluicegate.app.otel.start import OpenTelemetry

    check_environment(os.environ)
    try:
        return OpenTelemetry(limiter)
    except ValueError as error:
        raise ConfigurationError(f"a variable of OpenTelemetry is wrong: {error}") from error


def build(settings: Settings, rules_path: Path | None, clock: Clock, fleet: Fleet | None = None) -> Application:
    """Compose; ``fleet`` where this process is one of several workers. ``rules_path`` None: there are no rules before those of the rules service.

    Raises ConfigurationError (RulesInvalid with every problem) where that is not possible.
    """
    rules = None if rules_path is None else RulesFile(rules_path, clock, None if fleet is None else fleet.rules)
    ruleset = RuleSet((), version=0) if rules is None else rules.load()
    store = open_store(settings.store, clock, warm=False)
    if settings.regions is not None:
        store = in_region(settings.regions, store, clock)
    limiter = Limiter.from_rules(
        ruleset,
        store,
        clock,
        base_dir=settings.data if rules_path is None else rules_path.parent,
        nodes=settings.nodes_min,
        near=settings.near,
    )
    return Application(settings, rules, limiter, clock, fleet)
