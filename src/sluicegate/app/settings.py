"""What a server is told to do: the values of its flags, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sluicegate.app.analytics.settings import AnalyticsSettings
from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.feed.settings import FeedSettings
from sluicegate.app.regions import RegionSettings
from sluicegate.app.tls import TlsFiles
from sluicegate.bounds import FLEET_NODES_MAX, RETRY_JITTER_S_MAX, WORKERS_MAX
from sluicegate.doors.gateway.settings import Settings as Proxying
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.http.authz import DENY_STATUSES
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.listen import Address
from sluicegate.errors import ConfigurationError
from sluicegate.stores.near.settings import NearSettings

__all__ = ["Settings", "default_store", "is_embedded"]

_MEMORY = "memory://"
_EMBEDDED = "embedded://"


def default_store(workers: int) -> str:
    """The store of who names none: memory for one worker, and one that they share for several."""
    return _MEMORY if workers == 1 else _EMBEDDED


def is_embedded(url: str) -> bool:
    """Whether a store's URL asks for the one that the server starts itself."""
    return url.lower().startswith(_EMBEDDED.rstrip("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server. Raises ConfigurationError where the values contradict each other.

    ``nodes``: the least number of processes that are assumed to share the limits; each divides by as many at least while the store
    is down.
    ``near``: what is answered without asking the store, where processes share it; None: nothing. ``regions``: the region that this server is in; None: there are none.
    ``rules``: the rule file, which is watched; None: ``data/rules.yaml``, written from the embedded rules where it is not there.
    ``feed``: the rules service whose rules are served; ``rules`` is then what to begin with where it gives none, and not watched, and None: nothing.
    ``gateway``, ``api``, ``health``, ``grpc``: where to listen; None: not at all. ``upstreams``: base URLs behind the gateway; none, with a
    gateway, starts the demo backend. ``not_installed``: roles that need an extra which is not there. ``grpc_by_default``: nobody named ``grpc``, so that it is left
    out where somebody else listens there. ``unused_keys``: what the configuration file holds for servers of another command. ``calling``: the gRPC listener's settings; ``grpc_engine``: what
    speaks HTTP/2 there, see ``GrpcDoor``.
    ``control``: a rules service to start beside the nodes, from which they have their rules; None: none. ``control_by_default``: nobody named its
    address, so that it is left out where somebody else listens there. ``node_name``: what the nodes are called there.
    ``analytics``: what is told of decisions, and to whom.
    ``tls``: certificates of those listeners that speak TLS, by name.
    ``authz_nginx_deny_status``: the status with which ``/authz/nginx`` refuses.
    ``retry_jitter_s``: refused clients are told to come back up to this many whole seconds later than they may.
    ``drain_delay_s``: after SIGTERM, how long to go on accepting while ``/readyz`` says no; ``drain_timeout_s``: how long requests
    in flight may take to finish after that.
    """

    rules: Path | None = None
    feed: FeedSettings | None = None
    store: str = field(default=_MEMORY, repr=False)
    """Its URL may hold a password; ``store_watch.address_of`` is what may be shown."""
    workers: int = 1
    nodes: int = 1
    near: NearSettings | None = field(default_factory=NearSettings)
    regions: RegionSettings | None = None
    data: Path = Path(".sluicegate")
    gateway: Address | None = None
    api: Address | None = None
    health: Address | None = None
    grpc: Address | None = None
    control: ControlSettings | None = None
    control_by_default: bool = False
    node_name: str = ""
    analytics: AnalyticsSettings = field(default_factory=lambda: AnalyticsSettings(mode="off"))
    tls: Mapping[str, TlsFiles] = field(default_factory=dict)
    upstreams: tuple[str, ...] = ()
    headers: str = "x-ratelimit"
    retry_jitter_s: float = 0.0
    proxying: Proxying = field(default_factory=Proxying)
    serving: HttpSettings = field(default_factory=HttpSettings)
    calling: GrpcSettings = field(default_factory=GrpcSettings)
    grpc_engine: str = "auto"
    authz_nginx_deny_status: int = 403
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 10.0
    log_format: str = "auto"
    otel: bool = False
    """Send traces and metrics by OTLP, as the variables ``OTEL_*`` say."""
    not_installed: tuple[str, ...] = ()
    grpc_by_default: bool = False
    unused_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.regions is not None:
            self.regions.check_store(self.store)
        if not 1 <= self.workers <= WORKERS_MAX:
            raise ConfigurationError(f"workers must be 1 to {WORKERS_MAX}, got {self.workers}")
        if not 1 <= self.nodes <= FLEET_NODES_MAX:
            raise ConfigurationError(f"nodes must be 1 to {FLEET_NODES_MAX}, got {self.nodes}")
        if self.authz_nginx_deny_status not in DENY_STATUSES:
            raise ConfigurationError(
                f"authz_nginx_deny_status must be one of {', '.join(map(str, DENY_STATUSES))}, got {self.authz_nginx_deny_status}"
            )
        if not 0 <= self.retry_jitter_s <= RETRY_JITTER_S_MAX or self.retry_jitter_s != int(self.retry_jitter_s):
            raise ConfigurationError(
                f"retry_jitter must be whole seconds, 0 to {RETRY_JITTER_S_MAX}, got {self.retry_jitter_s:g}s"
            )
        if "gateway" in self.tls and self.proxying.proxy_protocol:
            raise ConfigurationError(
                "--proxy-protocol is not for a gateway with TLS: the header would have to come before the handshake. Let what "
                "sends it end TLS, or --gateway-tls off"
            )
        if self.workers > 1 and self.store.lower().startswith("memory:"):
            raise ConfigurationError(
                f"workers is {self.workers}, but the store {self.store!r} lives inside one process: each worker would admit the "
                "whole limit. Use --store embedded:// or redis://..., or --workers 1"
            )
        if self.api is not None and not self.api.is_loopback and not self.serving.api_token:
            raise ConfigurationError(
                f"the decision API at {self.api} can be reached from other machines: set --api-token (or SLUICEGATE_API_TOKEN)"
            )
        if self.grpc is not None and not self.grpc.is_loopback and not self.calling.token:
            raise ConfigurationError(
                f"the gRPC listener at {self.grpc} can be reached from other machines: set --api-token (or SLUICEGATE_API_TOKEN)"
            )

    @property
    def nodes_min(self) -> int:
        """``nodes``, and never fewer than there are workers."""
        return max(self.nodes, self.workers)

    @property
    def supervised(self) -> bool:
        """Whether a supervisor starts the processes: several workers, or a store that has to be started."""
        return self.workers > 1 or is_embedded(self.store)

    @property
    def demo(self) -> bool:
        """Whether the demo backend stands behind the gateway."""
        return self.gateway is not None and not self.upstreams
