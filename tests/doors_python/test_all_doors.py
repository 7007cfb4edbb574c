"""The rows of docs/doors.md for every door that runs in this process: each is asked under the same rule, on the same kind of store."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from sluicegate.clock import ManualClock
from sluicegate.doors.asgi import RateLimitMiddleware
from sluicegate.doors.django import RateLimitThrottle, ratelimit
from sluicegate.doors.fastapi import limit
from sluicegate.doors.flask import RateLimit
from sluicegate.doors.gateway import Gateway
from sluicegate.doors.grpc.door import GrpcDoor
from sluicegate.doors.grpc.json_form import request_of_json, response_as_json
from sluicegate.doors.http.door import HttpDoor
from sluicegate.doors.listen import Address, open_listener
from sluicegate.doors.web.declared import no_rules
from sluicegate.doors.wsgi import RateLimitMiddleware as WsgiMiddleware
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Ask = Callable[[], Awaitable[Any]]
Make = Callable[[str, FlakyStore], Awaitable[Ask]]
"""A door whose rule has this policy, on this store."""

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
ASKED = json.dumps({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}).encode()
HTTP: dict[str, tuple[str, str, dict[str, Any]]] = {
    "HTTP `/v1/check`": ("POST", "/v1/check", {"json": {"facts": {"method": "GET", "path": "/"}}}),
    "HTTP `/json`": ("POST", "/json", {"content": ASKED}),
    "HTTP `/authz/envoy`": ("GET", "/authz/envoy/", {}),
    "HTTP `/authz/nginx`": ("GET", "/authz/nginx", {"headers": {"X-Original-Method": "GET", "X-Original-URI": "/"}}),
    "HTTP `/authz/forward`": (
        "GET",
        "/authz/forward",
        {"headers": {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/"}},
    ),
}


def limiter_of(policy: str, store: FlakyStore, clock: ManualClock) -> Limiter:
    """The rule of the page."""
    text = f"version: 1\nrules:\n  - {{name: small, quota: 1/minute, on_store_failure: {policy}}}\n"
    return Limiter.from_rules(load_rules(text, "rules.yaml"), store, clock)


@pytest.fixture
async def at_end() -> AsyncIterator[AsyncExitStack]:
    """What is to be done when the test is over."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def fill(doors_page: Any, clock: ManualClock) -> Callable[[str, Make], Awaitable[None]]:
    """Ask a door five times under each policy that matters, and add its row to the page."""

    async def asked(make: Make, policy: str, outages: tuple[bool, ...]) -> list[Any]:
        store = FlakyStore(MemoryStore(clock))
        ask = await make(policy, store)
        answers = []
        for store.down in outages:
            answers.append(await ask())
        return answers

    async def fill(door: str, make: Make) -> None:
        doors_page.add(
            door,
            await asked(make, "closed", (False, False, True)),
            await asked(make, "local", (True, True)),
            await asked(make, "open", (True, True)),
        )

    return fill


@pytest.fixture
def over_http(said: Any, at_end: AsyncExitStack) -> Callable[..., Ask]:
    """Asks a port of 127.0.0.1."""

    def ready(port: int, method: str = "GET", path: str = "/", **options: Any) -> Ask:
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60)
        at_end.push_async_callback(client.aclose)

        async def ask() -> Any:
            answer = await client.request(method, path, **options)
            if path != "/json":
                return said(str(answer.status_code), dict(answer.headers), answer.content)
            return said(str(answer.status_code), *for_the_client(answer.content, dict(answer.headers)))

        return ask

    return ready


def for_the_client(document: bytes, otherwise: dict[str, str]) -> tuple[dict[str, str], bytes]:
    """The fields and the body that a rate limit service wants its caller's client to get."""
    read = json.loads(document)
    if "overallCode" not in read:
        return otherwise, document
    fields = {each["key"].lower(): each["value"] for each in read.get("responseHeadersToAdd", ())}
    return fields, b64decode(read.get("rawBody", ""))


@pytest.mark.parametrize("door", HTTP)
async def test_doors_of_the_api(
    fill: Any, doors_page: Any, over_http: Any, at_end: AsyncExitStack, clock: ManualClock, door: str
) -> None:
    """What the decision API says to programs and to proxies is what the page says."""
    method, path, options = HTTP[door]

    async def make(policy: str, store: FlakyStore) -> Ask:
        made = HttpDoor(
            limiter_of(policy, store, clock),
            clock=clock,
            ready=lambda: (True, {}),
            metrics=lambda: ("text/plain", b""),
        )
        listener = await open_listener(Address("127.0.0.1", 0), made.protocol_factory)
        at_end.push_async_callback(made.connections.drain, 1)
        at_end.callback(listener.close)
        ask: Ask = over_http(listener.address.port, method, path, **options)
        return ask

    await fill(door, make)
    doors_page.compare()


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
async def test_the_rate_limit_service(
    fill: Any, doors_page: Any, said: Any, at_end: AsyncExitStack, clock: ManualClock, engine: str
) -> None:
    """What either engine says to Envoy is what the page says."""

    async def make(policy: str, store: FlakyStore) -> Ask:
        made = GrpcDoor(limiter_of(policy, store, clock), clock=clock, ready=lambda: (True, {}), engine=engine)
        listener = await made.open(Address("127.0.0.1", 0))
        at_end.push_async_callback(made.connections.drain, 1)
        at_end.callback(listener.close)
        channel = await at_end.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{listener.address.port}"))

        async def ask() -> Any:
            try:
                message = await channel.unary_unary(RATE_LIMIT)(request_of_json(ASKED), timeout=60)
            except grpc.aio.AioRpcError as error:
                return said(error.code().name, {}, b"")
            document = response_as_json(message)
            return said(json.loads(document)["overallCode"], *for_the_client(document, {}))

        return ask

    await fill("gRPC rate limit service", make)
    doors_page.compare()


