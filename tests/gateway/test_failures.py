"""Upstreams and clients that fail at every stage: what the other side sees."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def closed_port():
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def assert_problem(reply, status):
    """A problem document that carries the rate headers of its decision."""
    assert reply.status == status
    assert reply.get("Content-Type") == "application/problem+json"
    assert json.loads(reply.body)["status"] == status
    assert reply.get("X-RateLimit-Limit") == "1000000"


async def test_an_upstream_that_cannot_be_connected_is_502(world):
    """And the client connection serves on."""
    w = await world(urls=[f"http://127.0.0.1:{closed_port()}"])
    client = await w.client()
    for _ in range(2):
        assert_problem(await client.ask(POST), 502)
    assert w.stats.upstream_errors == {"connect": 2}


@pytest.mark.measured
async def test_an_upstream_that_does_not_accept_is_504(world):
    """The attempt ends after connect_timeout_s."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        w = await world(urls=[f"http://127.0.0.1:{full.getsockname()[1]}"], connect_timeout_s=0.1)
        assert_problem(await w.ask(GET), 504)
        assert w.stats.upstream_errors == {"connect_timeout": 1}
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"])
async def test_an_upstream_that_ends_before_its_answer_is_502(world, sent):
    """A fresh connection that ends is not tried again: the request may have been carried out."""

    async def serve(line):
        line.backend.heads.append(await line.head())
        line.send(sent)

    w = await world(serve)
    client = await w.client()
    assert_problem(await client.ask(GET), 502)
    assert_problem(await client.ask(POST), 502)
    assert w.backend.targets == ["GET /a", "POST /a"]
    assert w.stats.upstream_errors == {"closed": 2}


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nsome",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsomeX",
    ],
)
async def test_a_cut_answer_never_looks_complete(world, sent, reset):
    """The client connection breaks with a reset, also for a client that reads until the end."""

    async def serve(line):
        await line.head()
        line.send(sent)
        await line.flush()
        await asyncio.sleep(0.01)
        if reset:
            line.reset()

    w = await world(serve)
    for request in (GET, GET.replace(b"1.1", b"1.0")):
        client = await w.client()
        client.send(request)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)) as caught:
            await client.head()
            while True:
                await client.exactly(1)
        if isinstance(caught.value, asyncio.IncompleteReadError):
            assert b"\r\n0\r\n" not in caught.value.partial
            assert request is GET
    assert w.stats.upstream_errors == {"truncated": 2}


async def test_a_reset_in_a_body_without_length_is_not_its_end(world):
    """A clean end is the end of the body; a broken connection is a cut body."""

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await line.flush()
        await asyncio.sleep(0.02)
        line.reset()

    w = await world(serve)
    client = await w.client()
    client.send(GET)
    await client.head()
    assert await client.line() == b"4\r\n"
    assert b"0\r\n\r\n" not in await client.rest()


async def answer_once(line):
    """An upstream that closes kept connections without saying so: it answers once and ends at the next request."""
    line.backend.heads.append(await line.head())
    line.send(OK)
    line.backend.heads.append(await line.head())


async def test_a_request_on_a_dead_kept_connection_is_sent_again(world):
    """Idempotent, without a body, not a byte of an answer: it goes out once more, on a new connection."""
    w = await world(answer_once)
    client = await w.client()
    assert (await client.ask(GET)).status == 200
    assert (await client.ask(GET)).status == 200
    assert w.stats.retries == 1
    assert w.backend.targets == ["GET /a"] * 3


async def test_a_request_that_may_not_be_repeated_is_not(world):
    """Whether a POST was carried out cannot be known, so the client decides: 502."""
    w = await world(answer_once)
    client = await w.client()
    assert (await client.ask(GET)).status == 200
    assert_problem(await client.ask(POST), 502)
    assert (await client.ask(GET)).status == 200
    assert_problem(await client.ask(b"POST /empty HTTP/1.1\r\nHost: x\r\n\r\n"), 502)
    assert w.stats.retries == 0


