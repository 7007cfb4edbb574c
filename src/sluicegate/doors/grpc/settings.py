"""What an operator can set on the gRPC door's server."""

from __future__ import annotations

from dataclasses import dataclass

from sluicegate import bounds
from sluicegate.errors import ConfigurationError

__all__ = ["GrpcSettings"]

_COUNTS = ("message_bytes_max", "streams_max", "connections_max")


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Limits and timeouts of one server. Times are seconds; timeouts are late by at most ``sweep_s``.

    ``message_bytes_max``: one request message. ``streams_max``: calls under way on one connection. ``connections_max``: beyond it a new connection
    is told to go away. ``preface_s``: from connecting to the peer's first settings. ``request_s``: from the beginning of a call to its
    end. ``write_s``: how long a peer may refuse to take answers. ``idle_s``: without a byte and without a call. ``age_s``: how long a
    connection lives (a tenth more or less, so that not all end at once), so that clients look up names again and spread over new
    processes; 0: for ever. ``age_grace_s``: how long its last calls may take then. ``linger_s``: after our last word, how long what the
    peer still sends is thrown away, so that it can read it. ``token``: the bearer token that rate limit calls need; None: none.
    """

    message_bytes_max: int = bounds.GRPC_MESSAGE_BYTES_MAX
    streams_max: int = bounds.GRPC_STREAMS_MAX
    connections_max: int = bounds.GRPC_CONNECTIONS_MAX
    preface_s: float = 10.0
    request_s: float = 10.0
    write_s: float = 30.0
    idle_s: float = 3600.0
    age_s: float = 86_400.0
    age_grace_s: float = 10.0
    linger_s: float = 2.0
    sweep_s: float = bounds.SWEEP_INTERVAL_S
    token: str | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be >= 1, got {getattr(self, name)!r}")
        for name in ("preface_s", "request_s", "write_s", "idle_s", "age_grace_s", "linger_s", "sweep_s"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be > 0, got {getattr(self, name)!r}")
        if not self.age_s >= 0:
            raise ConfigurationError(f"age_s must be >= 0, got {self.age_s!r}")
