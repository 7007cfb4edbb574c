"""The pure part of the ASGI door: what a scope says, and how rate headers are added to a message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import quote

from sluicegate.doors.web.door import Door
from sluicegate.doors.web.request import RequestLimits, Seen
from sluicegate.rules.facts import Facts

__all__ = ["SCOPE_KEY", "App", "Message", "Receive", "Scope", "Send", "facts_of", "headed", "innermost"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

SCOPE_KEY = "sluicegate.rate_limit"
"""Where in the scope the ``RequestLimits`` are, for applications without ``request.state``."""

_TEST_PEER = "testclient"
"""What the test clients of Starlette, FastAPI and Litestar give as the peer; no server does."""
_LOOPBACK = "127.0.0.1"
_NO_ADDRESS = ""
"""What the resolver is told of a TCP peer whose address is gone: no address, and nobody who is trusted."""


def facts_of(door: Door, scope: Scope) -> tuple[Facts, Seen]:
    """The facts of a request, but for its route template, and what they were made from. A WebSocket handshake is a GET."""
    headers = scope["headers"]
    host = None
    for name, value in headers:
        if name == b"host":
            host = value.decode("latin-1")
            break
    raw_path = scope.get("raw_path")
    target = raw_path.decode("latin-1") if raw_path else quote(scope["path"])
    client = scope.get("client")
    peer = client[0] if client else _peer_without_address(scope)
    if peer == _TEST_PEER:
        # Without an address limits by address would not apply, and tests would show an application without limits.
        peer = _LOOPBACK
    return door.resolver.facts(scope.get("method", "GET"), target, host, headers, peer), Seen(headers, peer)


def _peer_without_address(scope: Scope) -> str | None:
    """A Unix socket has no port; a TCP peer that left already must not pass for one on a Unix socket."""
    server = scope.get("server")
    return None if server is None or server[1] is None else _NO_ADDRESS


def headed(door: Door, limits: RequestLimits, message: Message) -> Message:
    """The first message of an answer with the rate headers, in the place of those of the same names that it has."""
    # An accepted WebSocket has no status; it is a success.
    ours = door.raw_items(limits, message.get("status", 101))
    if not ours:
        return message
    names = door.headers.names
    theirs = message.get("headers") or ()
    if limits.refused is None:
        kept = [pair for pair in theirs if pair[0] not in names]
    else:
        kept = [pair for pair in theirs if pair[0] not in names and pair[0] != b"retry-after"]
    return {**message, "headers": kept + ours}


def innermost(app: Any) -> Any:
    """The application inside middleware that keeps it as ``app``: the one that has routes, else ``app`` itself."""
    inner, seen = app, 0
    while not hasattr(inner, "routes") and hasattr(inner, "app") and seen < _WRAPPERS_MAX:
        inner, seen = inner.app, seen + 1
    return inner


_WRAPPERS_MAX = 64
"""No stack of middleware is that deep, but an object that answers every attribute would be."""
