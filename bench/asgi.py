"""What the ASGI door costs a request, beside a bare application and beside other limiters on the same one.

    python bench/asgi.py [--rounds 15] [--requests 1500]

Everything runs in one process: each request is a call of the application with a scope such as a server makes, an empty ``receive``
and a ``send`` that throws away, so nothing but the application and its limiter is measured. Clients have 1,000 addresses; counters are in
memory. Each round goes through all contenders, every other one backwards, and ratios are taken within a round. Times are processor time
of the thread.

- A bare Starlette application with one route, and the same inside the middleware with a quota, with two rules of which one counts by
  route template, and without rate headers. The door's cost is the difference.
- The same application with slowapi: its ASGI middleware and a default limit per address, with headers.
- A FastAPI application with one route: ours as middleware and as a dependency inside it, and fastapi-limiter's dependency, which keeps one
  bucket for all clients and sends no headers. ``bare FastAPI`` shows what of these is the framework's.

*Within the limit* every request passes, so each ratio holds the application's own time on both sides: on FastAPI a limiter that cost nothing at
all would be less than twice as fast as one that costs as much as the framework. *Over the limit* every request is refused, which is when a
limiter has to be fast; there the middleware answers before the framework begins.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from _report import Figure, of_rates, of_ratios, tell
from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Duration, Rate
from pyrate_limiter import Limiter as PyrateLimiter
from slowapi import Limiter as SlowLimiter
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sluicegate import Limiter, load_rules
from sluicegate.doors.asgi import RateLimitMiddleware, no_rules
from sluicegate.doors.fastapi import limit

LIMIT = 1_000_000
NOTHING = 1
"""A limit that every client is over after its first request."""
CLIENTS = 1_000
ADDED_US_GOAL = 25.0
RATIO_GOAL = 2.0
RULES = f"""
version: 1
rules:
  - {{name: everything, quota: {LIMIT}/second}}
  - {{name: pages, per: [ip, endpoint], quota: {LIMIT}/minute}}
