"""What a developer gets wrong: said where it is written, or an error of the application; never a limit that is not there."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluicegate.clock import ManualClock
from sluicegate.doors.asgi import Limit, RateLimitMiddleware, limit, no_rules
from sluicegate.doors.django import ratelimit
from sluicegate.doors.fastapi import limit as dependency
from sluicegate.doors.flask import RateLimit
from sluicegate.doors.wsgi import RateLimitMiddleware as WsgiMiddleware
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter

Make = Callable[..., Limiter]
Statuses = Callable[..., Awaitable[list[int]]]


async def page(request: Request) -> Response:
    """A page."""
    return PlainTextResponse("page")


async def template(scope: Any) -> str:
    """A template that nobody awaits."""
    return "/"


WRONG: list[dict[str, Any]] = [{"key": "ip"}, {"on_refused": "x"}, {"held_max": -1}, {"held_max": "8"}, {"headers": 5}]


@pytest.mark.parametrize("options", [*WRONG, {"messages": 5}, {"endpoint": template}, {"random": 5}])
def test_settings_of_the_asgi_middleware(by_quota: Make, options: dict[str, Any]) -> None:
    """A setting of the wrong kind is an error at construction that names it, not at the first refusal."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RateLimitMiddleware(page, by_quota("1/minute"), **options)


@pytest.mark.parametrize("options", [*WRONG, {"endpoint": "/x"}])
def test_settings_of_the_wsgi_middleware(by_quota: Make, options: dict[str, Any]) -> None:
    """A setting of the wrong kind is an error at construction that names it."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        WsgiMiddleware(lambda environ, start: [], by_quota("1/minute"), **options)


@pytest.mark.parametrize("options", [*WRONG, {"default": 5}, {"limiter": "memory://"}, {"per": "usr"}])
def test_settings_of_the_flask_extension(by_quota: Make, options: dict[str, Any]) -> None:
    """A setting of the wrong kind is an error at construction that names it."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RateLimit(**{"limiter": by_quota("1/minute"), **options})


