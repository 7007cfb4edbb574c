"""What an operator can set on the decision API's server."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluicegate import bounds
from sluicegate.errors import ConfigurationError

__all__ = ["HttpSettings"]


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits and timeouts of one server. Sizes are bytes, times seconds; timeouts are late by at most ``sweep_s``.

    ``head_bytes_max``: request line and header fields. ``body_bytes_max``: a request body, also the sum of its chunks.
    ``idle_s``: silence allowed between requests. ``head_s``: from a request's first byte to the end of its header.
    ``body_s``: from there to the end of its body. ``write_s``: how long a peer may refuse to take an answer.
    ``linger_s``: after an answer that comes before the request's end, how long what the peer still sends is read and
    thrown away, so that it can read the answer. ``connections_max``: beyond it a new connection is answered 503.
    ``api_token``: the bearer token that ``/v1/*`` asks for; None: open to whoever can connect.
    """

    head_bytes_max: int = bounds.HTTP_HEAD_BYTES_MAX
    fields_max: int = bounds.HTTP_FIELDS_MAX
    body_bytes_max: int = bounds.HTTP_BODY_BYTES_MAX
    idle_s: float = 75.0
    head_s: float = 10.0
    body_s: float = 30.0
    write_s: float = 30.0
    linger_s: float = 2.0
    sweep_s: float = bounds.SWEEP_INTERVAL_S
    connections_max: int = bounds.HTTP_CONNECTIONS_MAX
    api_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("head_bytes_max", "fields_max", "body_bytes_max", "connections_max"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be >= 1, got {getattr(self, name)!r}")
        for name in ("idle_s", "head_s", "body_s", "write_s", "linger_s", "sweep_s"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be > 0, got {getattr(self, name)!r}")
        token = self.api_token
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
            raise ConfigurationError("api_token must be printable ASCII without surrounding spaces, and not empty")
