"""The table of docs/python/README.md: what every door answers, made from answers and compared with the page."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from fastapi import Depends, FastAPI
from flask import Flask

from sluicegate.clock import ManualClock
from sluicegate.doors.asgi import RateLimitMiddleware
from sluicegate.doors.django import RateLimitThrottle, ratelimit
from sluicegate.doors.fastapi import limit
from sluicegate.doors.flask import RateLimit
from sluicegate.doors.web.declared import no_rules
from sluicegate.doors.wsgi import RateLimitMiddleware as WsgiMiddleware
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

PAGE = Path(__file__).parents[2] / "docs" / "python" / "README.md"
CLOSED = {"on_store_failure": "closed"}

Ask = Callable[[], Awaitable[tuple[int, dict[str, str]]]]


def row(door: str, answers: list[tuple[int, dict[str, str]]]) -> str:
    """One line of the table, from an answer that passed, one that was refused, and one without a store."""
    passed, refused, outage = answers
    cells = [door]
    for status, headers in (passed, refused):
        names = {name.lower() for name in headers}
        rate = (
            ["rate headers"] if {f"x-ratelimit-{n}" for n in ("limit", "remaining", "reset", "policy")} <= names else []
        )
        retry = ["Retry-After"] if "retry-after" in names else []
        cells.append(f"{status}: {', '.join(rate + retry)}")
    bodies = {name.lower(): value for name, value in refused[1].items()}
    cells.append(f"`{bodies['content-type'].split(';')[0]}`")
    cells.append(str(outage[0]))
    return f"| {' | '.join(cells)} |"


async def rows_of(door: str, store: FlakyStore, ask: Ask) -> str:
    """Ask three times: the second is over a limit of one, and for the third the store is gone."""
    store.down = False
    answers = [await ask(), await ask()]
    store.down = True
    answers.append(await ask())
    store.down = False
    return row(door, answers)


async def test_the_table_of_doors(
    ask: Callable[..., Awaitable[httpx.Response]], call_wsgi: Any, django_site: Any, clock: ManualClock
) -> None:
    """Status, headers, body and fail mode of each door are those on the page."""
    store = FlakyStore(MemoryStore(clock))

    def quota(name: str) -> Limiter:
        return Limiter.from_quota("1/minute", store=store, clock=clock, name=name, **CLOSED)

    def without() -> Limiter:
        return no_rules(store, clock)

    def asgi(app: Any) -> Ask:
        async def request() -> tuple[int, dict[str, str]]:
            answer = await ask(app)
            return answer.status_code, dict(answer.headers)

        return request

    def wsgi(app: Any) -> Ask:
        async def request() -> tuple[int, dict[str, str]]:
            answer = call_wsgi(app)
            return answer.status, dict(answer.headers)

        return request

    def site(url: str, client: Any) -> Ask:
        async def request() -> tuple[int, dict[str, str]]:
            answer = await client.get(url)
            return answer.status_code, dict(answer.headers)

        return request

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def wsgi_page(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b""]

    flask = Flask("flask_table")
    flask.add_url_rule("/", "home", lambda: "")
    RateLimit(flask, limiter=quota("flask"))

    around, alone = FastAPI(), FastAPI()
    around.get("/", dependencies=[Depends(limit("1/minute", name="around", **CLOSED))])(lambda: "")
    around.add_middleware(RateLimitMiddleware, limiter=without())
    alone.get("/", dependencies=[Depends(limit("1/minute", name="alone", limiter=without(), **CLOSED))])(lambda: "")

    shown = [
        await rows_of("ASGI middleware", store, asgi(RateLimitMiddleware(page, quota("asgi")))),
        await rows_of("WSGI middleware", store, wsgi(WsgiMiddleware(wsgi_page, quota("wsgi")))),
        await rows_of("Flask extension", store, wsgi(flask)),
        await rows_of("FastAPI dependency, inside the middleware", store, asgi(around)),
        await rows_of("FastAPI dependency alone", store, asgi(alone)),
        *[await rows_of(name, store, site(url, client)) for name, url, client in _django(django_site, without())],
    ]
    table = re.findall(r"^\| (?!door|-).*\|$", PAGE.read_text().partition("## What clients see")[2], re.MULTILINE)
    assert [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in table] == shown


def _django(django_site: Any, limiter: Limiter) -> list[tuple[str, str, Any]]:
    from django.http import HttpResponse
    from django.urls import path
    from rest_framework.response import Response
    from rest_framework.views import APIView

    @ratelimit("1/minute", name="view", **CLOSED)
    async def view(request: Any) -> HttpResponse:
        return HttpResponse()

    class Throttle(RateLimitThrottle):
        rate = "1/minute"
        on_store_failure = "closed"

    def get(self: Any, request: Any) -> Any:
        return Response({})

    throttled = type("Throttled", (APIView,), {"throttle_classes": [Throttle], "get": get}).as_view()
    client = django_site(
        [path("view/", view), path("throttled/", throttled)],
        awaits=True,
        SLUICEGATE={"LIMITER": limiter},
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "UNAUTHENTICATED_USER": lambda: SimpleNamespace(is_authenticated=False),
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        },
    )
    return [
        ("Django middleware and `@ratelimit`", "/view/", client),
        ("REST framework throttle", "/throttled/", client),
    ]
