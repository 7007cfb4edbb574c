"""WebSockets through the gateway, and upgrades that are none."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve as serve_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sluicegate.clock import ManualClock

ASK = (
    b"GET /chat HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"


async def echo(websocket):
    """Send back what comes."""
    async for message in websocket:
        await websocket.send(message)


@pytest.fixture
async def echo_url():
    """A real WebSocket server."""
    async with serve_websocket(echo, "127.0.0.1", 0, max_size=None) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_websocket_works_through_the_gateway(world, echo_url):
    """Text, binary, a message of 5 MB, pings and the closing handshake; the handshake's answer has rate headers."""
    w = await world(urls=[echo_url])
    async with connect(f"ws://127.0.0.1:{w.address.port}/chat", max_size=None, compression=None) as websocket:
        assert websocket.response.headers["X-RateLimit-Limit"] == "1000000"
        for message in ("hello", b"\x00\xff", "x" * 5_000_000):
            await websocket.send(message)
            assert await websocket.recv() == message
        await (await websocket.ping())
        assert (w.stats.tunnels, w.stats.in_flight) == (1, 0)
    await w.until(lambda: w.stats.tunnels == 0)
    assert w.stats.tunnels_total == 1
    assert w.stats.responses[1] == 1


async def test_a_refused_handshake_is_429(world, echo_url):
    """The client library reports the status; no upstream connection is opened for it."""
    rules = "version: 1\nrules:\n  - {name: sockets, quota: 1/hour, algorithm: fixed_window}\n"
    w = await world(urls=[echo_url], rules=rules, clock=ManualClock())
    url = f"ws://127.0.0.1:{w.address.port}/"
    async with connect(url):
        with pytest.raises(InvalidStatus) as caught:
            await connect(url)
    assert caught.value.response.status_code == 429
    assert w.stats.upstream_connects == 1


async def test_bytes_around_the_switch_are_not_lost(world):
    """What either side sends together with its part of the handshake reaches the other."""

    async def serve(line):
        assert (await line.head()).endswith(b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        line.send(SWITCH + b"early")
        assert await line.exactly(8) == b"GET /\r\n!"
        line.send(b"late")
        await line.rest()

    w = await world(serve)
    client = await w.client()
    client.send(ASK + b"GET /\r\n!")
    reply = await client.reply()
    assert reply.status == 101
    assert await client.exactly(9) == b"earlylate"
    assert w.stats.requests == 1


async def test_the_end_of_the_upstream_is_the_end_of_the_client(world):
    """After the last byte."""

    async def serve(line):
        await line.head()
        line.send(SWITCH + b"bye" * 100_000)
        await line.flush()

    w = await world(serve)
    client = await w.client()
    client.send(ASK)
    await client.head()
    assert await client.rest() == b"bye" * 100_000


async def test_the_end_of_the_client_is_the_end_of_the_upstream(world):
    """After the last byte."""
    ended = asyncio.get_running_loop().create_future()

    async def serve(line):
        await line.head()
        line.send(SWITCH)
        ended.set_result(await line.rest())

    w = await world(serve)
    client = await w.client()
    client.send(ASK)
    await client.head()
    client.send(b"bye")
    await client.flush()
    client.close()
    assert await ended == b"bye"


async def test_an_upstream_may_decline(world):
    """Any other status is an ordinary answer, and the connection goes on in HTTP."""

    async def serve(line):
        while True:
            line.backend.heads.append(await line.head())
            line.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")

    w = await world(serve)
    client = await w.client()
    assert (await client.ask(ASK)).status == 403
    assert (await client.ask(b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")).status == 403
    assert w.backend.targets == ["GET /chat", "GET /next"]


@pytest.mark.parametrize(
    "ask",
    [
        ASK.replace(b"Upgrade: WebSocket", b"Upgrade: h2c"),
        ASK.replace(b"Upgrade: WebSocket", b"Upgrade: websocket, h2c"),
        ASK.replace(b"keep-alive, Upgrade", b"keep-alive"),
        ASK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        ASK.replace(b"GET", b"DELETE"),
    ],
)
async def test_only_a_websocket_handshake_is_passed_on_as_an_upgrade(world, ask):
    """Any other upgrade would be a tunnel around every rule; it is an ordinary request here, as RFC 9110 allows."""

    async def serve(line):
        line.backend.heads.append(await line.head())
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await line.head()

    w = await world(serve)
    assert (await w.ask(ask)).status == 200
    assert b"pgrade" not in w.backend.heads[0]


@pytest.mark.measured
@pytest.mark.slow
async def test_a_silent_tunnel_is_closed(world, echo_url):
    """After tunnel_idle_timeout_s without a byte in either direction."""
    w = await world(urls=[echo_url], tunnel_idle_timeout_s=0.2)
    async with connect(f"ws://127.0.0.1:{w.address.port}/", ping_interval=None) as websocket:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(websocket.recv(), 5)
    assert w.stats.timeouts == {"tunnel": 1}


@pytest.mark.slow
async def test_a_slow_side_of_a_tunnel_stops_the_other(world):
    """The same bound as for bodies."""
    sent = 0

    async def serve(line):
        nonlocal sent
        await line.head()
        line.send(SWITCH)
        while True:
            line.send(b"x" * 65536)
            await line.flush()
            sent += 65536

    w = await world(serve)
    client = await w.client()
    client.send(ASK)
    await client.head()
    client.reader._transport.pause_reading()
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < 40 << 20


async def test_a_drain_leaves_tunnels_until_its_time_is_up(world, echo_url):
    """Then they are cut; how many is told."""
    w = await world(urls=[echo_url])
    async with connect(f"ws://127.0.0.1:{w.address.port}/", ping_interval=None) as websocket:
        draining = asyncio.create_task(w.gateway.connections.drain(0.05))
        await websocket.send("still here")
        assert await websocket.recv() == "still here"
        assert await draining == 1
        with pytest.raises(ConnectionClosed):
            await websocket.recv()
