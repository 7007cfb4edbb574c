"""Clients on a list at the doors for Python frameworks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.doors.asgi import RateLimitMiddleware
from sluicegate.doors.fastapi import limit
from sluicegate.doors.flask import RateLimit
from sluicegate.doors.web.declared import no_rules
from sluicegate.doors.wsgi import RateLimitMiddleware as WsgiMiddleware
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.feed import ListEntry, SubjectEntry

PEER = "203.0.113.9"
BLOCK = ListEntry("block", "ip", "203.0.113.0/24", None, "feed")
ALLOW = ListEntry("allow", "ip", PEER)
RULES = "rules:\n  - {name: two, per: [ip], quota: 2/minute}\n"
Statuses = Callable[..., Awaitable[list[int]]]


def fastapi_app(limiter: Limiter) -> FastAPI:
    """A middleware in front of a route without a limit and one with a limit of its own."""
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=limiter)

    @app.get("/free")
    async def free() -> str:
        return "free"

    @app.get("/once", dependencies=[Depends(limit("1/minute"))])
    async def once() -> str:
        return "once"

    return app


@pytest.mark.parametrize("ruled", [True, False])
async def test_lists_hold_for_rules_and_for_limits_beside_routes(
    ruled: bool, by_rules: Any, clock: ManualClock, statuses: Statuses
) -> None:
    """A blocked address is refused on every route, also where the limiter has no rules; one on the allow list meets no limit at all."""
    limiter = by_rules(RULES) if ruled else no_rules(clock=clock)
    app = fastapi_app(limiter)
    limiter.lists.put(BLOCK)
    assert await statuses(app, ["/free", "/once"]) == [429, 429]
    limiter.lists.put(ALLOW)
    assert await statuses(app, ["/free"] * 4 + ["/once"] * 3) == [200] * 7
    limiter.lists.replace([])
    assert await statuses(app, ["/once", "/once"]) == [200, 429]


async def test_a_refusal_tells_when_the_block_ends(by_rules: Any, clock: ManualClock, ask: Any) -> None:
    """The middleware's answer is a problem document with the list in the place of the rule."""
    limiter = by_rules(RULES)
    limiter.lists.put(ListEntry("block", "ip", PEER, clock.now_us() + 90 * US_PER_S))
    answer = await ask(fastapi_app(limiter), "/free")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "90")
    assert answer.headers["x-ratelimit-policy"] == "block:ip;q=0;w=1;alg=ban"
    assert answer.json()["violated-policies"] == ["block:ip"]


async def test_overrides_hold_for_limits_beside_routes(by_rules: Any, clock: ManualClock, statuses: Statuses) -> None:
    """A client whose limits are raised has more of a route's own limit, too."""
    limiter = no_rules(clock=clock)
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=limiter, identify=lambda _: {"user": "eve"})

    @app.get("/", dependencies=[Depends(limit("1/minute", per="user"))])
    async def once() -> str:
        return "once"

    limiter.subjects.put(SubjectEntry("user:eve", None, 3, 1))
    assert await statuses(app, ["/"] * 4) == [200, 200, 200, 429]


@pytest.mark.parametrize("door", ["wsgi", "flask"])
def test_wsgi_and_flask_look_at_lists(door: str, by_rules: Any, call_wsgi: Any) -> None:
    """The synchronous doors refuse a blocked address and let one on the allow list pass uncharged."""
    limiter = by_rules(RULES)
    flask = Flask("lists")
    flask.add_url_rule("/", view_func=lambda: "here")
    if door == "flask":
        RateLimit(flask, limiter=limiter)
        app: Any = flask
    else:
        app = WsgiMiddleware(flask, limiter=limiter)
    limiter.lists.put(BLOCK)
    answer = call_wsgi(app)
    assert (answer.status, "Retry-After" in answer) == (429, False)
    limiter.lists.put(ALLOW)
    assert [call_wsgi(app).status for _ in range(4)] == [200] * 4