@pytest.mark.parametrize(
    "options",
    [
        {"key": "ip"},
        {"per": 5},
        {"cost": 1.5},
        {"cost": "2"},
        {"cost": True},
        {"methods": [5]},
        {"methods": "GET,POST"},
        {"on_missing": "pass"},
    ],
)
def test_limits(options: dict[str, Any]) -> None:
    """An argument that could not mean anything is an error where it is written, never a limit that limits nothing."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Limit("1/minute", **options)


def test_one_method_is_a_text() -> None:
    """``methods="POST"`` is the method POST, not four methods of a letter each."""
    assert Limit("1/minute", methods="POST").methods == ("POST",)


@pytest.mark.parametrize("decorate", [limit("1/minute"), ratelimit("1/minute"), RateLimit().limit("1/minute")])
@pytest.mark.parametrize("target", [type("View", (), {}), "view"])
def test_limits_stand_on_functions(decorate: Any, target: Any) -> None:
    """A class would be limited when it is made, not when it serves; it is refused at decoration, as is what cannot be called."""
    with pytest.raises(ConfigurationError, match="function"):
        decorate(target)


def test_partials_can_be_limited(by_quota: Make) -> None:
    """What can be called need not have a name."""
    app = Flask("partials")
    rate_limit = RateLimit(app, limiter=by_quota("9/minute"))
    app.add_url_rule("/", "home", rate_limit.limit("1/minute")(partial(str, "home")))
    client = app.test_client()
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]


def test_stacked_limits_of_one_name_must_say_the_same() -> None:
    """Limits of one name are one rule, so a second one that says something else would be ignored; it is an error at decoration."""
    with pytest.raises(ConfigurationError, match="login"):

        @limit("3/minute", name="login")
        @limit("100/day", name="login")
        def endpoint() -> None: ...

    limit("3/minute", name="login")(limit("3/minute", name="login")(endpoint_of_nobody))


def endpoint_of_nobody() -> None:
    """Something to decorate."""


async def test_limits_of_one_name_in_one_request_must_say_the_same(clock: ManualClock, statuses: Statuses) -> None:
    """Where a router and a route name two different limits alike, requests fail until one has another name."""
    app = FastAPI(dependencies=[Depends(dependency("5/minute", name="api", limiter=no_rules(clock=clock)))])
    other = dependency("1/minute", name="api", limiter=None)
    app.add_middleware(RateLimitMiddleware, limiter=no_rules(clock=clock))
    app.get("/apart", dependencies=[Depends(other)])(endpoint_of_nobody)
    assert await statuses(app, ["/apart", "/apart"]) == [200, 429]

    clash = FastAPI(dependencies=[Depends(dependency("5/minute", name="api"))])
    clash.add_middleware(RateLimitMiddleware, limiter=no_rules(clock=clock))
    clash.get("/", dependencies=[Depends(other)])(endpoint_of_nobody)
    with pytest.raises(ConfigurationError, match=r"5/minute.*1/minute"):
        await statuses(clash, ["/"])


async def test_functions_of_one_name_are_apart_where_no_route_is_known(clock: ManualClock, statuses: Statuses) -> None:
    """Two modules may each have an ``index``; without route templates the function itself is the endpoint."""

    def made_in(module: str) -> Any:
        async def index() -> None: ...

        index.__module__, index.__qualname__ = module, "index"
        return limit("1/minute")(index)

    shop, blog = made_in("shop"), made_in("blog")

    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await (shop if scope["path"] == "/shop" else blog)()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = RateLimitMiddleware(bare, no_rules(clock=clock))
    assert await statuses(app, ["/shop", "/blog", "/shop", "/blog"]) == [200, 200, 429, 429]


async def test_a_refusal_inside_a_task_group(clock: ManualClock, statuses: Statuses) -> None:
    """A task group wraps what its tasks raise; a refusal in it is 429, but not where a task failed, too."""

    @limit("1/minute")
    async def part() -> None: ...

    async def broken() -> None:
        raise ZeroDivisionError

    async def whole(request: Request) -> Response:
        async with asyncio.TaskGroup() as group:
            group.create_task(part())
            if request.url.path == "/broken":
                group.create_task(broken())
        return PlainTextResponse("whole")

    app = Starlette(routes=[Route("/", whole), Route("/broken", whole)])
    app.add_middleware(RateLimitMiddleware, limiter=no_rules(clock=clock))
    assert await statuses(app, ["/", "/"]) == [200, 429]
    for _ in range(2):
        with pytest.raises(ExceptionGroup) as failed:
            await statuses(app, ["/broken"])
    assert failed.value.subgroup(ZeroDivisionError) is not None


@pytest.mark.parametrize("cost", [0, -1, 1.5, 10**30])
async def test_a_cost_that_is_none_is_a_bad_request(
    clock: ManualClock, ask: Callable[..., Awaitable[Any]], cost: Any
) -> None:
    """What a cost function makes of a request can be out of range: 400 by decorators and dependencies, with and without the middleware."""

    @limit("9/minute", cost=lambda scope: cost)
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("never")

    limited = Depends(dependency("9/minute", cost=lambda request: cost))
    for around in (True, False):
        app = FastAPI()
        app.get("/dependency", dependencies=[limited])(endpoint_of_nobody)
        if around:
            app.add_middleware(RateLimitMiddleware, limiter=no_rules(clock=clock))
            app.router.routes.append(Route("/decorator", endpoint))
            answer = await ask(app, "/decorator")
            assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
            assert answer.json()["detail"].startswith("cost: ")
        assert (await ask(app, "/dependency")).status_code == 400


@pytest.mark.parametrize("gives", [{"user": 17}, {"tier": b"paid"}])
async def test_facts_that_are_no_text(by_rules: Make, ask: Callable[..., Awaitable[Any]], gives: Any) -> None:
    """A number as the user is the application's error, not a bad request of its client."""
    limited = RateLimitMiddleware(page, by_rules("rules: [{name: all, quota: 5/second}]"), identify=lambda scope: gives)
    with pytest.raises(ConfigurationError, match=next(iter(gives))):
        await ask(limited)


async def test_an_endpoint_that_is_no_text(by_rules: Make, ask: Callable[..., Awaitable[Any]]) -> None:
    """A function for the endpoint that gives something else is the application's error."""
    rules = "rules: [{name: all, per: [ip, endpoint], quota: 5/second}]"
    with pytest.raises(ConfigurationError, match="endpoint"):
        await ask(RateLimitMiddleware(page, by_rules(rules), endpoint=lambda scope: 5))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("gives", ["no", 429, PlainTextResponse])
async def test_a_refusal_handler_that_gives_no_application(
    by_quota: Make, ask: Callable[..., Awaitable[Any]], call_wsgi: Any, gives: Any
) -> None:
    """What cannot answer a request is the application's error, and says what was given."""
    banned = by_quota("0")
    with pytest.raises(ConfigurationError, match="on_refused"):
        await ask(RateLimitMiddleware(page, banned, on_refused=lambda scope, limits: gives))
    with pytest.raises(ConfigurationError, match="on_refused"):
        call_wsgi(WsgiMiddleware(lambda environ, start: [], banned, on_refused=lambda environ, limits: gives))


def test_annotations_that_are_texts_stay_legible() -> None:
    """A framework reads the signature of a limited function as that of the function itself; a name not known yet is left alone."""

    @limit("1/minute")
    async def endpoint(request: Request) -> Response:
        raise AssertionError("only its signature is looked at")

    @limit("1/minute")
    def early(later: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    found = inspect.signature(endpoint)
    assert (found.parameters["request"].annotation, found.return_annotation) == (Request, Response)
    assert inspect.signature(early).parameters["later"].annotation == "Later"