async def test_a_request_is_repeated_once(world):
    """Two dead connections in a row are an upstream that is down."""

    async def serve(line):
        line.backend.heads.append(await line.head())
        if len(line.backend.heads) == 1:
            line.send(OK)
            line.backend.heads.append(await line.head())

    w = await world(serve)
    client = await w.client()
    assert (await client.ask(GET)).status == 200
    assert_problem(await client.ask(GET), 502)
    assert (w.stats.retries, len(w.backend.heads)) == (1, 3)


async def test_a_kept_connection_that_ends_while_idle_is_not_used(world):
    """Its end is seen when it comes, so even a POST is safe."""

    async def serve(line):
        await line.head()
        line.send(OK)

    w = await world(serve)
    client = await w.client()
    for _ in range(3):
        assert (await client.ask(POST)).status == 200
        await w.until(lambda: not next(iter(w.gateway.upstreams.values()))[0])
    assert w.stats.retries == 0


async def test_an_upstream_that_announces_its_patience_is_believed(world):
    """Keep-Alive: timeout=1 means that the connection is not worth keeping."""

    async def serve(line):
        line.backend.heads.append(await line.head())
        line.send(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1, max=5\r\nContent-Length: 0\r\n\r\n")
        await line.head()

    w = await world(serve)
    client = await w.client()
    assert (await client.ask(POST)).status == 200
    assert (await client.ask(POST)).status == 200
    assert len(w.backend.lines) == 2


async def hold(line):
    """Read the request and never answer."""
    line.backend.heads.append(await line.head())
    await line.rest()
    line.backend.heads.append(b"GONE HTTP/")


async def test_a_client_that_leaves_cancels_its_request(world):
    """The upstream connection is closed, so the upstream can stop working."""
    w = await world(hold)
    client = await w.client()
    client.send(GET)
    await w.until(lambda: w.backend.heads)
    client.close()
    await w.until(lambda: "GONE" in w.backend.targets)
    assert w.stats.cancelled == 1


async def test_a_client_that_leaves_while_it_waits_for_a_connection_is_forgotten(world):
    """Its place in the queue is free."""
    w = await world(hold, upstream_connections_max=1)
    first, second = await w.client(), await w.client()
    first.send(GET)
    await w.until(lambda: w.backend.heads)
    second.send(GET)
    await w.until(lambda: w.stats.in_flight == 2)
    second.close()
    await w.until(lambda: w.stats.in_flight == 1)
    assert next(iter(w.gateway.upstreams.values()))[:3] == (1, 1, 0)


async def test_requests_wait_for_a_free_connection_in_order(world):
    """No more connections than allowed; whoever came first goes first."""

    async def serve(line):
        while True:
            head = await line.head()
            line.backend.heads.append(head)
            await asyncio.sleep(0.005)
            line.send(OK)

    w = await world(serve, upstream_connections_max=2)
    clients = [await w.client() for _ in range(10)]
    for index, client in enumerate(clients):
        client.send(GET.replace(b"/a", b"/%d" % index))
        await w.until(lambda n=index: w.stats.in_flight + w.stats.responses[2] == n + 1)
    assert [(await client.reply()).status for client in clients] == [200] * 10
    assert sorted(w.backend.targets[:2]) == ["GET /0", "GET /1"]
    assert w.backend.targets[2:] == [f"GET /{index}" for index in range(2, 10)]
    assert len(w.backend.lines) == 2


async def test_a_full_queue_is_503(world):
    """With a hint to come back."""
    w = await world(hold, upstream_connections_max=1, waiting_max=1)
    for count in (1, 2):
        (await w.client()).send(GET)
        await w.until(lambda n=count: w.stats.in_flight == n)
    reply = await w.ask(GET)
    assert_problem(reply, 503)
    assert reply.get("Retry-After") == "1"


async def test_more_connections_than_allowed_are_told_so(world):
    """503 with Retry-After, at once; those that are there serve on."""
    w = await world(connections_max=1)
    first = await w.client()
    assert (await first.ask(GET)).status == 200
    second = await w.client()
    reply = await second.reply()
    assert (reply.status, reply.get("Retry-After"), reply.get("Connection")) == (503, "1", "close")
    assert await second.ended() == "closed"
    assert (await first.ask(GET)).status == 200
    assert w.stats.connections_refused == 1
