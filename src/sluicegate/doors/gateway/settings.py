"""What an operator can set on the gateway. Every field has a default that is safe on the open Internet."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from sluicegate import bounds
from sluicegate.errors import ConfigurationError

__all__ = ["Settings"]

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BALANCE = ("least_outstanding", "round_robin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Numbers are bytes, counts or seconds as their names say. Timeouts are kept to half a second, ``connect_timeout_s`` exactly.

    Raises ConfigurationError naming field and value when one is out of range.
    """

    head_bytes_max: int = bounds.GATEWAY_HEAD_BYTES_MAX
    """Request line and header fields of one message, in either direction; beyond it 431 (or 502)."""
    request_line_bytes_max: int = bounds.GATEWAY_REQUEST_LINE_BYTES_MAX
    """Beyond it 414."""
    fields_max: int = bounds.GATEWAY_FIELDS_MAX
    """Header fields of one message; beyond it 431 (or 502)."""
    connections_max: int = bounds.GATEWAY_CONNECTIONS_MAX
    """Client connections at once; beyond it a new one is answered 503."""

    header_timeout_s: float = 10.0
    """From the first byte of a connection or request until its head is complete; then 408."""
    idle_timeout_s: float = 75.0
    """A kept client connection without a request is closed after this."""
    body_timeout_s: float = 30.0
    """Without a byte of a request body that is still due; then 408."""
    send_timeout_s: float = 60.0
    """A client that makes no room for more of its answer for this long (it reads nothing, or a trickle) is cut off."""
    connect_timeout_s: float = 2.0
    """For one connection attempt to an upstream, and for the wait for a free connection; then 504 or 503."""
    response_timeout_s: float = 60.0
    """From the end of the request, or the last byte the upstream took of it, to the head of its answer; then 504."""
    upstream_body_timeout_s: float = 60.0
    """Between two pieces of an answer's body; then the client's connection is cut, since the answer has begun."""
    tunnel_idle_timeout_s: float = 300.0
    """A WebSocket without a byte in either direction is closed after this."""

    upstream_connections_max: int = bounds.GATEWAY_UPSTREAM_CONNECTIONS_MAX
    """Per upstream; requests beyond it wait."""
    upstream_idle_timeout_s: float = 4.0
    """How long an unused upstream connection is kept. Below the keep-alive time of common servers (5 s is Node's), so
    that the gateway and not the upstream closes first; an upstream that announces less is obeyed."""
    waiting_max: int = bounds.GATEWAY_WAITING_MAX
    """Requests waiting for a connection, per upstream; beyond it 503."""
    held_max: int = bounds.GATEWAY_HELD_MAX
    """Requests held by ``leaky_bucket`` rules at once; beyond it 429."""
    balance: str = "least_outstanding"
    """Which upstream gets a request: ``least_outstanding`` or ``round_robin``."""
    eject_after: int = 3
    """Failures in a row after which an upstream is left out; 0: never. The last one is never left out."""
    eject_s: float = 10.0
    """How long it is left out."""

    proxy_protocol: bool = False
    """Every connection must begin with a PROXY protocol header (v1 or v2) and come from a trusted peer."""
    preserve_host: bool = True
    """Forward the client's ``Host``; otherwise the upstream's own address is sent."""
    strip_identity: bool = True
    """Remove identity headers named by the rules when they come from a peer that may not set them."""
    proto: str = "http"
    """What ``X-Forwarded-Proto`` says of this gateway's own listener; ``https`` behind a balancer that ends TLS."""
    forwarded: bool = False
    """Also add the ``Forwarded`` header (RFC 7239). One from a trusted peer is extended in any case."""
    via: str = "sluicegate"
    """Pseudonym in the ``Via`` header of forwarded requests; empty: none is added."""
    tls_ca_file: str | None = None
    """Certificates to trust for ``https`` upstreams; None: the system's."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and not 0 < value <= 86_400:
                raise ConfigurationError(
                    f"{field.name} is {value!r}, which is not more than 0 and at most 86400 seconds"
                )
            if field.name.endswith("_max") and value < 1:
                raise ConfigurationError(f"{field.name} is {value!r}, which is less than 1")
        if self.eject_after < 0:
            raise ConfigurationError(f"eject_after is {self.eject_after!r}, which is negative")
        if self.balance not in _BALANCE:
            raise ConfigurationError(f"balance is {self.balance!r}; use {' or '.join(_BALANCE)}")
        if self.proto not in {"http", "https"}:
            raise ConfigurationError(f"proto is {self.proto!r}; use http or https")
        if self.via and not _TOKEN.fullmatch(self.via):
            raise ConfigurationError(f"via is {self.via!r}, which is not a token")
