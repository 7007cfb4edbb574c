"""FastAPI: dependencies with the middleware around them and without, on routes, routers and applications."""

# No postponed annotations: FastAPI reads those of endpoints that are made inside tests.
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.security import APIKeyHeader
from pydantic import BaseModel

from sluicegate.clock import ManualClock
from sluicegate.doors.asgi import limit as decorate
from sluicegate.doors.fastapi import RateLimitMiddleware, RequestLimits, limit, no_rules
from sluicegate.errors import ConfigurationError, MissingExtra, RateLimited
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Make = Callable[..., Limiter]
Ask = Callable[..., Awaitable[httpx.Response]]
Statuses = Callable[..., Awaitable[list[int]]]


class Item(BaseModel):
    """What an endpoint returns as data."""

    name: str


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    """Without rules: only dependencies count."""
    return no_rules(clock=clock)


def inside(app: FastAPI, limiter: Limiter) -> FastAPI:
    """The application with the middleware in it."""
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    return app


async def test_a_dependency(limiter: Limiter, ask: Ask) -> None:
    """P77: a dependency demands nothing of the endpoint: it returns data, and the headers are there; refused, a problem document."""
    app = inside(FastAPI(), limiter)

    @app.get("/items/{item_id}", dependencies=[Depends(limit("2/minute"))])
    async def read(item_id: int) -> Item:
        return Item(name=str(item_id))

    first = await ask(app, "/items/1")
    assert (first.json(), first.headers["X-RateLimit-Remaining"]) == ({"name": "1"}, "1")
    assert (await ask(app, "/items/2")).status_code == 200
    refused = await ask(app, "/items/3")
    assert refused.status_code == 429
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.headers["Retry-After"] == refused.headers["X-RateLimit-Reset"] == "30"
    assert (await ask(app, "/items/3", peer="198.51.100.1")).status_code == 200


async def test_without_the_middleware(clock: ManualClock, ask: Ask) -> None:
    """Without it a refusal is FastAPI's own 429 with the headers, and data has them too."""
    app = FastAPI()
    alone = limit("1/minute", name="alone", limiter=no_rules(clock=clock))

    @app.get("/")
    async def read(limits: Annotated[RequestLimits, Depends(alone)]) -> dict[str, Any]:
        return {"remaining": limits.remaining, "rule": limits.rule}

    first, second = await ask(app), await ask(app)
    assert first.json() == {"remaining": 0, "rule": "alone"}
    assert first.headers["X-RateLimit-Limit"] == "1"
    assert second.status_code == 429
    assert second.json()["detail"] == "refused by 'alone': retry after 60 s"
    assert second.headers["Retry-After"] == second.headers["X-RateLimit-Reset"] == "60"


async def test_stacking_charges_each_rule_once(limiter: Limiter, ask: Ask) -> None:
    """P19: one dependency on application, router, route and as a value, plus a decorator, is one charge each; two unnamed ones are two rules."""
    per_minute = limit("5/minute")
    app = FastAPI(dependencies=[Depends(per_minute)])
    router = APIRouter(dependencies=[Depends(per_minute), Depends(limit("9/hour"))])

    @router.get("/", dependencies=[Depends(per_minute)])
    @decorate("7/minute", name="decorated")
    async def read(limits: Annotated[RequestLimits, Depends(per_minute)]) -> list[list[Any]]:
        return [[result.rule, result.remaining] for result in limits.results]

    app.include_router(router)
    inside(app, limiter)
    assert (await ask(app)).json() == [["limit", 4], ["limit-2", 8], ["decorated", 6]]
    assert (await ask(app)).json() == [["limit", 3], ["limit-2", 7], ["decorated", 5]]


