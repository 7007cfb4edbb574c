"""What the gateway counts: plain integers, read by the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluicegate.limiter.decision import Decision

__all__ = ["Stats"]


@dataclass(slots=True)
class Stats:
    """Counts since start, except ``held``, ``tunnels`` and ``in_flight``, which are what is there now."""

    requests: int = 0
    """Requests whose head was read and valid."""
    allowed: int = 0
    refused: int = 0
    """Answered 429 by a rule or a full hold queue."""
    undecided: int = 0
    """Answered 503 because a fail-closed rule could not be decided."""
    in_flight: int = 0
    responses: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0, 3: 0, 4: 0, 5: 0})
    """Final answers by the first digit of their status, the gateway's own included (1: switched protocols)."""
    bad_requests: dict[str, int] = field(default_factory=dict)
    """Requests refused for their form, by kind (a fixed set of words)."""
    upstream_errors: dict[str, int] = field(default_factory=dict)
    """Upstream failures by kind: connect, connect_timeout, closed, truncated, bad_response, timeout, busy."""
    timeouts: dict[str, int] = field(default_factory=dict)
    """Client timeouts by kind: header, idle, body, send, tunnel, decision."""
    retries: int = 0
    """Requests sent again because a kept connection turned out to be closed."""
    failovers: int = 0
    """Requests that went to another upstream because the first could not be connected."""
    ejections: int = 0
    cancelled: int = 0
    """Requests whose client left before the answer was complete."""
    held: int = 0
    held_total: int = 0
    held_rejected: int = 0
    """Requests to be held that found the hold queue full."""
    tunnels: int = 0
    tunnels_total: int = 0
    connections_refused: int = 0
    """Client connections beyond the maximum, answered 503."""
    proxy_rejected: int = 0
    """Connections closed for a missing, malformed or untrusted PROXY header."""
    internal_errors: int = 0
    """Faults of this program that were turned into a 500."""
    upstream_connects: int = 0

    def count(self, table: dict[str, int], kind: str) -> None:
        """Add one to ``table[kind]``."""
        table[kind] = table.get(kind, 0) + 1

    def count_decision(self, decision: Decision) -> None:
        """Add one to what a request was decided to be."""
        if decision.allowed:
            self.allowed += 1
        elif decision.refusal == "store":
            self.undecided += 1
        else:
            self.refused += 1