async def test_the_gateway(
    fill: Any, doors_page: Any, over_http: Any, at_end: AsyncExitStack, clock: ManualClock
) -> None:
    """What clients of the gateway get is what the page says."""

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await at_end.enter_async_context(await asyncio.start_server(upstream, "127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def make(policy: str, store: FlakyStore) -> Ask:
        gateway = Gateway(limiter_of(policy, store, clock), [url], clock=clock)
        listener = await open_listener(Address("127.0.0.1", 0), gateway.protocol_factory)
        at_end.push_async_callback(gateway.close)
        at_end.callback(listener.close)
        ask: Ask = over_http(listener.address.port)
        return ask

    await fill("gateway", make)
    doors_page.compare()


@pytest.fixture
def over_asgi(said: Any, ask: Callable[..., Awaitable[httpx.Response]]) -> Callable[[Any], Ask]:
    """Asks an ASGI application."""

    def ready(app: Any) -> Ask:
        async def once() -> Any:
            answer = await ask(app)
            return said(str(answer.status_code), dict(answer.headers), answer.content)

        return once

    return ready


@pytest.fixture
def over_wsgi(said: Any, call_wsgi: Callable[..., Any]) -> Callable[[Any], Ask]:
    """Asks a WSGI application."""

    def ready(app: Any) -> Ask:
        async def once() -> Any:
            answer = call_wsgi(app)
            fields = {name.lower(): value for name, value in answer.headers}
            return said(str(answer.status), fields, answer.body)

        return once

    return ready


async def test_middleware(fill: Any, doors_page: Any, over_asgi: Any, over_wsgi: Any, clock: ManualClock) -> None:
    """What the middleware of both protocols and the Flask extension answer is what the page says."""

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def wsgi_page(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b""]

    async def asgi(policy: str, store: FlakyStore) -> Any:
        return over_asgi(RateLimitMiddleware(page, limiter_of(policy, store, clock)))

    async def wsgi(policy: str, store: FlakyStore) -> Any:
        return over_wsgi(WsgiMiddleware(wsgi_page, limiter_of(policy, store, clock)))

    async def flask(policy: str, store: FlakyStore) -> Any:
        app = Flask("page_of_doors")
        app.add_url_rule("/", "home", lambda: "")
        RateLimit(app, limiter=limiter_of(policy, store, clock))
        return over_wsgi(app)

    await fill("ASGI middleware", asgi)
    await fill("WSGI middleware", wsgi)
    await fill("Flask extension", flask)
    doors_page.compare()


async def test_fastapi(fill: Any, doors_page: Any, over_asgi: Any, clock: ManualClock) -> None:
    """What the dependency answers is what the page says."""

    async def make(policy: str, store: FlakyStore) -> Any:
        app = FastAPI()
        limiter = no_rules(store, clock)
        depends = Depends(limit("1/minute", name="small", limiter=limiter, on_store_failure=policy))
        app.get("/", dependencies=[depends])(lambda: "")
        return over_asgi(app)

    await fill("FastAPI dependency", make)
    doors_page.compare()


async def test_django(fill: Any, doors_page: Any, django_site: Any, said: Any, clock: ManualClock) -> None:
    """What Django's middleware and decorator and the throttle answer is what the page says."""
    from django.http import HttpResponse
    from django.urls import path
    from rest_framework.response import Response
    from rest_framework.views import APIView

    def site(view: Any, limiter: Limiter) -> Ask:
        rest = {
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "UNAUTHENTICATED_USER": lambda: SimpleNamespace(is_authenticated=False),
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        }
        client = django_site([path("", view)], awaits=True, SLUICEGATE={"LIMITER": limiter}, REST_FRAMEWORK=rest)

        async def once() -> Any:
            answer = await client.get("/")
            fields = {name.lower(): value for name, value in answer.headers.items()}
            return said(str(answer.status_code), fields, answer.content)

        return once

    async def plain(request: Any) -> HttpResponse:
        return HttpResponse()

    async def middleware(policy: str, store: FlakyStore) -> Ask:
        return site(plain, limiter_of(policy, store, clock))

    async def decorated(policy: str, store: FlakyStore) -> Ask:
        return site(
            ratelimit("1/minute", name=f"small_{policy}", on_store_failure=policy)(plain), no_rules(store, clock)
        )

    async def throttled(policy: str, store: FlakyStore) -> Ask:
        throttle = type(f"Small{policy}", (RateLimitThrottle,), {"rate": "1/minute", "on_store_failure": policy})
        members = {"throttle_classes": [throttle], "get": lambda self, request: Response({})}
        return site(type("Throttled", (APIView,), members).as_view(), no_rules(store, clock))

    await fill("Django middleware", middleware)
    await fill("Django `@ratelimit`", decorated)
    await fill("REST framework throttle", throttled)
    doors_page.compare()
