"""The ASGI door under a real server, and inside frameworks that are not Starlette."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import websockets
from fastapi import Depends, FastAPI
from litestar import Litestar, get
from litestar import Request as LitestarRequest
from litestar.middleware import DefineMiddleware
from quart import Quart, websocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from sluicegate.doors.asgi import RateLimitMiddleware, limit
from sluicegate.doors.fastapi import limit as dependency
from sluicegate.errors import RateLimited
from sluicegate.limiter.limiter import Limiter

Make = Callable[..., Limiter]
Ask = Callable[..., Awaitable[httpx.Response]]


async def who(request: Request) -> Response:
    """Shows the client."""
    return JSONResponse({"ip": request.state.rate_limit.facts.ip, "client": request.client and request.client.host})


async def endless(request: Request) -> Response:
    """Streams until nobody listens, and notes that it has ended."""

    async def body() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: tick\n\n"
                await asyncio.sleep(0.01)
        finally:
            request.app.state.ended.set()

    return StreamingResponse(body(), media_type="text/event-stream")


async def echo(websocket: WebSocket) -> None:
    """Answers every text with itself."""
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


def application() -> Starlette:
    """What is served here."""
    app = Starlette(routes=[Route("/", who), Route("/endless", endless), WebSocketRoute("/ws", echo)])
    app.state.ended = asyncio.Event()
    return app


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Starts uvicorn on a free port of 127.0.0.1, or on a Unix socket; gives the address."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(app: Any, *, unix: bool = False, **options: Any) -> str:
            listener = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
            path = str(tmp_path / "app.sock")
            listener.bind(path if unix else ("127.0.0.1", 0))
            stack.callback(listener.close)
            config = uvicorn.Config(
                app, log_level="warning", lifespan="off", proxy_headers=False, ws="websockets-sansio", **options
            )
            server = uvicorn.Server(config)
            running = asyncio.create_task(server.serve(sockets=[listener]))

            async def stop() -> None:
                server.should_exit = server.force_exit = True
                await running

            stack.push_async_callback(stop)
            while not server.started:
                await asyncio.sleep(0.01)
            return path if unix else f"127.0.0.1:{listener.getsockname()[1]}"

        yield start


async def test_served(serve: Any, by_quota: Make) -> None:
    """Over a socket the same holds: headers on both, 429 with a body, and the connection goes on."""
    address = await serve(RateLimitMiddleware(application(), by_quota("2/minute")))
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        answers = [await client.get("/", headers={"X-Forwarded-For": f"192.0.2.{n}"}) for n in range(3)]
        upload = await client.post("/", content=b"x" * 100_000)
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json() == {"ip": "127.0.0.1", "client": "127.0.0.1"}
    assert answers[2].json()["status"] == 429
    assert upload.status_code == 429


async def test_a_unix_socket(serve: Any, by_rules: Make) -> None:
    """Behind a trusted proxy on a Unix socket the client is whom the proxy names."""
    limiter = by_rules(
        "identity: {trusted_peers: [unix], ip: {header: X-Forwarded-For}}\nrules: [{name: a, per: [ip], quota: 1/minute}]"
    )
    address = await serve(RateLimitMiddleware(application(), limiter), unix=True)
    transport = httpx.AsyncHTTPTransport(uds=address)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        answers = [await client.get("/", headers={"X-Forwarded-For": ip}) for ip in ("1.1.1.1", "1.1.1.1", "2.2.2.2")]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert answers[2].json()["ip"] == "2.2.2.2"


async def test_a_client_that_leaves(serve: Any, by_quota: Make) -> None:
    """P70: an event stream ends when its client does."""
    app = application()
    address = await serve(RateLimitMiddleware(app, by_quota("5/minute")))
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        async with client.stream("GET", "/endless") as answer:
            assert answer.headers["X-RateLimit-Remaining"] == "4"
            chunks = answer.aiter_bytes()
            assert b"tick" in await anext(chunks)
            await chunks.aclose()
    await asyncio.wait_for(app.state.ended.wait(), 10)


async def test_websockets_over_the_wire(serve: Any, by_quota: Make) -> None:
    """P75: a refused handshake is 429 with Retry-After for a real client; an admitted one echoes until its messages are too many."""
    address = await serve(RateLimitMiddleware(application(), by_quota("1/minute"), messages="2/minute"))
    async with websockets.connect(f"ws://{address}/ws", proxy=None) as client:
        assert client.response.headers["X-RateLimit-Limit"] == "1"
        for text in ("a", "b"):
            await client.send(text)
            assert await client.recv() == text
        await client.send("c")
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(f"ws://{address}/ws", proxy=None)
    assert refused.value.response.status_code == 429
    assert refused.value.response.headers["Retry-After"] == "60"


@get("/items/{item_id:int}", sync_to_thread=False)
def litestar_item(request: LitestarRequest[Any, Any, Any]) -> dict[str, int]:
    """A Litestar handler."""
    return {"item": request.path_params["item_id"]}


async def test_litestar(by_rules: Make, ask: Ask) -> None:
    """Inside Litestar's stack templates are known; around it rules count by their pattern, and unknown paths are covered."""
    rules = "rules: [{name: each, per: [ip, endpoint], quota: 2/minute}]"
    within = Litestar(
        [litestar_item],
        middleware=[DefineMiddleware(RateLimitMiddleware, limiter=by_rules(rules))],
        openapi_config=None,
        logging_config=None,
    )
    answers = [await ask(within, f"/items/{n}") for n in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["X-RateLimit-Remaining"] == "1"
    around = RateLimitMiddleware(Litestar([litestar_item], openapi_config=None, logging_config=None), by_rules(rules))
    assert [(await ask(around, path)).status_code for path in ("/items/1", "/nothing", "/items/2")] == [200, 404, 429]


async def test_quart(by_quota: Make, ask: Ask) -> None:
    """Around Quart requests, unknown paths and streams are limited."""
    quart = Quart("quart_app")

    @quart.get("/stream")
    async def stream() -> Any:
        async def body() -> AsyncIterator[bytes]:
            for number in range(10):
                yield b"%d;" % number

        return body()

    app = RateLimitMiddleware(quart, by_quota("2/minute"))
    first, second, third = [await ask(app, path) for path in ("/stream", "/nothing", "/stream")]
    assert (first.status_code, first.text) == (200, "".join(f"{n};" for n in range(10)))
    assert (second.status_code, third.status_code) == (404, 429)
    assert first.headers["X-RateLimit-Remaining"] == "1"


async def test_decorators_inside_quart(by_quota: Make, ask: Ask) -> None:
    """A framework that makes a 500 of every exception does not hide a refusal: the door answers in its place."""
    quart = Quart("quart_app")

    @quart.get("/")
    @limit("1/minute")
    async def home() -> str:
        return "home"

    app = RateLimitMiddleware(quart, by_quota("9/minute"))
    first, second = await ask(app), await ask(app)
    assert (first.status_code, first.text) == (200, "home")
    assert (second.status_code, second.headers["Content-Type"]) == (429, "application/problem+json")


@pytest.mark.parametrize("inside", [False, True])
async def test_refusals_do_not_fill_the_log_of_quart(
    by_quota: Make, ask: Ask, caplog: pytest.LogCaptureFixture, inside: bool
) -> None:
    """Quart logs what nobody handles with its traceback; a refusal is no such thing, and is answered as everywhere, by ``on_refused`` too."""
    quart = Quart("quart_app")

    @quart.get("/<path:rest>")
    @limit("1/minute", cost=lambda scope: int(scope["query_string"] or b"1"))
    async def home(rest: str) -> str:
        return "home"

    def own(_scope: Any, _limits: Any) -> Response:
        return JSONResponse({"own": True}, 429)

    if inside:
        quart.asgi_app = RateLimitMiddleware(quart.asgi_app, by_quota("9/minute"), on_refused=own)  # type: ignore[method-assign,assignment]
        app: Any = quart
    else:
        app = RateLimitMiddleware(quart, by_quota("9/minute"), on_refused=own)
    answers = [await ask(app, path) for path in ("/x", "/x", "/x", "/x?0")]
    assert [answer.status_code for answer in answers] == [200, 429, 429, 400]
    assert (answers[1].json(), answers[1].headers["Retry-After"]) == ({"own": True}, "60")
    assert [record for record in caplog.records if record.name == "quart_app"] == []


async def test_handlers_of_quart_come_first(by_quota: Make, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """A handler of the application's answers refusals, whenever it was registered; what is no refusal of this request is logged."""
    early, late = Quart("early"), Quart("late")

    async def mine(_error: RateLimited) -> tuple[str, int]:
        return "slow down", 429

    early.register_error_handler(RateLimited, mine)
    apps = [RateLimitMiddleware(quart, by_quota("9/minute")) for quart in (early, late)]
    late.register_error_handler(RateLimited, mine)
    for quart in (early, late):

        @quart.get("/")
        @limit("1/minute")
        async def home() -> str:
            return "home"

    for app in apps:
        answers = [await ask(app), await ask(app)]
        assert [answer.text for answer in answers] == ["home", "slow down"]
        assert answers[1].headers["Retry-After"] == "60"
    other = Quart("other")

    @other.get("/")
    async def broken() -> str:
        raise RateLimited(None, "of another limiter", 1.0)

    assert (await ask(RateLimitMiddleware(other, by_quota("9/minute")))).status_code == 500
    assert "of another limiter" in caplog.text


@pytest.mark.parametrize("accepts", [False, True])
async def test_sockets_of_quart(
    by_quota: Make, wire: Callable[..., Any], caplog: pytest.LogCaptureFixture, accepts: bool
) -> None:
    """A refused WebSocket of Quart is closed with 1008, before or after it was accepted, and nothing is logged."""
    quart = Quart("quart_app")

    @limit("1/hour", name="inside")
    async def guarded() -> None:
        """What is limited."""

    @quart.websocket("/")
    async def socket_() -> None:
        if accepts:
            await websocket.accept()
        await guarded()
        await websocket.send("served")
        await websocket.close(1000)

    app = RateLimitMiddleware(quart, by_quota("9/minute"))
    connect = {"type": "websocket.connect"}
    first = await wire(kind="websocket", inbox=[connect], subprotocols=[], scheme="ws").run(app)
    assert [message.get("text") for message in first if message["type"] == "websocket.send"] == ["served"]
    second = await wire(kind="websocket", inbox=[connect], subprotocols=[], scheme="ws").run(app)
    assert [message["type"] for message in second] == [*(["websocket.accept"] * accepts), "websocket.close"]
    assert second[-1]["code"] == 1008
    assert [record for record in caplog.records if record.name == "quart_app"] == []


@pytest.mark.parametrize(
    "framework", ["starlette", "fastapi", "fastapi dependency", "litestar inside", "litestar around"]
)
async def test_refusals_do_not_fill_the_log(
    by_quota: Make, ask: Ask, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], framework: str
) -> None:
    """A refusal beside a route is logged by nobody, as often as it may happen: clients cannot fill a disk with it."""

    @limit("1/minute", name="page")
    async def page(request: Request) -> Response:
        return Response("page")

    @get("/")
    @limit("1/minute", name="page")
    async def handler() -> str:
        return "page"

    quota = by_quota("9/minute")
    if framework == "starlette":
        app: Any = RateLimitMiddleware(Starlette(routes=[Route("/", page)]), quota)
    elif framework == "litestar inside":
        app = Litestar(
            [handler], middleware=[DefineMiddleware(RateLimitMiddleware, limiter=quota)], logging_config=None
        )
    elif framework == "litestar around":
        app = RateLimitMiddleware(Litestar([handler], logging_config=None), quota)
    else:
        app = FastAPI()
        if framework == "fastapi":
            app.get("/")(page)
        else:
            app.get("/", dependencies=[Depends(dependency("1/minute"))])(lambda: "page")
        app.add_middleware(RateLimitMiddleware, limiter=quota)
    assert [(await ask(app)).status_code for _ in range(4)] == [200, 429, 429, 429]
    assert [record for record in caplog.records if record.name != "httpx"] == []
    assert "Traceback" not in capfd.readouterr().err
