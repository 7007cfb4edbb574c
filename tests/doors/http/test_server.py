"""The server on the wire: framing, persistence, pipelining, timeouts, early answers, drain. Real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

CHECK = b'{"key":"k","policy":{"algorithm":"token_bucket","capacity":1000,"refill_per_sec":1}}'
Start = Callable[..., Awaitable[Any]]
Request = Callable[..., bytes]


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the server's loop run until the condition holds; fail after 5 s."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_answer_has_date_length_and_no_connection_field(client: Any) -> None:
    """A persistent HTTP/1.1 answer carries Date and Content-Length and says nothing about the connection."""
    answer = await client.check(CHECK)
    assert answer.status == 200
    assert answer.headers["date"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert answer.headers["content-type"] == "application/json"
    assert "connection" not in answer.headers
    assert len(answer.body) == int(answer.headers["content-length"])


async def test_date_follows_the_clock(server: Any, client: Any) -> None:
    """The Date field is renewed by the sweep."""
    await client.check(CHECK)
    server.clock.advance(3_600_000_000)
    async with asyncio.timeout(60):
        while (await client.check(CHECK)).headers["date"] != "Tue, 14 Nov 2023 23:13:20 GMT":
            await asyncio.sleep(0.01)


async def test_connection_is_reused(server: Any, client: Any) -> None:
    """Many requests ride on one connection, bodies with and without content."""
    for left in range(999, 989, -1):
        assert (await client.check(CHECK)).json["remaining"] == left
        assert (await client.ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")).json == {"live": True}
    assert server.door.connections.opened == 1


async def test_one_byte_segments(client: Any, make_request: Request) -> None:
    """A request that arrives byte by byte is the same request, twice in a row."""
    raw = make_request("POST", "/v1/check", CHECK)
    for left in (999, 998):
        await client.send(*[raw[i : i + 1] for i in range(len(raw))])
        assert (await client.read()).json["remaining"] == left


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_chunked_body_in_any_segments(client: Any, size: int) -> None:
    """A chunked body counts like any other, however it is cut."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(CHECK[i : i + 9]), CHECK[i : i + 9]) for i in range(0, len(CHECK), 9))
    raw = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    for left in (999, 998):
        await client.send(*[raw[i : i + size] for i in range(0, len(raw), size)])
        assert (await client.read()).json["remaining"] == left


async def test_hundred_pipelined_requests_are_answered_in_order(
    server: Any, client: Any, make_request: Request
) -> None:
    """100 requests in one write get 100 answers in order; a broken one among them ends the row after its own 400."""
    raw = make_request("POST", "/v1/check", CHECK)
    await client.send(raw * 100)
    assert [(await client.read()).json["remaining"] for _ in range(100)] == list(range(999, 899, -1))
    await client.send(raw * 2 + b"BROKEN\r\n\r\n" + raw)
    assert [(await client.read()).status for _ in range(3)] == [200, 200, 400]
    assert await client.at_end() == b""
    assert (await (await server.connect()).check(CHECK)).json["remaining"] == 897


async def test_pipelined_answers_leave_in_one_write(server: Any, make_request: Request) -> None:
    """Answers to requests of one read are coalesced: the peer sees one segment, not a hundred."""
    protocol = server.door.protocol_factory()
    writes: list[bytes] = []

    class Transport(asyncio.Transport):
        def write(self, data: Any) -> None:
            writes.append(data)

    protocol.connection_made(Transport())
    protocol.data_received(make_request("POST", "/v1/check", CHECK) * 100)
    assert len(writes) == 1
    assert writes[0].count(b"HTTP/1.1 200 OK") == 100
    protocol.connection_lost(None)


