"""A small backend to put the gateway in front of: it counts what reaches it.

``GET /_demo/count`` answers ``{"count": n}``, the requests that have arrived since the start, and is not counted itself.
Everything here is for trying things out; it is not a web server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Any, cast

import httptools

from sluicegate.bounds import DEMO_BYTES_KEPT, DEMO_STREAM_LINES_MAX

__all__ = ["DemoBackend"]

_STREAM_INTERVAL_S = 0.1

Reply = tuple[int, dict[str, Any]]


@dataclass(slots=True)
class DemoBackend:
    """The backend's state and its routes. ``count`` is the number of requests that arrived."""

    count: int = 0

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one connection, for ``open_listener``."""
        return _DemoConnection(self)

    def reply(self, method: str, path: str, body: bytes) -> Reply:
        """Status and JSON body of one request that is not a stream; counts it."""
        if (method, path) == ("GET", "/_demo/count"):
            return 200, {"count": self.count}
        self.count += 1
        if path == "/":
            return 200, {
                "service": "demo backend",
                "try": ["/api/hello", "/login", "/api/v1/shorten", "/stream?lines=5"],
            }
        if path == "/login":
            return (200, {"ok": True}) if method == "POST" else (405, {"error": "use POST"})
        if path == "/api/v1/shorten":
            short = sha256(body).hexdigest()[:8]
            return (201, {"short": f"/s/{short}"}) if method == "POST" else (405, {"error": "use POST"})
        if path.startswith("/api/"):
            return 200, {"method": method, "path": path, "count": self.count}
        return 404, {"error": "nothing here", "path": path}


class _DemoConnection(asyncio.Protocol):
    """HTTP/1.1, one request at a time; nothing more is read while a stream is being sent."""

    def __init__(self, backend: DemoBackend) -> None:
        self._backend = backend
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = bytearray()
        self._streaming = False
        self._waiting: list[Callable[[], None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._transport.close()
        except httptools.HttpParserError:
            self._send(400, {"error": "not HTTP"}, keep_alive=False)

    # What the parser calls:

    def on_message_begin(self) -> None:
        self._url = b""
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > DEMO_BYTES_KEPT:
            self._transport.abort()

    def on_body(self, body: bytes) -> None:
        # Large uploads are welcome; only their beginning matters to anything here.
        if len(self._body) < DEMO_BYTES_KEPT:
            self._body += body

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        target, _, query = self._url.decode("latin-1").partition("?")
        keep_alive = self._parser.should_keep_alive()
        body = bytes(self._body)
        self._in_turn(lambda: self._answer(method, target, query, body, keep_alive=keep_alive))

    def _in_turn(self, answer: Callable[[], None]) -> None:
        """Answer now, or after the stream that is being sent."""
        if self._streaming:
            self._waiting.append(answer)
        else:
            answer()

    def _answer(self, method: str, path: str, query: str, body: bytes, *, keep_alive: bool) -> None:
        if path == "/stream" and method == "GET":
            self._backend.count += 1
            self._stream(_lines_wanted(query), keep_alive=keep_alive)
            return
        status, content = self._backend.reply(method, path, body)
        self._send(status, content, keep_alive=keep_alive, head=method == "HEAD")

    def _send(self, status: int, content: dict[str, Any], *, keep_alive: bool, head: bool = False) -> None:
        text = json.dumps(content).encode() + b"\n"
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(text)}",
            f"Connection: {'keep-alive' if keep_alive else 'close'}",
        ]
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + (b"" if head else text))
        if not keep_alive:
            self._transport.close()

    def _stream(self, lines: int, *, keep_alive: bool) -> None:
        self._streaming = True
        self._transport.pause_reading()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
            + (b"\r\n" if keep_alive else b"Connection: close\r\n\r\n")
        )
        self._stream_line(1, lines, keep_alive=keep_alive)

    def _stream_line(self, number: int, lines: int, *, keep_alive: bool) -> None:
        if self._transport.is_closing():
            return
        if number <= lines:
            text = f"line {number} of {lines}\n".encode()
            self._transport.write(b"%x\r\n%s\r\n" % (len(text), text))
            asyncio.get_running_loop().call_later(
                _STREAM_INTERVAL_S, lambda: self._stream_line(number + 1, lines, keep_alive=keep_alive)
            )
            return
        self._transport.write(b"0\r\n\r\n")
        self._streaming = False
        if not keep_alive:
            self._transport.close()
            return
        self._transport.resume_reading()
        while self._waiting and not self._streaming:
            self._waiting.pop(0)()


def _lines_wanted(query: str) -> int:
    name, _, value = query.partition("=")
    wanted = int(value) if name == "lines" and value.isascii() and value.isdigit() and len(value) < 6 else 10
    return min(wanted, DEMO_STREAM_LINES_MAX)
