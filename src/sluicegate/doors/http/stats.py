"""What the decision API counts about itself: plain integers, read by the metrics exporter at any time."""

from __future__ import annotations

from typing import Final

__all__ = ["BAD_KINDS", "ROUTES", "HttpStats"]

ROUTES: Final = (
    "/v1/check",
    "/v1/check/batch",
    "/v1/refund",
    "/v1/counters/read",
    "/v1/counters/grant",
    "/v1/counters/reset",
    "/v1/counters/forget",
    "/v1/explain",
    "/json",
    "/v1/ruleset",
    "/authz/envoy",
    "/authz/nginx",
    "/authz/forward",
    "/livez",
    "/readyz",
    "/healthz",
    "/metrics",
    "other",
)
"""The route labels: bounded, never a path that a client made up."""

BAD_KINDS: Final = ("head", "body", "too_large", "json", "field")
"""Why a request was bad: its head, the framing of its body, its size, its JSON, or one field of it."""


class HttpStats:
    """Counters only grow; ``connections`` is read from the registry by the exporter.

    ``requests``: answers by route and status. ``bad_requests``: by kind; a bad item of a batch counts too. ``timeouts``:
    connections closed by phase. ``batch_items``: checks that came in batches. ``internal_errors``: answers of 500, each of them
    a fault of ours. ``connections_refused``: above the connection limit. ``bytes_in`` and ``bytes_out``: as read and written.
    """

    __slots__ = (
        "bad_requests",
        "batch_items",
        "bytes_in",
        "bytes_out",
        "connections_refused",
        "internal_errors",
        "requests",
        "timeouts",
    )

    def __init__(self) -> None:
        self.requests: dict[str, dict[int, int]] = {route: {} for route in ROUTES}
        self.bad_requests = dict.fromkeys(BAD_KINDS, 0)
        self.timeouts = dict.fromkeys(("idle", "head", "body", "write", "linger", "answer"), 0)
        self.batch_items = 0
        self.internal_errors = 0
        self.connections_refused = 0
        self.bytes_in = 0
        self.bytes_out = 0
