"""What ``endpoint`` means behind the ASGI middleware: the route template, found as the router finds the route (P71, P73)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router

from sluicegate.doors.asgi import RateLimitMiddleware, RequestLimits
from sluicegate.doors.web.routes import RouteTables
from sluicegate.limiter.limiter import Limiter

Make = Callable[..., Limiter]
Ask = Callable[..., Awaitable[httpx.Response]]
Statuses = Callable[..., Awaitable[list[int]]]

BY_ENDPOINT = "rules: [{name: each, per: [ip, endpoint], quota: 2/minute}]"


async def page(request: Request) -> Response:
    """Shows the template the door found."""
    limits: RequestLimits = request.scope["sluicegate.rate_limit"]
    return PlainTextResponse(str(limits.facts.route))


def starlette_app() -> Starlette:
    """An application with every kind of route."""
    inner = Starlette(routes=[Route("/items/{id:int}", page), Route("/", page)])
    return Starlette(
        routes=[
            Route("/users/me", page),
            Route("/users/{id}", page, methods=["GET"]),
            Route("/users/{name}", page, methods=["POST"]),
            Mount("/sub", inner),
            Mount("/tenants/{tenant}", routes=[Route("/files/{path:path}", page)]),
            Host("other.example", Router([Route("/hosted/{x}", page)])),
            Route("/{rest:path}", page),
        ]
    )


@pytest.mark.parametrize(
    ("method", "path", "template"),
    [
        ("GET", "/users/me", "/users/me"),
        ("GET", "/users/17", "/users/{id}"),
        ("POST", "/users/ann", "/users/{name}"),
        ("DELETE", "/users/ann", "/users/{id}"),
        ("GET", "/sub/items/3", "/sub/items/{id}"),
        ("GET", "/sub/", "/sub/"),
        ("GET", "/sub/nothing", "/sub/**"),
        ("GET", "/tenants/acme/files/a/b/c", "/tenants/{tenant}/files/{path}"),
        ("GET", "/hosted/1", "/{rest}"),
        ("GET", "/anything/else", "/{rest}"),
    ],
)
def test_templates(method: str, path: str, template: str) -> None:
    """The first route that fits path and method wins, a catch-all behind it does not; of mounts the inside counts, too."""
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    tables = RouteTables()
    # No route serves DELETE: the first whose path fits describes the 405.
    assert tables.template(starlette_app(), scope, "") == template


@pytest.mark.parametrize(
    ("host", "path", "template"),
    [
        (b"other.example", "/hosted/1", "other.example/hosted/{x}"),
        (b"OTHER.example:8080", "/hosted/1", "other.example/hosted/{x}"),
        (b"other.example", "/elsewhere", "other.example/**"),
        (b"other.example", "/users/1", "/users/{id}"),
        (b"third.example", "/hosted/1", "/{rest}"),
        (b"\xff", "/hosted/1", "/{rest}"),
    ],
)
def test_routes_of_a_host(host: bytes, path: str, template: str) -> None:
    """The routes of a host are those of requests to it only, in the router's order; the same path on another host is another endpoint."""
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": [(b"host", host)]}
    tables, app = RouteTables(), starlette_app()
    assert [tables.template(app, scope, "") for _ in range(2)] == [template] * 2


def test_the_root_path_is_not_part_of_a_template() -> None:
    """Behind a proxy that keeps a prefix the templates are those of the application."""
    scope = {"type": "http", "method": "GET", "path": "/proxied/users/1", "root_path": "/proxied", "headers": []}
    assert RouteTables().template(starlette_app(), scope, "/proxied") == "/users/{id}"
    other = {**scope, "path": "/proxiedusers/1"}
    assert RouteTables().template(starlette_app(), other, "/proxied") == "/{rest}"


def test_applications_of_another_kind_have_no_templates() -> None:
    """What has no routes that can be read is not guessed at."""
    scope = {"type": "http", "method": "GET", "path": "/x", "root_path": "", "headers": []}
    assert RouteTables().template(object(), scope, "") is None
    assert RouteTables().template(Starlette(routes=[Route("/y", page)]), scope, "") is None


