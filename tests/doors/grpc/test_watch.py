"""``Health/Watch``: offered by the engine of the gRPC project, and plainly not by ngh2."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from sluicegate.doors.grpc import aio
from sluicegate.doors.grpc.calls import RESOURCE_EXHAUSTED

Start = Callable[..., Awaitable[Any]]

WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


def watch(channel: Any, service: bytes = b"") -> Any:
    """A watch of a service by its name."""
    message = b"\x0a" + bytes([len(service)]) + service if service else b""
    return channel.unary_stream(WATCH)(message, timeout=20)


async def test_each_change_is_told_once(start_door: Start) -> None:
    """The status comes at once, then each one that it changes to; names that are not known stay unknown, and open."""
    server = await start_door(engine="grpcio")
    async with grpc.aio.insecure_channel(server.target) as channel:
        whole, stranger = watch(channel), watch(channel, b"other")
        assert await whole.read() == SERVING
        assert await stranger.read() == SERVICE_UNKNOWN
        for server.ready, expected in ((False, NOT_SERVING), (True, SERVING), (False, NOT_SERVING)):
            assert await whole.read() == expected
        assert not stranger.done()
        stranger.cancel()


async def test_the_end_of_the_server_ends_a_watch(start_door: Start) -> None:
    """A drain is told as NOT_SERVING, and does not wait for those who watch."""
    server = await start_door(engine="grpcio")
    async with grpc.aio.insecure_channel(server.target) as channel:
        watching = watch(channel, b"ratelimit")
        assert await watching.read() == SERVING
        async with asyncio.timeout(10):
            await server.door.connections.drain(60)
        assert await watching.read() == NOT_SERVING
        assert await watching.read() == grpc.aio.EOF
        assert await watching.code() == grpc.StatusCode.OK
    assert server.stats.calls["Watch"] == {0: 1}


async def test_watches_are_bounded(start_door: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond their number a watch is refused; one that its client gives up makes room."""
    monkeypatch.setattr(aio, "GRPC_WATCHES_MAX", 1)
    server = await start_door(engine="grpcio")
    async with grpc.aio.insecure_channel(server.target) as channel:
        first = watch(channel)
        assert await first.read() == SERVING
        second = watch(channel)
        assert await second.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.stats.calls["Watch"] == {RESOURCE_EXHAUSTED: 1}
        first.cancel()
        async with asyncio.timeout(10):
            while 0 not in server.stats.calls["Watch"]:
                await asyncio.sleep(0.01)
        assert await watch(channel).read() == SERVING


@pytest.mark.parametrize(
    ("engine", "message", "expected"),
    [
        ("grpcio", b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("ngh2", b"", grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_what_is_no_watch(start_door: Start, engine: str, message: bytes, expected: grpc.StatusCode) -> None:
    """A malformed message is INVALID_ARGUMENT; ngh2 says that it has no such method."""
    server = await start_door(engine=engine)
    async with grpc.aio.insecure_channel(server.target) as channel:
        assert await channel.unary_stream(WATCH)(message, timeout=20).code() == expected
