"""What a server is told to do: the values of its flags, checked as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sluicegate.doors.gateway.settings import Settings as Proxying
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.listen import Address
from sluicegate.errors import ConfigurationError

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server process. Raises ConfigurationError where the values contradict each other.

    ``rules``: the rule file, which is watched; None: ``data/rules.yaml``, written from the embedded rules where it is not there.
    ``gateway``, ``api``, ``health``: where to listen; None: not at all. ``upstreams``: base URLs behind the gateway; none, with a
    gateway, starts the demo backend. ``not_built``: roles that were asked for and are not in this version.
    ``drain_delay_s``: after SIGTERM, how long to go on accepting while ``/readyz`` says no; ``drain_timeout_s``: how long requests
    in flight may take to finish after that.
    """

    rules: Path | None = None
    store: str = "memory://"
    workers: int = 1
    data: Path = Path(".sluicegate")
    gateway: Address | None = None
    api: Address | None = None
    health: Address | None = None
    upstreams: tuple[str, ...] = ()
    headers: str = "x-ratelimit"
    proxying: Proxying = field(default_factory=Proxying)
    serving: HttpSettings = field(default_factory=HttpSettings)
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 10.0
    log_format: str = "auto"
    not_built: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigurationError(f"workers must be >= 1, got {self.workers}")
        if self.workers > 1 and self.store.startswith("memory:"):
            raise ConfigurationError(
                f"workers is {self.workers}, but the store {self.store!r} lives inside one process: each worker would admit the "
                "whole limit. Use --workers 1; a store that processes share is not in this version"
            )
        if self.api is not None and not self.api.is_loopback and not self.serving.api_token:
            raise ConfigurationError(
                f"the decision API at {self.api} can be reached from other machines: set --api-token (or SLUICEGATE_API_TOKEN)"
            )

    @property
    def demo(self) -> bool:
        """Whether the demo backend stands behind the gateway."""
        return self.gateway is not None and not self.upstreams
