"""WebSockets: handshakes are refused before they are accepted, messages may be limited, nothing else is touched (P75)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from sluicegate.clock import ManualClock
from sluicegate.doors.asgi import Limit, RateLimitMiddleware
from sluicegate.doors.asgi import limit as decorated
from sluicegate.doors.fastapi import limit
from sluicegate.doors.web.hold import Holder
from sluicegate.errors import RateLimited
from sluicegate.limiter.limiter import Limiter

Make = Callable[..., Limiter]

CONNECT = {"type": "websocket.connect"}
EXTENSION: dict[str, Any] = {"websocket.http.response": {}}


async def echo(websocket: WebSocket) -> None:
    """Answers every message with itself."""
    await websocket.accept()
    try:
        while True:
            await websocket.send_text(await websocket.receive_text())
    except WebSocketDisconnect as gone:
        websocket.state.closed = gone.code


def said(*texts: str) -> list[dict[str, Any]]:
    """The messages of a client that connects, says these texts and leaves."""
    told = [{"type": "websocket.receive", "text": text} for text in texts]
    return [CONNECT, *told, {"type": "websocket.disconnect", "code": 1000}]


@pytest.fixture
def site(by_quota: Make) -> Callable[..., Any]:
    """Makes an application with one WebSocket route inside the middleware."""

    def make(quota: str, **options: Any) -> Any:
        return RateLimitMiddleware(Starlette(routes=[WebSocketRoute("/ws", echo)]), by_quota(quota), **options)

    return make


async def test_a_handshake_passes(site: Callable[..., Any], wire: Any) -> None:
    """An admitted handshake is accepted with the rate headers, and messages pass both ways."""
    socket = wire("/ws", "websocket", said("a", "b"))
    await socket.run(site("5/minute"))
    assert socket.kinds == ["websocket.accept", "websocket.send", "websocket.send"]
    assert socket.headers()["x-ratelimit-remaining"] == "4"
    assert [message.get("text") for message in socket.sent[1:]] == ["a", "b"]


async def test_a_refused_handshake_is_429_where_the_server_can(site: Callable[..., Any], wire: Any) -> None:
    """With the extension the client gets status, headers and body; the application is never called."""
    socket = wire("/ws", "websocket", [CONNECT], extensions=EXTENSION)
    await socket.run(site("0"))
    assert socket.kinds == ["websocket.http.response.start", "websocket.http.response.body"]
    assert socket.sent[0]["status"] == 429
    assert socket.headers()["content-type"] == "application/problem+json"
    assert b"quota-exceeded" in socket.sent[1]["body"]
    assert socket.inbox == []


async def test_a_refused_handshake_is_closed_before_it_is_accepted_elsewhere(
    site: Callable[..., Any], wire: Any
) -> None:
    """Without the extension the door closes with code 1008, which a server answers with 403."""
    socket = wire("/ws", "websocket", [CONNECT])
    await socket.run(site("0"))
    assert socket.kinds == ["websocket.close"]
    assert socket.sent[0]["code"] == 1008


async def test_unknown_paths_are_limited_too(site: Callable[..., Any], wire: Any) -> None:
    """A handshake that no route serves is counted."""
    app = site("1/minute")
    first = wire("/nothing", "websocket", [CONNECT])
    await first.run(app)
    assert first.kinds == ["websocket.close"]
    assert first.sent[0]["code"] != 1008
    second = wire("/nothing", "websocket", [CONNECT])
    await second.run(app)
    assert second.sent[0]["code"] == 1008


async def test_messages_are_limited(site: Callable[..., Any], wire: Any, clock: ManualClock) -> None:
    """Each message is a charge; who sends more is closed with 1008, and to the application has disconnected."""
    app = site("5/minute", messages="3/second")
    socket = wire("/ws", "websocket", said("1", "2", "3", "4", "5"))
    await socket.run(app)
    assert socket.kinds == ["websocket.accept", *["websocket.send"] * 3, "websocket.close"]
    assert socket.sent[-1]["code"] == 1008
    assert socket.scope["state"]["closed"] == 1008
    again = wire("/ws", "websocket", said("6"))
    await again.run(app)
    assert again.kinds == [
        "websocket.accept",
        "websocket.close",
    ]  # another connection of the same client is no way around it
    clock.advance(1_000_000)
    later = wire("/ws", "websocket", said("7"))
    await later.run(app)
    assert later.kinds == ["websocket.accept", "websocket.send"]


async def test_messages_in_a_queue(by_quota: Make, wire: Any) -> None:
    """A leaky bucket lets each message wait for its turn; where as many wait as may, the next is one too many."""
    held: list[int] = []

    class Counted(Holder):
        async def wait(self, delay_us: int) -> bool:
            held.append(delay_us)
            return await super().wait(delay_us)

    queue = Limit("1000/second burst 5", algorithm="leaky_bucket", name="queue", shared=True)
    for held_max, sent in ((1, ["websocket.send"] * 3), (0, ["websocket.send", "websocket.close"])):
        held.clear()
        routes = [WebSocketRoute("/ws", echo)]
        app = RateLimitMiddleware(Starlette(routes=routes), by_quota("50/minute"), messages=queue)
        app.holder = Counted(held_max)
        socket = wire("/ws", "websocket", said("1", "2", "3"))
        await socket.run(app)
        assert socket.kinds == ["websocket.accept", *sent]
        assert held == [1000, 2000][: len(sent) - 1]


async def test_messages_per_key(by_quota: Make, wire: Any) -> None:
    """Messages may be counted by something else than the address."""
    keys = Limit("1/second", key=lambda scope: scope["path"], name="per-room", shared=True)
    app = RateLimitMiddleware(Starlette(routes=[WebSocketRoute("/{room}", echo)]), by_quota("50/minute"), messages=keys)
    for path, expected in (("/a", 1), ("/b", 1), ("/a", 0)):
        socket = wire(path, "websocket", said("x"))
        await socket.run(app)
        assert socket.kinds.count("websocket.send") == expected


@pytest.mark.parametrize("ended", [False, True])
async def test_a_limit_that_refuses_on_an_open_connection_closes_it(by_quota: Make, wire: Any, ended: bool) -> None:
    """After the handshake a refusal can only close the connection, with 1008; on one that the application has closed it is an error."""

    @decorated("1/minute")
    async def expensive() -> None: ...

    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()
        if ended:
            await socket.close(1000)
        await expensive()

    app = RateLimitMiddleware(Starlette(routes=[WebSocketRoute("/ws", endpoint)]), by_quota("50/minute"))
    first, second = wire("/ws", "websocket", said()), wire("/ws", "websocket", said())
    await first.run(app)
    with pytest.raises(RateLimited) if ended else contextlib.nullcontext():
        await second.run(app)
    assert (second.kinds, second.sent[-1]["code"]) == (["websocket.accept", "websocket.close"], 1000 if ended else 1008)


async def test_an_application_that_still_sends_is_not_heard(by_quota: Make, wire: Any) -> None:
    """After the door closed the connection nothing more is sent on it, whatever the application does."""

    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(3):
            assert (await receive())["type"] in {"websocket.receive", "websocket.disconnect"}
            await send({"type": "websocket.send", "text": "still here"})

    socket = wire("/", "websocket", said("1", "2", "3"))
    await socket.run(RateLimitMiddleware(stubborn, by_quota("5/minute"), messages="1/minute"))
    assert socket.kinds == ["websocket.accept", "websocket.send", "websocket.close"]


async def test_dependencies_on_websocket_routes(by_quota: Make, wire: Any) -> None:
    """A FastAPI dependency limits a WebSocket route, with the middleware and without; refused before it is accepted."""
    for inside in (True, False):
        app = FastAPI()
        app.websocket("/ws", dependencies=[Depends(limit("1/minute"))])(echo)
        served: Any = RateLimitMiddleware(app, by_quota("5/minute")) if inside else app
        first = wire("/ws", "websocket", said("hello"), client=("198.51.100.1", 1))
        await first.run(served)
        assert first.kinds == ["websocket.accept", "websocket.send"]
        second = wire("/ws", "websocket", said("hello"), client=("198.51.100.1", 1))
        await second.run(served)
        assert [(m["type"], m.get("code")) for m in second.sent] == [("websocket.close", 1008)]


async def test_custom_refusal_of_a_handshake(site: Callable[..., Any], wire: Any) -> None:
    """A handler's answer is used where the server can answer a handshake over HTTP, and the handshake is closed elsewhere."""

    async def denial(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": 429, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"own"})

    app = site("0", on_refused=lambda scope, limits: denial)
    able = wire("/ws", "websocket", [CONNECT], extensions=EXTENSION)
    await able.run(app)
    assert able.sent[1]["body"] == b"own"
    assert able.headers()["x-ratelimit-limit"] == "0"
    unable = wire("/ws", "websocket", [CONNECT])
    await unable.run(app)
    assert unable.kinds == ["websocket.close"]
