"""The Python doors on a store over the network: awaited where the door can, all gates on it, and never a 500 when it goes."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluicegate.doors.asgi import RateLimitMiddleware
from sluicegate.doors.asgi import limit as decorated
from sluicegate.doors.fastapi import limit
from sluicegate.doors.flask import RateLimit
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

Ask = Callable[..., Awaitable[httpx.Response]]

RULES = """
version: 1
rules:
  - {name: shut, match: {path: /shut}, per: [ip], quota: 5/minute, on_store_failure: closed}
  - {name: each, per: [ip], quota: 4/minute}
"""


@pytest.fixture
def redis_server(start_redis: Any) -> Any:
    """A Redis of this test's own, because some tests end it."""
    return start_redis()


@pytest.fixture
def limiter(redis_server: Any) -> Iterator[Limiter]:
    """A limiter whose counters are in it."""
    with Limiter.from_rules(load_rules(RULES, "test"), redis_server.url) as made:
        yield made


def site(limiter: Limiter) -> FastAPI:
    """One route with a limit of its own inside the middleware."""
    app = FastAPI()
    app.get("/login", dependencies=[Depends(limit("2/minute", name="login"))])(lambda: "in")
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    return app


async def test_gates_share_the_store(limiter: Limiter, redis_server: Any, ask: Ask) -> None:
    """Middleware and dependency count in the same Redis; what a dependency refuses is given back to the rules (P10)."""
    app = site(limiter)
    answers = [await ask(app, "/login") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["violated-policies"] == ["login"]
    assert (await ask(app, "/nothing")).headers["X-RateLimit-Remaining"] == "1"
    other = Limiter.from_rules(load_rules(RULES, "test"), redis_server.url)
    try:
        assert (await ask(site(other), "/login")).status_code == 429
    finally:
        await other.aclose()
    await limiter.aclose()


async def test_a_store_that_dies(limiter: Limiter, redis_server: Any, ask: Ask) -> None:
    """P47, P48: when the server is gone rules are decided by their policies, 503 only where they say so; refunds fail quietly."""
    app = site(limiter)
    assert (await ask(app, "/login")).status_code == 200
    os.kill(redis_server.pid, signal.SIGKILL)
    statuses = [(await ask(app, path)).status_code for path in ("/login", "/nothing", "/shut", "/login", "/login")]
    assert statuses[1:3] == [404, 503]
    assert set(statuses) <= {200, 404, 429, 503}
    assert statuses[-1] == 429
    await limiter.aclose()


def test_flask_on_a_shared_store(limiter: Limiter, redis_server: Any) -> None:
    """A sync door uses the same counters, and says that it cannot forget those of others."""
    from flask import Flask

    app = Flask(__name__)
    rate_limit = RateLimit(app, limiter=limiter)
    app.add_url_rule("/", "home", rate_limit.limit("3/minute", name="home")(lambda: "home"))
    client = app.test_client()
    assert [client.get("/").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert limiter.peek({"path": "/", "ip": "127.0.0.1"}).remaining == 1
    with pytest.raises(ValueError, match="shared"):
        rate_limit.reset()


async def test_limits_that_are_asked_at_once(limiter: Limiter, ask: Ask) -> None:
    """Tasks of one request that meet limits at the same time are decided one after the other: each rule once, and nothing for a refusal."""

    @decorated("2/hour", name="narrow", shared=True)
    async def narrow() -> None: ...

    @decorated("9/hour", name="wide", shared=True)
    async def wide() -> None: ...

    async def whole(request: Request) -> Response:
        await asyncio.gather(narrow(), wide(), wide())
        return PlainTextResponse("whole")

    async def left(request: Request) -> Response:
        await wide()
        found = {result.rule: result.remaining for result in request.state.rate_limit.results}
        return PlainTextResponse(str(found["wide"]))

    app = Starlette(routes=[Route("/", whole), Route("/left", left)])
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    assert [(await ask(app, "/")).status_code for _ in range(4)] == [200, 200, 429, 429]
    assert (await ask(app, "/left")).text == "6"
    await limiter.aclose()
