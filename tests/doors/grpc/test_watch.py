"""``Health/Watch``: a status at once and each change of it, by both engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from sluicegate.doors.grpc import aio, watches
from sluicegate.doors.grpc.calls import RESOURCE_EXHAUSTED

Start = Callable[..., Awaitable[Any]]

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
WATCH = "/grpc.health.v1.Health/Watch"
ENGINES = pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


def watch(channel: Any, service: bytes = b"") -> Any:
    """A watch of a service by its name."""
    message = b"\x0a" + bytes([len(service)]) + service if service else b""
    return channel.unary_stream(WATCH)(message, timeout=60)


@ENGINES
async def test_each_change_is_told_once(start_door: Start, engine: str) -> None:
    """The status comes at once, then each one that it changes to; names that are not known stay unknown, and open."""
    server = await start_door(engine=engine)
    async with grpc.aio.insecure_channel(server.target) as channel:
        whole, stranger = watch(channel), watch(channel, b"other")
        assert await whole.read() == SERVING
        assert await stranger.read() == SERVICE_UNKNOWN
        for server.ready, expected in ((False, NOT_SERVING), (True, SERVING), (False, NOT_SERVING)):
            assert await whole.read() == expected
        assert not stranger.done()
        stranger.cancel()


@ENGINES
async def test_the_end_of_the_server_ends_a_watch(start_door: Start, engine: str) -> None:
    """A drain is told as NOT_SERVING, and does not wait for those who watch."""
    server = await start_door(engine=engine)
    async with grpc.aio.insecure_channel(server.target) as channel:
        watching = watch(channel, b"ratelimit")
        assert await watching.read() == SERVING
        async with asyncio.timeout(60):
            await server.door.connections.drain(60)
        assert await watching.read() == NOT_SERVING
        assert await watching.read() == grpc.aio.EOF
        assert await watching.code() == grpc.StatusCode.OK
    assert server.stats.calls["Watch"] == {0: 1}


@ENGINES
async def test_watches_are_bounded(start_door: Start, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Beyond their number a watch is refused; one that its client gives up makes room."""
    for module in (aio, watches):
        monkeypatch.setattr(module, "GRPC_WATCHES_MAX", 1)
    server = await start_door(engine=engine)
    async with grpc.aio.insecure_channel(server.target) as channel:
        first = watch(channel)
        assert await first.read() == SERVING
        second = watch(channel)
        assert await second.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.stats.calls["Watch"] == {RESOURCE_EXHAUSTED: 1}
        first.cancel()
        async with asyncio.timeout(60):
            while not (server.stats.cancelled or 0 in server.stats.calls["Watch"]):
                await asyncio.sleep(0.01)
        assert await watch(channel).read() == SERVING


@ENGINES
async def test_what_is_no_watch(start_door: Start, engine: str) -> None:
    """A malformed message is INVALID_ARGUMENT."""
    server = await start_door(engine=engine)
    async with grpc.aio.insecure_channel(server.target) as channel:
        code = await channel.unary_stream(WATCH)(b"\xff", timeout=60).code()
    assert code == grpc.StatusCode.INVALID_ARGUMENT


@ENGINES
async def test_a_watch_with_a_deadline(start_door: Start, engine: str) -> None:
    """The time that its client gives it ends a watch, after what it was told."""
    server = await start_door(engine=engine)
    client = await server.connect()
    stream = client.request(WATCH, b"", ("grpc-timeout", "300m"))
    await client.flush()
    reply = await client.reply(stream)
    assert (reply.message, reply.code) == (SERVING, "DEADLINE_EXCEEDED")


@pytest.mark.measured
async def test_watches_beside_calls(start_door: Start, message: bytes) -> None:
    """A watch on ngh2 holds up neither calls of its connection nor their end, and one that is gone costs nothing."""
    server = await start_door(age_s=0.5, age_grace_s=10.0, request_s=0.1)
    client, gone = await server.connect(), await server.connect()
    for each in (client, gone):
        stream = each.request(WATCH, b"")
        await each.flush()
        await each.until(lambda each=each, stream=stream: each.replies[stream].body != b"")
    gone.writer.transport.abort()
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    server.ready = False
    await client.at_end()
    reply = client.replies[stream]
    assert (reply.body[5:7], reply.body[-2:], reply.code) == (SERVING, NOT_SERVING, "OK")
    assert (server.stats.aged, server.stats.timeouts["drain"], server.stats.timeouts["request"]) == (1, 0, 0)
