"""Requests that mean harm: refused, alone, and never seen by the upstream."""

from __future__ import annotations

import asyncio

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.clock import ManualClock
from sluicegate.doors.gateway import Gateway
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

SECOND = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
H = b"Host: x\r\n"
P = b"POST / HTTP/1.1\r\n" + H


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (P + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (P + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", 400),
        (P + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
        (P + b"Content-Length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        (P + b"Content-Length: 5, 5\r\n\r\nhello", 400),
        (P + b"Content-Length: +5\r\n\r\nhello", 400),
        (P + b"Content-Length: -1\r\n\r\n", 400),
        (P + b"Content-Length: 0x5\r\n\r\nhello", 400),
        (P + b"Content-Length: 5 5\r\n\r\nhello", 400),
        (P + b"Content-Length:\r\n\r\n", 400),
        (P + b"Content-Length: 9999999999999999999\r\n\r\n", 400),
        (P + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (P + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (P + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
        (P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501),
        (P + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (P + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (P + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (P + b"Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n", 400),
        (P + b"X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (P + b"X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (P + b"X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x, y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: user@x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: .\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: ..:80\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: %78\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x:port\r\n\r\n", 400),
        (b'GET / HTTP/1.1\r\nHost: x"\r\n\r\n', 400),
        (b"GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://x@y/ HTTP/1.1\r\nHost: y\r\n\r\n", 400),
        (b"GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET x/y HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", 501),
        (b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (P + b"Content-Length: 5\r\nExpect: something\r\n\r\nhello", 417),
        (P + b"Transfer-Encoding: chunked\r\n\r\nZ\r\n", 400),
        (P + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n", 400),
        (P + b"Transfer-Encoding: chunked\r\n\r\n0\nX", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\n\n", 400),
        (b"GET /" + b"a" * 9000, 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 40_000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
async def test_it_is_refused_and_ends_the_connection(world, data, status):
    """One problem document, then nothing: whatever follows may be part of the attack. No byte reaches the upstream as a
    second request."""
    w = await world()
    client = await w.client()
    client.send(data + SECOND)
    reply = await client.reply()
    assert (reply.status, reply.get("Connection")) == (status, "close")
    assert reply.get("Content-Type") == "application/problem+json"
    assert await client.ended() in {"closed", "reset"}
    assert "GET /smuggled" not in w.backend.targets
    assert len(w.backend.targets) <= 1


async def test_a_chunk_extension_ends_at_the_gateway(world):
    """The upstream gets the body framed anew, without what parsers disagree about."""
    received = []

    async def serve(line):
        await line.head()
        received.append(await line.exactly(len(b"5\r\nhello\r\n0\r\n\r\n")))
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await line.head()

    w = await world(serve)
    reply = await w.ask(P + b"Transfer-Encoding: CHUNKED\r\n\r\n005;a=\x09b;c\r\nhello\r\n000\r\n\r\n")
    assert reply.status == 200
    assert received == [b"5\r\nhello\r\n0\r\n\r\n"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\r\n folded\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 200 OK\r\nA: " + b"a" * 40_000,
        b"garbage\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ],
)
async def test_an_answer_that_could_be_read_in_two_ways_is_not_passed_on(world, answer):
    """502 with the rate headers of the decision; the upstream connection is closed."""

    async def serve(line):
        await line.head()
        line.send(answer)
        await line.rest()

    w = await world(serve)
    client = await w.client()
    reply = await client.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert reply.status == 502
    assert reply.get("X-RateLimit-Limit") is not None
    assert w.stats.upstream_errors == {"bad_response": 1}


async def test_empty_lines_between_requests_are_nothing(world):
    """As RFC 9112 asks of servers, before the first request too."""
    w = await world()
    client = await w.client()
    client.send(b"\r\n\r\n" + SECOND + b"\r\n")
    assert (await client.reply()).status == 200
    assert (await client.ask(SECOND)).status == 200


@pytest.mark.measured
async def test_a_client_that_reads_nothing_costs_bounded_memory(world):
    """Ten thousand pipelined requests whose answers nobody reads: the gateway stops reading, too."""
    w = await world(rules="version: 1\nrules:\n  - {name: none, quota: 0}\n")
    client = await w.client()
    client.writer.transport.set_write_buffer_limits(high=1)
    client.reader._transport.pause_reading()
    sent = 0
    try:
        async with asyncio.timeout(1):
            while sent < 100_000:
                client.send(SECOND * 100)
                sent += 100
                await client.writer.drain()
    except TimeoutError:
        pass
    assert w.stats.requests < 60_000
    assert w.stats.requests < sent


pieces = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /p HTTP/1.1\r\n",
        b"GET http://x/ HTTP/1.0\r\n",
        b"Host: x\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\x00",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"abc",
        b"GET /s HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(pieces, st.binary(max_size=12)), max_size=14), st.lists(st.integers(1, 40), max_size=6))
def test_whatever_a_client_sends_the_upstream_reads_what_was_decided(parts, cuts):
    """No exception leaves the protocol, and an independent parser (h11) on the upstream's side sees exactly the requests
    that were decided, each complete or the last one cut off."""

    async def run():
        received = []

        class Upstream(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport
                self.parser = h11.Connection(h11.SERVER)

            def data_received(self, data):
                self.parser.receive_data(data)
                self.pump()

            def pump(self):
                while True:
                    event = self.parser.next_event()
                    if isinstance(event, h11.Request):
                        received.append((event.method, event.target))
                    elif isinstance(event, h11.EndOfMessage):
                        self.parser.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                        self.parser.send(h11.EndOfMessage())
                        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                        if (
                            self.parser.our_state is h11.MUST_CLOSE
                            or self.parser.their_state is h11.MIGHT_SWITCH_PROTOCOL
                        ):
                            self.transport.close()
                            return
                        self.parser.start_next_cycle()
                    elif not isinstance(event, h11.Data):
                        return

        loop = asyncio.get_running_loop()
        complaints = []
        loop.set_exception_handler(lambda _, about: complaints.append(about))
        upstream = await loop.create_server(Upstream, "127.0.0.1", 0)
        rules = load_rules("version: 1\nrules:\n  - {name: all, quota: 1000000/second}\n", "test")
        gateway = Gateway(
            Limiter.from_rules(rules, clock=ManualClock()),
            [f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"],
        )
        front = await loop.create_server(gateway.protocol_factory, "127.0.0.1", 0)
        _reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname()[:2])
        data = b"".join(parts)
        for size in [*cuts, len(data)]:
            writer.write(data[:size])
            data = data[size:]
            await asyncio.sleep(0)
        await asyncio.sleep(0.003)
        writer.transport.abort()
        front.close()
        await gateway.close()
        upstream.close()
        await asyncio.sleep(0)
        assert complaints == []
        assert gateway.stats.internal_errors == 0
        assert gateway.stats.in_flight == 0
        assert len(received) <= gateway.stats.allowed
        assert "closed" not in gateway.stats.upstream_errors
        assert "bad_response" not in gateway.stats.upstream_errors

    asyncio.run(run())
