"""One request and its answer: ``send`` and ``receive`` as the application gets them, and how the door itself answers.

Both exchanges offer the same: ``send``, ``receive``, ``begun`` (the answer has begun, so it can no longer be another one), ``dropped``
(the application's answer was an error of its own making, and is to be replaced), ``refused`` (a limit told the application of a refusal,
and what it answered was one), ``answer`` (the door's reply), ``stop`` (end what has begun; False where its client could not be told) and ``delegate``
(an application's reply).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sluicegate.doors.asgi.translate import App, Message, Receive, Scope, Send, headed
from sluicegate.doors.refusals import Reply
from sluicegate.doors.web.door import Door
from sluicegate.doors.web.request import RequestLimits

__all__ = ["Exchange", "HttpExchange", "SocketExchange"]

_HTTP_RESPONSE = "websocket.http.response"
_POLICY_VIOLATION = 1008
_REFUSALS = 400
"""The least status of an answer that did not serve the request."""
_SERVER_ERROR = 500


class Exchange(Protocol):
    """What the middleware needs of a request and its answer."""

    limits: RequestLimits
    scope: Scope
    begun: bool
    dropped: bool
    refused: bool

    async def send(self, message: Message, /) -> None: ...
    @property
    def receive(self) -> Receive: ...
    async def answer(self, reply: Reply) -> None: ...
    async def stop(self) -> bool: ...
    async def delegate(self, app: App) -> None: ...


class HttpExchange:
    """An HTTP request. Messages of the answer's body, trailers and interim answers pass as they are.

    A limit beside a route tells of a refusal by an exception. Where the application's own error handling makes a 500 of it before
    it comes here, that answer is dropped.
    """

    __slots__ = ("_answering", "_door", "_send", "begun", "dropped", "limits", "receive", "refused", "scope")

    def __init__(self, door: Door, limits: RequestLimits, scope: Scope, receive: Receive, send: Send) -> None:
        self._door = door
        self._send = send
        self.limits = limits
        self.scope = scope
        self.receive = receive
        self._answering = False
        self.begun = False
        self.dropped = False
        self.refused = False

    async def send(self, message: Message, /) -> None:
        if message["type"] == "http.response.start":
            limits = self.limits
            stopped = limits.refused is not None or limits.invalid is not None
            replaced = limits.left_to_door or (stopped and message["status"] == _SERVER_ERROR)
            if replaced and not self._answering:
                self.dropped = True
                return
            self.begun = True
            self.refused = self.limits.refused is not None and message["status"] >= _REFUSALS
            message = headed(self._door, self.limits, message)
        elif self.dropped:
            return
        await self._send(message)

    async def answer(self, reply: Reply) -> None:
        self._answering = True
        self.dropped = False
        # The body of a refused request is not read; the server closes the connection or throws the body away.
        await self.send({"type": "http.response.start", "status": reply.status, "headers": _entity(reply)})
        body = b"" if self.scope["method"] == "HEAD" else reply.body
        await self._send({"type": "http.response.body", "body": body})

    async def stop(self) -> bool:
        return False

    async def delegate(self, app: App) -> None:
        self._answering = True
        self.dropped = False
        await app(self.scope, self.receive, self.send)


class SocketExchange:
    """A WebSocket. ``admits``: asked for each message of the client; None where messages are not limited.

    A handshake that is refused is answered over HTTP where the server can (``websocket.http.response``), else closed with code 1008
    before it is accepted, which a server answers with 403. A client that sends more than it may is closed with 1008, and to the
    application it has disconnected.
    """

    __slots__ = (
        "_admits",
        "_answering",
        "_closed",
        "_connected",
        "_door",
        "_open",
        "_receive",
        "_send",
        "begun",
        "dropped",
        "limits",
        "refused",
        "scope",
    )

    def __init__(
        self,
        door: Door,
        limits: RequestLimits,
        scope: Scope,
        receive: Receive,
        send: Send,
        admits: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._door = door
        self._receive = receive
        self._send = send
        self._admits = admits
        self._answering = False
        self._connected = False
        self._closed = False
        self._open = False
        self.limits = limits
        self.scope = scope
        self.begun = False
        self.dropped = False
        self.refused = False

    async def send(self, message: Message, /) -> None:
        if self._closed:
            # The application has not yet heard that its client is gone.
            return
        if self.limits.left_to_door and not self._answering:
            self.dropped = True
            return
        if message["type"] in {"websocket.accept", "websocket.http.response.start"}:
            message = headed(self._door, self.limits, message)
        if not self.begun:
            self.refused = self.limits.refused is not None and message["type"] != "websocket.accept"
        self.begun = True
        self._open = message["type"] in {"websocket.accept", "websocket.send"}
        await self._send(message)

    async def receive(self) -> Message:
        if self._closed:
            return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
        message = await self._receive()
        if message["type"] == "websocket.connect":
            self._connected = True
        elif message["type"] == "websocket.receive" and self._admits is not None and not await self._admits():
            await self._close()
            return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
        return message

    async def answer(self, reply: Reply) -> None:
        self._answering = True
        await self._begin_refusal()
        if _HTTP_RESPONSE not in (self.scope.get("extensions") or {}):
            await self._close()
            return
        await self.send({"type": f"{_HTTP_RESPONSE}.start", "status": reply.status, "headers": _entity(reply)})
        await self._send({"type": f"{_HTTP_RESPONSE}.body", "body": reply.body})

    async def stop(self) -> bool:
        """A connection that the application has accepted, and not closed, is closed with 1008."""
        if not self._open:
            return False
        await self._close()
        return True

    async def delegate(self, app: App) -> None:
        """Without the extension an application could not answer over HTTP; the handshake is closed then."""
        if _HTTP_RESPONSE not in (self.scope.get("extensions") or {}):
            await self._begin_refusal()
            await self._close()
            return
        self._answering = True
        await app(self.scope, self.receive, self.send)

    async def _begin_refusal(self) -> None:
        if not self._connected:
            # The first message of a WebSocket is always this one, and servers want it to be read.
            await self._receive()
            self._connected = True

    async def _close(self) -> None:
        self._closed, self._open = True, False
        await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "rate limit exceeded"})


def _entity(reply: Reply) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", reply.content_type.encode("latin-1")),
        (b"content-length", b"%d" % len(reply.body)),
    ]