async def test_http_1_0(server: Any, client: Any) -> None:
    """HTTP/1.0 gets Connection: keep-alive when it asks, else the answer and the close."""
    answer = await client.ask(b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")
    answer = await client.ask(b"GET /livez HTTP/1.0\r\n\r\n")
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await client.at_end() == b""


async def test_head_has_the_length_and_no_body(client: Any) -> None:
    """HEAD answers with the headers of GET and nothing behind them."""
    full = await client.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.send(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\nHEAD /nope HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await client.read(bodiless=True)
    assert answer.headers == full.headers
    assert (await client.read(bodiless=True)).status == 404
    assert (await client.ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200


async def test_close_is_honoured(client: Any) -> None:
    """Connection: close is answered in kind."""
    answer = await client.ask(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.headers["connection"] == "close"
    assert await client.at_end() == b""


async def test_expect_continue(client: Any) -> None:
    """A waiting client is told to go on, once, and then gets its answer."""
    head = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(CHECK)
    answer = await client.ask(head)
    assert answer.status == 100
    assert (await client.ask(CHECK)).status == 200
    assert (await client.ask(head + CHECK)).status == 200, "no 100 when the body is there already"


@pytest.mark.parametrize(("path", "status"), [("/nope", 404), ("/livez", 405)])
async def test_refused_expectation_ends_the_connection(client: Any, path: str, status: int) -> None:
    """Where the answer does not depend on the body, it comes instead of 100 Continue."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    answer = await client.ask(head.encode())
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert await client.at_end() == b""


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/check", 405, "POST"),
        ("DELETE", "/livez", 405, "GET, HEAD"),
        ("OPTIONS", "/v1/check/batch", 405, "POST"),
        ("GET", "/", 404, None),
        ("POST", "/v1/check/", 404, None),
        ("POST", "/V1/check", 404, None),
        ("POST", "/v1/check/../check", 404, None),
    ],
)
async def test_wrong_path_or_method(
    client: Any, make_request: Request, method: str, path: str, status: int, allow: str | None
) -> None:
    """Unknown paths are 404, wrong methods 405 with Allow; the body is read and the connection lives on."""
    answer = await client.ask(make_request(method, path, CHECK))
    assert answer.status == status
    assert answer.headers.get("allow") == allow
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await client.check(CHECK)).status == 200


async def test_token(start: Start, make_request: Request) -> None:
    """With a token set, /v1 asks for it in every spelling but the right one; health and metrics stay open."""
    server = await start(api_token="s3cret")
    client = await server.connect()
    for value in ("", "Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer s3cret, Bearer x"):
        fields = (f"Authorization: {value}",) if value else ()
        answer = await client.ask(make_request("POST", "/v1/check", CHECK, *fields))
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    twice = ("Authorization: Bearer s3cret", "Authorization: Bearer s3cret")
    assert (await client.ask(make_request("POST", "/v1/check", CHECK, *twice))).status == 401
    for scheme in ("Bearer", "bearer", "BEARER "):
        answer = await client.ask(make_request("POST", "/v1/check", CHECK, f"Authorization: {scheme} s3cret"))
        assert answer.status == 200
    assert answer.json["remaining"] == 997, "a refused caller was charged nothing"
    for path in ("/livez", "/readyz", "/healthz", "/metrics"):
        assert (await client.ask(make_request("GET", path))).status == 200


async def test_health(server: Any, client: Any, make_request: Request) -> None:
    """Liveness asks nothing; readiness gives its reasons and 503 when traffic is unwanted; metrics pass through."""
    answer = await client.ask(make_request("GET", "/readyz"))
    assert (answer.status, answer.json) == (200, {"ready": True, "version": 1})
    server.ready = (False, {"reason": "draining"})
    for path in ("/readyz", "/healthz"):
        answer = await client.ask(make_request("GET", path))
        assert (answer.status, answer.json) == (503, {"ready": False, "reason": "draining"})
        assert answer.headers["cache-control"] == "no-store"
    assert (await client.ask(make_request("GET", "/livez"))).status == 200
    answer = await client.ask(make_request("GET", "/metrics"))
    assert (answer.headers["content-type"], answer.body) == ("text/plain; version=0.0.4", b"up 1\n")


async def test_body_over_the_limit_is_413_before_it_is_sent(start: Start) -> None:
    """A declared length above the limit is refused at once, with close, while the peer still sends."""
    server = await start(body_bytes_max=1_000)
    client = await server.connect()
    await client.send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
    piece = b"x" * 65_536
    for _ in range(60):
        await client.send(piece)
    answer = await client.read()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert "1000 bytes" in answer.json["detail"]
    assert await client.at_end() == b""
    assert server.stats.bad_requests["too_large"] == 1


async def test_chunked_body_over_the_limit_is_413(start: Start) -> None:
    """Chunks that add up beyond the limit are refused as soon as that is known."""
    server = await start(body_bytes_max=1_000)
    client = await server.connect()
    await client.send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(200):
        await client.send(b"190\r\n" + b"x" * 400 + b"\r\n")
    answer = await client.read()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert await client.at_end() == b""


async def test_body_at_the_limit_is_taken(start: Start, make_request: Request) -> None:
    """Exactly the limit is still read; one byte more is not."""
    server = await start(body_bytes_max=len(CHECK) + 100)
    client = await server.connect()
    assert (await client.ask(make_request("POST", "/v1/check", CHECK + b" " * 100))).status == 200
    assert (await client.ask(make_request("POST", "/v1/check", CHECK + b" " * 101))).status == 413


@pytest.mark.measured
async def test_lingering_is_bounded_in_time(start: Start) -> None:
    """A peer that never stops sending after its 413 is cut off."""
    server = await start(body_bytes_max=10, linger_s=0.1)
    client = await server.connect()
    await client.send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 500000000\r\n\r\n")
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(60):
            while True:
                await client.send(b"x" * 1_000)
                await asyncio.sleep(0.005)
    assert server.stats.timeouts["linger"] == 1
    await eventually(lambda: len(server.door.connections) == 0)


async def test_lingering_is_bounded_in_bytes(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends without end is cut off by volume too."""
    monkeypatch.setattr("sluicegate.doors.http.protocol.HTTP_LINGER_BYTES_MAX", 1_000_000)
    client = await server.connect()
    await client.send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 500000000\r\n\r\n")
    with pytest.raises(ConnectionError):
        for _ in range(1_000):
            await client.send(b"x" * 100_000)
    await eventually(lambda: len(server.door.connections) == 0)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2_000 + b"\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2_000, 431),
        (b"GET /" + b"a" * 2_000, 431),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(30)) + b"\r\n", 431),
        (b"GET /livez HTTP/1.1\nHost: x\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\0\0\0\0", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (
            b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
async def test_broken_framing_gets_its_status_and_the_close(start: Start, raw: bytes, status: int) -> None:
    """What cannot be framed is answered once, closed, and never read as a second request."""
    server = await start(head_bytes_max=1_024, fields_max=20)
    client = await server.connect()
    answer = await client.ask(raw)
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert answer.headers["content-type"] == "application/problem+json"
    assert await client.at_end() == b""
    assert sum(server.stats.bad_requests.values()) == 1


@pytest.mark.measured
async def test_slow_head_times_out(start: Start) -> None:
    """Slowloris: a trickle of header bytes does not extend the time for the header; 408 and close."""
    server = await start(head_s=0.15, idle_s=30.0)
    client = await server.connect()

    async def trickle() -> None:
        raw = b"GET /livez HTTP/1.1\r\nHost: x\r\nX: "
        for i in range(10_000):
            await client.send(raw[i : i + 1] or b"a")
            await asyncio.sleep(0.01)

    task = asyncio.create_task(trickle())
    answer = await client.read()
    task.cancel()
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert server.stats.timeouts["head"] == 1


@pytest.mark.measured
async def test_slow_body_times_out(start: Start) -> None:
    """A body that dawdles is given up on, whatever trickles in."""
    server = await start(body_s=0.1, idle_s=30.0)
    client = await server.connect()
    await client.send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    answer = await client.read()
    assert answer.status == 408
    assert "body" in answer.json["detail"]
    assert server.stats.timeouts["body"] == 1


@pytest.mark.measured
async def test_idle_connections_are_closed_silently(start: Start) -> None:
    """Silence between requests ends in a plain close, before the first request and after."""
    server = await start(idle_s=0.1)
    fresh, used = await server.connect(), await server.connect()
    assert (await used.check(CHECK)).status == 200
    assert await fresh.at_end() == b""
    assert await used.at_end() == b""
    assert server.stats.timeouts["idle"] == 2


@pytest.mark.measured
async def test_each_request_gets_its_own_time(start: Start, make_request: Request) -> None:
    """The time for a header starts anew with each request, also when its first bytes come with the last request."""
    server = await start(head_s=0.4, idle_s=30.0)
    client = await server.connect()
    raw = make_request("POST", "/v1/check", CHECK)
    await client.send(raw[:10])
    for _ in range(4):
        await asyncio.sleep(0.15)
        await client.send(raw[10:] + raw[:10])
        assert (await client.read()).status == 200
    assert server.stats.timeouts["head"] == 0


@pytest.mark.measured
async def test_reader_that_does_not_read_stops_the_server_from_reading(start: Start, make_request: Request) -> None:
    """A peer that sends and never reads is held in bounded memory and cut off after the write timeout."""
    server = await start(write_s=0.3)
    client = await server.connect()
    raw_socket = client.writer.get_extra_info("socket")
    raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.reader._transport.pause_reading()
    burst = make_request("GET", "/nope") * 1_000
    with pytest.raises((ConnectionError, TimeoutError)):
        async with asyncio.timeout(10):
            while True:
                await client.send(burst)
    await eventually(lambda: len(server.door.connections) == 0)
    assert server.stats.timeouts["write"] == 1
    assert server.stats.bytes_out < 64_000_000


async def test_reader_that_reads_late_gets_everything(start: Start, make_request: Request) -> None:
    """When a slow reader comes back, the rest is served, in order and complete."""
    server = await start()
    client = await server.connect()
    count = 40_000
    sending = asyncio.create_task(client.send(make_request("GET", "/nope") * count))
    await eventually(lambda: server.stats.requests["other"].get(404, 0) > 0)
    for _ in range(count):
        assert (await client.read()).status == 404
    await sending
    assert server.stats.requests["other"][404] == count


async def test_half_closed_client_is_answered(client: Any, make_request: Request) -> None:
    """A client that shuts down its sending side still gets every answer."""
    await client.send(make_request("POST", "/v1/check", CHECK) * 3)
    client.writer.write_eof()
    got = await client.at_end()
    assert got.count(b"HTTP/1.1 200 OK") == 3


async def test_too_many_connections(start: Start) -> None:
    """Above the limit a connection is told 503 and closed; those inside are not disturbed."""
    server = await start(connections_max=2)
    first, second = await server.connect(), await server.connect()
    assert (await first.check(CHECK)).status == 200
    assert (await second.check(CHECK)).status == 200
    third = await server.connect()
    answer = await third.read()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert await third.at_end() == b""
    assert (await first.check(CHECK)).status == 200
    assert server.stats.connections_refused == 1


async def test_drain_finishes_what_is_in_flight(server: Any, make_request: Request) -> None:
    """Drain closes idle connections, lets a half-sent request finish with Connection: close, and accepts no other."""
    idle, busy = await server.connect(), await server.connect()
    assert (await idle.check(CHECK)).status == 200
    raw = make_request("POST", "/v1/check", CHECK)
    await busy.send(raw[:-5])
    await eventually(lambda: server.stats.bytes_in >= 2 * len(raw) - 5)
    server.listener.close()
    draining = asyncio.create_task(server.door.connections.drain(5))
    assert await idle.at_end() == b""
    await busy.send(raw[-5:])
    answer = await busy.read()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await busy.at_end() == b""
    assert await draining == 0


async def test_drain_answers_a_request_that_is_on_its_way(server: Any, make_request: Request) -> None:
    """A request sent on a kept connection as the drain begins is answered, with Connection: close."""
    kept = await server.connect()
    assert (await kept.check(CHECK)).status == 200
    server.listener.close()
    draining = asyncio.create_task(server.door.connections.drain(5))
    await asyncio.sleep(0)
    await kept.send(make_request("POST", "/v1/check", CHECK))
    answer = await kept.read()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await draining == 0


async def test_drain_aborts_what_does_not_finish(server: Any, make_request: Request) -> None:
    """A request that never ends does not hold up the drain."""
    stuck = await server.connect()
    await stuck.send(make_request("POST", "/v1/check", CHECK)[:-5])
    await eventually(lambda: server.stats.bytes_in > 0)
    assert await server.door.connections.drain(0.05) == 1
    assert await stuck.at_end() == b""


async def test_unix_socket(start: Start, tmp_path: Path) -> None:
    """The same server answers on a Unix socket."""
    server = await start(address=f"unix:{tmp_path}/api.sock")
    client = await server.connect()
    assert (await client.check(CHECK)).status == 200


async def test_fault_of_ours_is_a_500_and_the_connection_lives(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that raises is logged and answered 500 without details; the next request is served."""
    server = await start()
    client = await server.connect()

    def broken() -> tuple[bool, dict[str, object]]:
        raise RuntimeError("secret")

    server.door._site.routes["/readyz"].handlers["GET"].__self__._ready = broken
    answer = await client.ask(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "secret" in caplog.text
    assert (await client.check(CHECK)).status == 200
    assert server.stats.internal_errors == 1


async def test_health_only_door_decides_nothing(start: Start, make_request: Request) -> None:
    """A door for health alone has no /v1."""
    server = await start(health_only=True)
    client = await server.connect()
    assert (await client.check(CHECK)).status == 404
    assert (await client.ask(make_request("GET", "/livez"))).status == 200
