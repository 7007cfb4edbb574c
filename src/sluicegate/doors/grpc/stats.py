"""What the gRPC door counts about itself: plain integers, read by the metrics exporter at any time."""

from __future__ import annotations

from typing import Final

__all__ = ["METHODS", "OTHER_METHOD", "PHASES", "GrpcStats"]

OTHER_METHOD: Final = "other"
METHODS: Final = ("ShouldRateLimit", "Check", "Watch", OTHER_METHOD)
"""The method labels: bounded, never a path that a client made up."""

PHASES: Final = ("preface", "request", "write", "idle", "linger", "drain")


class GrpcStats:
    """Counters only grow.

    ``calls``: answers by method and status code. ``timeouts``: what was ended for want of time, by phase; in "request" that is one call, else a
    connection. ``cancelled``: calls that their client gave up before they were answered. ``protocol_errors``: connections ended for breaking
    HTTP/2 or flooding. ``connections_refused``: above the limit. ``internal_errors``: faults of ours. ``aged``: connections ended for their age.
    """

    __slots__ = (
        "aged",
        "bytes_in",
        "bytes_out",
        "calls",
        "cancelled",
        "connections_refused",
        "internal_errors",
        "protocol_errors",
        "timeouts",
    )

    def __init__(self) -> None:
        self.calls: dict[str, dict[int, int]] = {method: {} for method in METHODS}
        self.timeouts = dict.fromkeys(PHASES, 0)
        self.cancelled = 0
        self.protocol_errors = 0
        self.connections_refused = 0
        self.internal_errors = 0
        self.aged = 0
        self.bytes_in = 0
        self.bytes_out = 0
