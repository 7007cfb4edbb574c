"""ASGI middleware: Starlette, FastAPI, Litestar, Quart, Django under ASGI, or no framework at all.

    app = RateLimitMiddleware(app, limiter=Limiter.from_file("rules.yaml"))

It decides before the application sees a request. Messages pass through one by one as they come: a stream stays a stream. Only
the head of an answer is looked at, to add the rate headers. A WebSocket is refused before it is accepted. Lifespan, and
anything else that is neither HTTP nor WebSocket, passes untouched.

The address of the client is the peer of the connection as the server gives it, and forwarded headers count only from the peers
that the rules trust. A server that rewrites the peer by what a header says must be told not to (``--no-proxy-headers``).
"""

from __future__ import annotations

from sluicegate.doors.asgi.decorator import limit
from sluicegate.doors.asgi.middleware import RateLimitMiddleware
from sluicegate.doors.asgi.translate import SCOPE_KEY
from sluicegate.doors.web.declared import Limit, no_rules
from sluicegate.doors.web.request import RequestLimits

__all__ = ["SCOPE_KEY", "Limit", "RateLimitMiddleware", "RequestLimits", "limit", "no_rules"]
