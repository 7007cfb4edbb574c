"""Whoever is late is told so, or cut off; and leaving politely takes the time it is given."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def assert_problem(reply, status):
    """A problem document that carries the rate headers of its decision."""
    assert reply.status == status
    assert reply.get("Content-Type") == "application/problem+json"
    assert json.loads(reply.body)["status"] == status
    assert reply.get("X-RateLimit-Limit") == "1000000"


async def hold(line):
    """Read the request and never answer."""
    line.backend.heads.append(await line.head())
    await line.rest()
    line.backend.heads.append(b"GONE HTTP/")


SOON = {"connect_timeout_s": 0.1, "response_timeout_s": 0.1, "upstream_body_timeout_s": 0.1, "body_timeout_s": 0.1}


@pytest.mark.measured
@pytest.mark.slow
async def test_waiting_for_a_connection_too_long_is_503(world):
    """The wait is bounded by twice the connect timeout."""
    w = await world(hold, upstream_connections_max=1, connect_timeout_s=0.1)
    (await w.client()).send(GET)
    await w.until(lambda: w.stats.in_flight == 1)
    assert_problem(await w.ask(GET), 503)
    assert w.stats.upstream_errors == {"busy": 1}


@pytest.mark.measured
@pytest.mark.slow
async def test_an_upstream_that_does_not_answer_is_504(world):
    """Its connection is closed, the client's serves on."""
    w = await world(hold, **SOON)
    client = await w.client()
    assert_problem(await client.ask(GET), 504)
    assert_problem(await client.ask(POST), 504)
    assert w.stats.upstream_errors == {"timeout": 2}


@pytest.mark.measured
@pytest.mark.slow
async def test_an_upstream_that_takes_nothing_of_the_body_is_504(world):
    """It is not the client that is late."""

    async def serve(line):
        line.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await line.head()
        line.writer.transport.pause_reading()
        await asyncio.sleep(5)

    w = await world(serve, **SOON)
    client = await w.client()
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 12_000_000)
    reply = await client.reply()
    assert_problem(reply, 504)
    assert reply.get("Connection") == "close"


@pytest.mark.measured
@pytest.mark.slow
async def test_an_answer_that_stops_in_the_middle_is_cut(world):
    """After upstream_body_timeout_s, with a reset: a problem document would be read as part of the body."""

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nsome")
        await line.rest()

    w = await world(serve, **SOON)
    client = await w.client()
    client.send(GET)
    await client.head()
    assert await client.exactly(4) == b"some"
    assert await client.ended() == "reset"


@pytest.mark.measured
@pytest.mark.slow
async def test_a_client_that_is_slow_with_its_head_is_408(world):
    """Counted from its first byte, however many follow (slowloris)."""
    w = await world(header_timeout_s=0.2, idle_timeout_s=60)
    client = await w.client()

    async def drip():
        for byte in GET[:-1]:
            client.send(bytes([byte]))
            await asyncio.sleep(0.1)

    dripping = asyncio.create_task(drip())
    reply = await client.reply()
    dripping.cancel()
    assert (reply.status, reply.get("Connection")) == (408, "close")
    assert w.stats.timeouts == {"header": 1}


@pytest.mark.measured
@pytest.mark.slow
async def test_a_client_that_is_slow_with_its_body_is_408(world):
    """The upstream's connection is closed with its request unfinished."""
    w = await world(hold, **SOON)
    client = await w.client()
    reply = await client.ask(POST[:-2])
    assert_problem(reply, 408)
    assert reply.get("Connection") == "close"
    assert w.stats.timeouts == {"body": 1}
    assert await client.ended() == "closed"


@pytest.mark.measured
@pytest.mark.slow
async def test_a_client_that_says_nothing_is_closed_without_a_word(world):
    """Before its first request and between two."""
    w = await world(header_timeout_s=0.1, idle_timeout_s=0.1)
    silent, once = await w.client(), await w.client()
    assert (await once.ask(GET)).status == 200
    assert await silent.ended() == "closed"
    assert await once.ended() == "closed"
    assert w.stats.timeouts == {"idle": 2}


@pytest.mark.measured
@pytest.mark.slow
async def test_a_client_that_does_not_read_its_answer_is_cut_off(world):
    """After send_timeout_s without progress; the upstream's connection is closed with it."""

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n" + b"x" * 50_000_000)
        await line.rest()

    w = await world(serve, send_timeout_s=0.2)
    client = await w.client()
    client.send(GET)
    await client.head()
    client.reader._transport.pause_reading()
    await w.until(lambda: w.stats.timeouts == {"send": 1})


async def test_draining_finishes_what_is_in_flight(world):
    """A request gets its answer with Connection: close; idle connections close at once."""
    go = asyncio.Event()

    async def serve(line):
        line.backend.heads.append(await line.head())
        await go.wait()
        line.send(OK)
        await line.rest()

    w = await world(serve)
    idle, busy = await w.client(), await w.client()
    busy.send(GET)
    await w.until(lambda: w.backend.heads)
    w.listener.close()
    draining = asyncio.create_task(w.gateway.connections.drain(5))
    assert await idle.ended() == "closed"
    go.set()
    reply = await busy.reply()
    assert (reply.status, reply.get("Connection")) == (200, "close")
    assert await draining == 0


@pytest.mark.measured
@pytest.mark.slow
async def test_kept_upstream_connections_are_closed_after_the_last_client(world):
    """An upstream connection nobody uses is given up in its time, also while no client is connected at all."""
    w = await world(upstream_idle_timeout_s=0.6)
    client = await w.client()
    assert (await client.ask(GET)).status == 200
    client.writer.transport.abort()
    await w.until(lambda: len(w.gateway.connections) == 0)
    assert [state[0] for state in w.gateway.upstreams.values()] == [1]
    await w.until(lambda: [state[0] for state in w.gateway.upstreams.values()] == [0])
