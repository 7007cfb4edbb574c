"""The head of a gRPC call: which method, how long its client waits, and whether it may ask at all.

Source: the gRPC over HTTP/2 protocol.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from sluicegate.doors.grpc.calls import UNAUTHENTICATED, UNIMPLEMENTED, Route
from sluicegate.doors.grpc.traced import traced
from sluicegate.doors.tracing import Tracer, parent_of

__all__ = ["Head", "HeadReader", "timeout_of"]

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Head(NamedTuple):
    """``timeout_s``: None where the client waits as long as it takes. ``failure``: status code and words of a call that is refused for
    its head; ``http_status``: the same for what is no gRPC call at all, else 200.
    """

    route: Route
    timeout_s: float | None
    failure: tuple[int, str] | None
    http_status: int


class HeadReader:
    """Reads heads for a set of routes. ``other`` counts calls of methods that there are not; ``token``: see GrpcSettings."""

    def __init__(
        self, routes: Mapping[bytes, Route], other: Route, token: str | None, tracer: Tracer | None = None
    ) -> None:
        self._tracer = tracer
        self._routes = routes
        self._other = other
        self._authorization = None if token is None else b"Bearer " + token.encode()
        self._usual = {path: Head(route, None, None, 200) for path, route in routes.items()}

    def read(self, fields: Mapping[bytes, bytes]) -> Head:
        """The meaning of a head. Of a field that stands twice the last counts; HTTP/2 forbids that for those with a colon."""
        path = fields.get(b":path", b"")
        route = self._routes.get(path)
        if fields.get(b":method") != b"POST":
            return Head(route or self._other, None, (UNIMPLEMENTED, "want POST"), 405)
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            return Head(route or self._other, None, (UNIMPLEMENTED, "want application/grpc"), 415)
        if route is None:
            shown = path[:128].decode("ascii", "backslashreplace")
            return Head(self._other, None, (UNIMPLEMENTED, f"no such method: {shown}"), 200)
        if self._authorization is not None and route.guarded:
            given = fields.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._authorization):
                return Head(route, None, (UNAUTHENTICATED, "want the bearer token of this server"), 200)
        timeout = fields.get(b"grpc-timeout")
        if self._tracer is not None and route.guarded:
            parent = parent_of(fields.get(b"traceparent", b""))
            if parent is not None:
                within_s = None if timeout is None else timeout_of(timeout)
                return Head(traced(route, self._tracer, parent), within_s, None, 200)
        if timeout is None:
            return self._usual[path]
        return Head(route, timeout_of(timeout), None, 200)


def timeout_of(text: bytes) -> float | None:
    """Seconds, from ``20m`` (milliseconds), ``1S`` …; None for what is no timeout, which is then as if it were not there."""
    found = _TIMEOUT.fullmatch(text)
    return None if found is None else int(found[1]) * _UNIT_S[found[2]]
