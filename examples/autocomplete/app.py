"""A search autocomplete throttled per address, as plain ASGI: no framework between the limiter and the server."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from sluicegate import Limiter
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.problem import CONTENT_TYPE, quota_exceeded

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

WORDS = (
    "sailor",
    "sand",
    "season",
    "seed",
    "shadow",
    "ship",
    "shore",
    "silver",
    "sluice",
    "snow",
    "sound",
    "spring",
    "sun",
)

limiter = Limiter.from_file(Path(__file__).with_name("rules.yaml"))
rate_headers = RateHeaders("x-ratelimit")


async def app(scope: Scope, _receive: Receive, send: Send) -> None:
    """``GET /suggest?q=sh`` answers ``["shadow", "ship", "shore"]``."""
    if scope["type"] != "http":
        return
    peer = scope["client"][0] if scope["client"] else None
    target = scope["raw_path"].decode("latin-1")
    decision = limiter.check(limiter.resolver.facts(scope["method"], target, None, scope["headers"], peer))
    headers = rate_headers.items(decision, now_us=0)
    if not decision:
        await answer(send, 429, CONTENT_TYPE, quota_exceeded(decision), headers)
    elif scope["path"] != "/suggest":
        await answer(send, 404, "text/plain", b"try /suggest?q=sh\n", headers)
    else:
        start = parse_qs(scope["query_string"].decode("latin-1")).get("q", [""])[0]
        found = [word for word in WORDS if word.startswith(start.lower())][:10]
        await answer(send, 200, "application/json", json.dumps(found).encode(), headers)


async def answer(send: Send, status: int, content_type: str, body: bytes, headers: list[tuple[str, str]]) -> None:
    """Send a whole response."""
    fields = [("Content-Type", content_type), ("Content-Length", str(len(body))), *headers]
    lines = [(name.lower().encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