"""


async def page(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


def starlette(limiter: Limiter | None = None, headers: str = "x-ratelimit") -> Starlette:
    app = Starlette(routes=[Route("/items/{item_id}", page)])
    if limiter is not None:
        app.add_middleware(RateLimitMiddleware, limiter=limiter, headers=headers)
    return app


def with_slowapi(limit_per_hour: int) -> Starlette:
    app = Starlette(routes=[Route("/items/{item_id}", page)])
    quota = f"{limit_per_hour}/hour"
    app.state.limiter = SlowLimiter(key_func=get_remote_address, default_limits=[quota], headers_enabled=True)
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


def fastapi(*dependencies: Any, limiter: Limiter | None = None) -> FastAPI:
    app = FastAPI(openapi_url=None)

    async def endpoint() -> PlainTextResponse:
        return PlainTextResponse("ok")

    app.add_api_route("/items/{item_id}", endpoint, dependencies=[Depends(each) for each in dependencies])
    if limiter is not None:
        app.add_middleware(RateLimitMiddleware, limiter=limiter)
    return app


def fastapi_limiter(limit_per_hour: int) -> FastAPI:
    return fastapi(RateLimiter(limiter=PyrateLimiter(Rate(limit_per_hour, Duration.HOUR))))


def contenders() -> dict[str, Any]:
    plenty, nothing = f"{LIMIT}/hour", f"{NOTHING}/hour"
    return {
        "bare Starlette": starlette(),
        "quota": starlette(Limiter.from_quota(plenty)),
        "two rules": starlette(Limiter.from_rules(load_rules(RULES, "bench"))),
        "no headers": starlette(Limiter.from_quota(plenty), headers="off"),
        "slowapi": with_slowapi(LIMIT),
        "quota, over": starlette(Limiter.from_quota(nothing)),
        "slowapi, over": with_slowapi(NOTHING),
        "bare FastAPI": fastapi(),
        "FastAPI middleware": fastapi(limiter=Limiter.from_quota(plenty)),
        "FastAPI dependency": fastapi(limit(plenty), limiter=no_rules()),
        "fastapi-limiter": fastapi_limiter(LIMIT),
        "FastAPI middleware, over": fastapi(limiter=Limiter.from_quota(nothing)),
        "FastAPI dependency, over": fastapi(limit(nothing), limiter=no_rules()),
        "fastapi-limiter, over": fastapi_limiter(NOTHING),
    }


def scope(number: int) -> dict[str, Any]:
    client = number % CLIENTS
    path = f"/items/{number % 100}"
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"app.example"),
            (b"user-agent", b"bench"),
            (b"accept", b"*/*"),
            (b"accept-encoding", b"gzip, deflate"),
            (b"connection", b"keep-alive"),
        ],
        "client": (f"10.0.{client >> 8}.{client & 255}", 40_000),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def one_pass(app: Any, requests: int, *, refused: bool) -> float:
    """Microseconds a request takes. Scopes are thrown away as a server does."""
    statuses: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scopes = [scope(number) for number in range(requests)]
    begun_ns = time.thread_time_ns()
    while scopes:
        await app(scopes.pop(), receive, send)
    taken_us = (time.thread_time_ns() - begun_ns) / requests / 1_000
    if set(statuses) != {429 if refused else 200} or len(statuses) != requests:
        raise SystemExit(f"{app!r} answered {set(statuses)}")
    return taken_us


async def spend(app: Any) -> None:
    """Let every client spend what it has."""

    async def send(_: dict[str, Any]) -> None:
        pass

    for number in range(2 * CLIENTS):
        await app(scope(number), receive, send)


async def measure(apps: dict[str, Any], rounds: int, requests: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in apps}
    for app in apps.values():
        await spend(app)
    order = list(apps.items())
    for _ in range(rounds):
        for name, app in order:
            times[name].append(await one_pass(app, requests, refused=name.endswith(", over")))
        order.reverse()
    return times


def figures(times: dict[str, list[float]]) -> list[Figure]:
    def added(name: str, bare: str = "bare Starlette") -> list[float]:
        return [a - b for a, b in zip(times[name], times[bare], strict=True)]

    def ratio(name: str, over: str, under: str, goal: float | None = RATIO_GOAL) -> Figure:
        return of_ratios(name, times[over], times[under], goal)

    return [
        of_rates("bare Starlette", times["bare Starlette"], "us"),
        of_rates("added by sluicegate, a quota", added("quota"), "us", ADDED_US_GOAL, at_most=True),
        of_rates("added by sluicegate, two rules", added("two rules"), "us", ADDED_US_GOAL, at_most=True),
        of_rates("added by sluicegate, no headers", added("no headers"), "us"),
        of_rates("added by slowapi", added("slowapi"), "us"),
        ratio("over slowapi, within the limit", "slowapi", "quota"),
        ratio("over slowapi, over the limit", "slowapi, over", "quota, over"),
        of_rates("bare FastAPI", times["bare FastAPI"], "us"),
        of_rates("added by sluicegate, middleware", added("FastAPI middleware", "bare FastAPI"), "us"),
        of_rates("added by sluicegate, dependency", added("FastAPI dependency", "bare FastAPI"), "us"),
        of_rates("added by fastapi-limiter", added("fastapi-limiter", "bare FastAPI"), "us"),
        ratio("over fastapi-limiter, within the limit", "fastapi-limiter", "FastAPI middleware", None),
        ratio("over fastapi-limiter, over the limit", "fastapi-limiter, over", "FastAPI middleware, over"),
        ratio("dependency over fastapi-limiter, over", "fastapi-limiter, over", "FastAPI dependency, over", None),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=1_500)
    asked = parser.parse_args()
    tell(figures(asyncio.run(measure(contenders(), asked.rounds, asked.requests))))


if __name__ == "__main__":
    main()