async def test_limits_of_routers(limiter: Limiter, statuses: Statuses) -> None:
    """P71, P81: a limit on a router holds for each of its routes, included routers too; unlisted routes are not touched."""
    app, outer, inner = FastAPI(), APIRouter(prefix="/v1", dependencies=[Depends(limit("1/minute"))]), APIRouter()
    inner.add_api_route("/deep/{x}", lambda x: x)
    outer.add_api_route("/flat", lambda: "flat")
    outer.include_router(inner, prefix="/in")
    app.include_router(outer)
    app.add_api_route("/free", lambda: "free")
    inside(app, limiter)
    assert await statuses(app, ["/v1/flat", "/v1/flat", "/v1/in/deep/1", "/v1/in/deep/2", "/free", "/free"]) == [
        200, 429, 200, 429, 200, 200,
    ]  # fmt: skip


async def test_mounted_applications(limiter: Limiter, statuses: Statuses) -> None:
    """P71: a dependency in a mounted application counts by the whole template."""
    app, mounted = FastAPI(), FastAPI()
    mounted.get("/items/{x}", dependencies=[Depends(limit("1/minute"))])(lambda x: x)
    app.mount("/a", mounted)
    app.mount("/b", mounted)
    inside(app, limiter)
    assert await statuses(app, ["/a/items/1", "/a/items/2", "/b/items/1"]) == [200, 429, 200]


async def test_sync_endpoints_and_streams(limiter: Limiter, ask: Ask) -> None:
    """Plain endpoints run in a thread and streams stream, under a dependency as under a decorator."""
    app = FastAPI()

    @app.get("/stream", dependencies=[Depends(limit("1/minute"))])
    def stream() -> StreamingResponse:
        return StreamingResponse((f"{n};" for n in range(10)), media_type="text/event-stream")

    @app.get("/plain")
    @decorate("1/minute")
    def plain(q: str = "x") -> str:
        return q

    inside(app, limiter)
    streamed = await ask(app, "/stream")
    assert (streamed.text, streamed.headers["X-RateLimit-Remaining"]) == ("".join(f"{n};" for n in range(10)), "0")
    assert (await ask(app, "/stream")).status_code == 429
    answers = [await ask(app, "/plain?q=7") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].json() == "7"


async def test_keys_and_costs(limiter: Limiter, ask: Ask) -> None:
    """Key and cost functions get the request and may be coroutine functions."""

    async def key(request: Request) -> str | None:
        return request.headers.get("X-Key")

    def cost(request: Request) -> int:
        return int(request.query_params.get("n", 1))

    app = FastAPI()
    app.get("/", dependencies=[Depends(limit("4/minute", key=key, cost=cost))])(lambda: "ok")
    inside(app, limiter)

    async def status(url: str, name: str) -> int:
        return (await ask(app, url, headers={"X-Key": name})).status_code

    assert [await status(*each) for each in (("/?n=3", "a"), ("/?n=3", "a"), ("/?n=1", "a"), ("/", "b"))] == [
        200, 429, 200, 200,
    ]  # fmt: skip


async def test_refusals_are_handled_as_the_application_likes(limiter: Limiter, ask: Ask) -> None:
    """An exception handler for ``RateLimited`` gives the answer, which gets the rate headers."""
    app = FastAPI()

    @app.exception_handler(RateLimited)
    async def own(request: Request, error: RateLimited) -> JSONResponse:
        return JSONResponse({"again_in_s": error.retry_after_s, "rule": error.rule}, 429)

    app.get("/", dependencies=[Depends(limit("1/minute"))])(lambda: "ok")
    inside(app, limiter)
    await ask(app)
    refused = await ask(app)
    assert refused.json() == {"again_in_s": 60.0, "rule": "limit"}
    assert refused.headers["Retry-After"] == "60"


async def test_dependencies_run_in_the_order_they_are_listed(limiter: Limiter, statuses: Statuses) -> None:
    """What refuses before the limit, such as a missing key, is not charged."""
    app = FastAPI()
    secured = [Depends(APIKeyHeader(name="X-Key")), Depends(limit("1/minute"))]
    app.get("/", dependencies=secured)(lambda: "ok")
    inside(app, limiter)
    assert await statuses(app, ["/"] * 3) in ([401] * 3, [403] * 3)
    assert await statuses(app, ["/"] * 2, headers={"X-Key": "k"}) == [200, 429]


