"""Streams pass the ASGI middleware untouched: message by message, once, as long as they last (P70)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from sluicegate.doors.asgi import RateLimitMiddleware
from sluicegate.limiter.limiter import Limiter

Make = Callable[..., Limiter]

CHUNKS = [b"chunk %d;" % number for number in range(10)]


async def ten(_: Request) -> Response:
    """Ten chunks with the length said beforehand."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in CHUNKS:
            yield chunk

    return StreamingResponse(body(), headers={"Content-Length": str(sum(map(len, CHUNKS)))})


async def events(_: Request) -> Response:
    """Server-sent events."""

    async def body() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"data: %d\n\n" % number
            await asyncio.sleep(0)

    return StreamingResponse(body(), media_type="text/event-stream")


@pytest.fixture
def app(by_quota: Make, tmp_path: Path) -> Starlette:
    """An application that streams in every way Starlette has."""
    file = tmp_path / "file.bin"
    file.write_bytes(bytes(200_000))

    async def download(_: Request) -> Response:
        return FileResponse(file)

    routes = [
        Route("/ten", ten),
        Route("/events", events),
        Route("/file", download),
        Mount("/static", StaticFiles(directory=tmp_path)),
    ]
    site = Starlette(routes=routes)
    site.add_middleware(RateLimitMiddleware, limiter=by_quota("5/minute"))
    return site


async def test_ten_chunks(app: Starlette, wire: Any) -> None:
    """The head is sent once, with the headers; each chunk is a message of its own, the same as without the middleware."""
    stream = wire("/ten")
    await stream.run(app)
    assert stream.kinds == ["http.response.start"] + ["http.response.body"] * 11
    assert [message["body"] for message in stream.sent[1:11]] == CHUNKS
    assert stream.headers()["content-length"] == str(sum(map(len, CHUNKS)))
    assert stream.headers()["x-ratelimit-remaining"] == "4"


async def test_server_sent_events(app: Starlette, wire: Any) -> None:
    """Events are passed on one by one, not collected."""
    stream = wire("/events")
    await stream.run(app)
    assert [message["body"] for message in stream.sent[1:4]] == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]
    assert stream.headers()["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("path", ["/file", "/static/file.bin"])
async def test_files(app: Starlette, ask: Callable[..., Awaitable[httpx.Response]], path: str) -> None:
    """A file response and static files arrive whole, ranges too, with the rate headers on each."""
    whole = await ask(app, path)
    assert (whole.status_code, len(whole.content)) == (200, 200_000)
    assert whole.headers["X-RateLimit-Remaining"] == "4"
    part = await ask(app, path, headers={"Range": "bytes=10-19"})
    assert (part.status_code, len(part.content)) == (206, 10)
    assert part.headers["X-RateLimit-Remaining"] == "3"


async def test_trailers_and_other_messages_pass(by_quota: Make, wire: Any) -> None:
    """Interim answers, trailers, pushes and path sends of a server's extensions are not looked at."""
    messages = [
        {"type": "http.response.debug", "info": {}},
        {"type": "http.response.start", "status": 200, "headers": [], "trailers": True},
        {"type": "http.response.pathsend", "path": "/srv/file"},
        {"type": "http.response.body", "body": b"x", "more_body": False},
        {"type": "http.response.trailers", "headers": [(b"x-sum", b"1")], "more_trailers": False},
    ]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    stream = wire()
    await stream.run(RateLimitMiddleware(application, by_quota("5/minute")))
    assert [stream.sent[0], *stream.sent[2:]] == [messages[0], *messages[2:]]
    assert stream.sent[1]["trailers"] is True


async def test_the_message_of_the_application_is_not_changed(by_quota: Make, wire: Any) -> None:
    """A response object that is used twice does not collect headers."""
    head: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send(head)

    limited = RateLimitMiddleware(application, by_quota("5/minute"))
    for _ in range(2):
        stream = wire()
        await stream.run(limited)
        assert len(stream.sent[0]["headers"]) == 5
    assert head["headers"] == [(b"a", b"b")]


async def test_request_bodies_pass(by_quota: Make, wire: Any) -> None:
    """The application reads the body itself, chunk by chunk, and hears that a client left."""
    read: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(ClientDisconnect):
            async for chunk in Request(scope, receive).stream():
                read.append(chunk)
        read.append("left")

    upload = wire(
        method="POST",
        inbox=[
            {"type": "http.request", "body": b"one", "more_body": True},
            {"type": "http.request", "body": b"two", "more_body": True},
            {"type": "http.disconnect"},
        ],
    )
    await upload.run(RateLimitMiddleware(application, by_quota("5/minute")))
    assert read == [b"one", b"two", "left"]


async def test_a_client_that_leaves_ends_the_stream(by_quota: Make, wire: Any) -> None:
    """An exception of ``send``, which is how servers tell that nobody reads, reaches the application unchanged."""
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        except OSError as error:
            seen.append(str(error))
            raise

    stream = wire()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await RateLimitMiddleware(application, by_quota("5/minute"))(stream.scope, stream.receive, send)
    assert seen == ["gone"]


async def test_a_cancelled_request_counts_as_spent(by_quota: Make, wire: Any) -> None:
    """Whoever hangs up while the application works has been charged: leaving early is no way around a limit."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    limiter = by_quota("5/minute")
    limited = RateLimitMiddleware(application, limiter)
    stream = wire()
    task = asyncio.create_task(stream.run(limited))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert limiter.peek("203.0.113.9").remaining == 4
