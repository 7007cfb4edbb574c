"""The demo backend counts what reaches it, and answers like a small service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from sluicegate.app.demo import DemoBackend
from sluicegate.doors.listen import Address, open_listener


@pytest.fixture
async def demo() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a demo backend that is really listening."""
    listener = await open_listener(Address("127.0.0.1", 0), DemoBackend().protocol)
    async with httpx.AsyncClient(base_url=listener.address.url, timeout=60) as client:
        yield client
    listener.close()


async def test_counts_everything_but_the_count(demo: httpx.AsyncClient) -> None:
    """Each request that arrives is counted, also one for a path that is not there; asking for the count is not."""
    for path in ("/", "/api/hello", "/nothing"):
        await demo.get(path)
    await demo.get("/_demo/count")
    await demo.post("/login", content=b"user=x")
    assert (await demo.get("/_demo/count")).json() == {"count": 4}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("POST", "/login", 200),
        ("GET", "/login", 405),
        ("POST", "/api/v1/shorten", 201),
        ("GET", "/api/v1/shorten", 405),
        ("DELETE", "/api/things/7?soft=1", 200),
        ("GET", "/elsewhere", 404),
    ],
)
async def test_routes(demo: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    """Each route answers JSON with its status."""
    answer = await demo.request(method, path, content=b"https://example.org/long" if method == "POST" else None)
    assert answer.status_code == status
    assert isinstance(answer.json(), dict)


async def test_head_has_no_body(demo: httpx.AsyncClient) -> None:
    """HEAD gets the length of what GET would have sent, and the connection stays usable."""
    answer = await demo.head("/api/x")
    assert (answer.content, int(answer.headers["content-length"]) > 0) == (b"", True)
    assert (await demo.get("/api/x")).status_code == 200


async def test_stream_comes_line_by_line(demo: httpx.AsyncClient) -> None:
    """A stream is chunked, arrives while it is being made, and is counted once."""
    async with demo.stream("GET", "/stream?lines=3") as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        lines = [line async for line in answer.aiter_lines()]
    assert lines == ["line 1 of 3", "line 2 of 3", "line 3 of 3"]
    assert (await demo.get("/_demo/count")).json() == {"count": 1}


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Requests behind a stream on one connection wait for it and are answered after it, in order."""
    listener = await open_listener(Address("127.0.0.1", 0), DemoBackend().protocol)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
    head = "HTTP/1.1\r\nHost: demo\r\n"
    requests = [
        f"GET /stream?lines=1 {head}\r\n",
        f"GET /api/a {head}\r\n",
        f"GET /api/b {head}Connection: close\r\n\r\n",
    ]
    writer.write("".join(requests).encode())
    text = (await reader.read()).decode()
    writer.close()
    listener.close()
    assert text.index("line 1 of 1") < text.index('"/api/a"') < text.index('"/api/b"')


async def test_garbage_is_a_400() -> None:
    """What is not HTTP gets a 400 and the connection is closed."""
    listener = await open_listener(Address("127.0.0.1", 0), DemoBackend().protocol)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
    writer.write(b"\x16\x03\x01 not http\r\n\r\n")
    answer = await reader.read()
    writer.close()
    listener.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "not HTTP"}