async def test_failures(clock: ManualClock, ask: Ask) -> None:
    """P47: a store that fails is 503 where the limit fails closed, with the middleware and without, and never a 500."""
    store = FlakyStore(MemoryStore(clock))
    store.down = True
    limiter = no_rules(store, clock)
    for around in (True, False):
        app = FastAPI()
        closed = limit("5/minute", on_store_failure="closed", limiter=limiter)
        app.get("/shut", dependencies=[Depends(closed)])(lambda: "ok")
        app.get("/local", dependencies=[Depends(limit("5/minute", limiter=limiter))])(lambda: "ok")
        if around:
            inside(app, limiter)
        shut = await ask(app, "/shut")
        assert shut.status_code == 503
        assert int(shut.headers["Retry-After"]) >= 1
        assert (await ask(app, "/local")).status_code == 200


async def test_the_switch(limiter: Limiter, clock: ManualClock, statuses: Statuses, ask: Ask) -> None:
    """P101: switched off, dependencies let everything pass, send no headers and give a result that allows."""
    alone = no_rules(clock=clock)
    for around in (True, False):
        app = FastAPI()
        checks = limit("1/minute", limiter=None if around else alone)

        @app.get("/")
        async def read(limits: Annotated[RequestLimits, Depends(checks)]) -> bool:
            return limits.allowed

        if around:
            inside(app, limiter)
        switch = limiter if around else alone
        switch.enabled = False
        assert await statuses(app, ["/"] * 3) == [200] * 3
        off = await ask(app)
        assert off.json() is True
        assert "X-RateLimit-Limit" not in off.headers
        switch.enabled = True
        assert await statuses(app, ["/"] * 2) == [200, 429]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"quota": "5 per fortnight"}, "quota"),
        ({"quota": 5}, "quota"),
        ({"quota": "5/minute", "per": "planet"}, "per"),
        ({"quota": "5/minute", "algorithm": "bucket"}, "algorithm"),
        ({"quota": "5/minute", "name": "not a name"}, "name"),
        ({"quota": "5/minute", "cost": 6}, "cost"),
        ({"quota": "5/minute", "per": "user", "on_missing": "share"}, "on_missing"),
        ({"quota": "5/minute", "on_store_failure": "panic"}, "on_store_failure"),
        ({"quota": "5/minute", "limiter": "redis://"}, "limiter"),
        ({"quota": "5/minute", "methods": ["G ET"]}, "methods"),
    ],
)
def test_wrong_limits_fail_where_they_are_written(arguments: dict[str, Any], field: str) -> None:
    """A limit that cannot be read is an error on import of the module that holds it, by the name of the argument."""
    with pytest.raises(ConfigurationError, match=field):
        limit(**arguments)


def test_without_fastapi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the door without FastAPI says which extra to install; the ASGI door needs nothing."""
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "sluicegate.doors.fastapi")
    with pytest.raises(MissingExtra, match=r"sluicegate\[fastapi\]"):
        __import__("sluicegate.doors.fastapi")


def test_a_refusal_is_a_http_exception_of_its_status(
    clock: ManualClock, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception for applications without the middleware is made one once, with a status; older releases choke on anything else."""
    made: list[object] = []
    original = HTTPException.__init__

    def counted(error: HTTPException, status: int, *more: Any) -> None:
        made.append(status)
        original(error, status, *more)

    monkeypatch.setattr(HTTPException, "__init__", counted)
    app = FastAPI()
    app.get("/", dependencies=[Depends(limit("1/minute", limiter=no_rules(clock=clock)))])(lambda: "ok")

    @app.exception_handler(RateLimited)
    def told(request: Request, error: RateLimited) -> PlainTextResponse:
        return PlainTextResponse(f"{error.rule} {error.retry_after_s:g}", status_code=429)

    answers: list[httpx.Response] = [asyncio.run(ask(app)) for _ in range(2)]
    assert (answers[1].status_code, answers[1].text, made) == (429, "limit 60", [429])