async def test_ids_share_a_counter(by_rules: Make, statuses: Statuses) -> None:
    """P73, P86: ``/users/1`` to ``/users/N`` are one endpoint; who is refused there is not refused on other routes and methods."""
    app = starlette_app()
    app.add_middleware(RateLimitMiddleware, limiter=by_rules(BY_ENDPOINT))
    assert await statuses(app, [f"/users/{number}" for number in range(4)]) == [200, 200, 429, 429]
    assert await statuses(app, ["/users/me", "/sub/items/1", "/sub/items/2", "/sub/items/3"]) == [200, 200, 200, 429]
    assert await statuses(app, ["/users/x"], method="POST") == [200]


async def test_the_raw_path_is_opt_in(by_rules: Make, statuses: Statuses) -> None:
    """With ``endpoint="path"`` every path has a counter of its own; a function gives what it likes."""
    app = RateLimitMiddleware(starlette_app(), by_rules(BY_ENDPOINT), endpoint="path")
    assert await statuses(app, [f"/users/{number}" for number in range(4)]) == [200] * 4
    app = RateLimitMiddleware(starlette_app(), by_rules(BY_ENDPOINT), endpoint=lambda scope: scope["path"][:6])
    assert await statuses(app, ["/users/1", "/users/me", "/user_3"]) == [200, 200, 200]
    assert await statuses(app, ["/users/4", "/user_9"]) == [429, 200]


async def test_unknown_routes_are_never_exempt(by_rules: Make, statuses: Statuses) -> None:
    """P71: what no route serves is counted together, by the pattern of the rule."""
    app = RateLimitMiddleware(Starlette(routes=[Route("/known", page)]), by_rules(BY_ENDPOINT))
    assert await statuses(app, ["/a", "/b", "/c", "/known"]) == [404, 404, 429, 200]


def fastapi_app() -> FastAPI:
    """Routers in routers, and a mounted application."""
    app, outer, inner, mounted = FastAPI(), APIRouter(prefix="/outer"), APIRouter(prefix="/inner"), FastAPI()

    async def endpoint(request: Request) -> str | None:
        limits: RequestLimits = request.scope["sluicegate.rate_limit"]
        return limits.facts.route

    app.get("/plain/{id}")(endpoint)
    inner.get("/deep/{id}")(endpoint)
    outer.get("/flat")(endpoint)
    outer.include_router(inner)
    app.include_router(outer, prefix="/v1")
    app.include_router(inner, prefix="/v2")
    mounted.get("/things/{id}")(endpoint)
    app.mount("/mounted", mounted)
    return app


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/plain/1", "/plain/{id}"),
        ("/v1/outer/flat", "/v1/outer/flat"),
        ("/v1/outer/inner/deep/7", "/v1/outer/inner/deep/{id}"),
        ("/v2/inner/deep/7", "/v2/inner/deep/{id}"),
        ("/mounted/things/7", "/mounted/things/{id}"),
    ],
)
@pytest.mark.parametrize("outside", [True, False])
async def test_included_and_mounted_routes_of_fastapi(
    by_rules: Make, ask: Ask, path: str, template: str, outside: bool
) -> None:
    """P71: routes of included routers and mounted applications are known, wherever the middleware is put, and limited."""
    app: Any = fastapi_app()
    limiter = by_rules(BY_ENDPOINT)
    if outside:
        app = RateLimitMiddleware(app, limiter)
    else:
        app.add_middleware(RateLimitMiddleware, limiter=limiter)
    answers = [await ask(app, path) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json() == template


async def test_routes_added_later_are_known(by_rules: Make, ask: Ask) -> None:
    """A route that is added after the first request is found, too."""
    app = Starlette(routes=[Route("/a/{x}", page)])
    limited = RateLimitMiddleware(app, by_rules(BY_ENDPOINT))
    assert (await ask(limited, "/a/1")).text == "/a/{x}"
    app.router.routes.append(Route("/b/{y}", page))
    assert (await ask(limited, "/b/1")).text == "/b/{y}"


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up paths do not grow the memo beyond its bound, and long ones are not kept at all."""
    monkeypatch.setattr("sluicegate.doors.web.routes.ROUTE_MEMO_MAX", 10)
    tables, app = RouteTables(), starlette_app()
    for number in range(100):
        tables.template(
            app, {"type": "http", "method": "GET", "path": f"/users/{number}", "root_path": "", "headers": []}, ""
        )
        assert len(tables._memo) <= 10
    tables.template(
        app, {"type": "http", "method": "GET", "path": "/users/" + "x" * 300, "root_path": "", "headers": []}, ""
    )
    assert all(len(path) < 300 for *_, path in tables._memo)
