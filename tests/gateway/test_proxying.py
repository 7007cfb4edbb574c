"""Requests and answers through the gateway, byte for byte."""

from __future__ import annotations

import asyncio

import pytest

from sluicegate.doors.listen import Address

GET = b"GET /a?b=c%20d HTTP/1.1\r\nHost: api.example\r\n\r\n"


async def test_a_request_reaches_the_upstream_and_its_answer_the_client(world):
    """Method, target, host and body are unchanged; the answer carries the rate headers."""
    w = await world()
    reply = await w.ask(b"POST /x/%2e%2e//y?q=%00 HTTP/1.1\r\nHost: Api.Example:80\r\nContent-Length: 3\r\n\r\nabc")
    assert (reply.status, reply.body) == (200, b"ok")
    assert reply.get("x-ratelimit-limit") == "1000000"
    assert reply.get("x-ratelimit-policy") == "all;q=1000000;w=1;alg=token_bucket"
    head = w.backend.heads[0]
    assert head.startswith(b"POST /x/%2e%2e//y?q=%00 HTTP/1.1\r\nHost: Api.Example:80\r\n")
    assert w.backend.bodies == [b"abc"]


async def test_both_sides_keep_their_connections(world):
    """Twenty requests on one client connection use one upstream connection."""
    w = await world()
    client = await w.client()
    for _ in range(20):
        assert (await client.ask(GET)).status == 200
    assert len(w.backend.lines) == 1
    assert w.stats.upstream_connects == 1


async def test_pipelined_requests_are_answered_in_order(world):
    """They are sent on one at a time, so an upstream cannot mix them up."""

    async def serve(line):
        while True:
            head = await line.head()
            line.backend.heads.append(head)
            body = await line.request_body(head)
            target = head.split(b" ")[1] + body
            line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))

    w = await world(serve)
    client = await w.client()
    client.send(
        b"".join(
            b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody" % i
            if i % 3 == 0
            else b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i
            for i in range(100)
        )
    )
    answers = [(await client.reply()).body for _ in range(100)]
    assert answers == [b"/%d" % i + (b"body" if i % 3 == 0 else b"") for i in range(100)]


async def test_a_request_one_byte_at_a_time(world):
    """Segmentation means nothing, in the head, the chunks and the trailers."""
    w = await world()
    client = await w.client()
    wire = (
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"
    )
    for index in range(len(wire)):
        client.send(wire[index : index + 1])
        await client.flush()
        await asyncio.sleep(0)
    assert (await client.reply()).status == 200
    assert w.backend.bodies == [b"abcde"]


async def test_an_answer_one_byte_at_a_time(world):
    """The same on the other side."""
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\n"

    async def serve(line):
        await line.head()
        for index in range(len(wire)):
            line.send(wire[index : index + 1])
            await line.flush()
            await asyncio.sleep(0)
        await line.head()

    w = await world(serve)
    reply = await w.ask(GET)
    assert (reply.body, reply.trailers, reply.get("A")) == (b"abc", [("T", "1")], "b")


async def test_trailers_pass_both_ways_without_what_does_not_belong_there(world):
    """Fields that frame, route or identify are not believed after the body."""
    seen = []

    async def serve(line):
        head = await line.head()
        seen.append((head, (await line.chunked())[1]))
        line.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n"
            b"1\r\nx\r\n0\r\nSum: 7\r\nContent-Length: 9\r\nX-RateLimit-Limit: 5\r\nSet-Cookie: a=b\r\n\r\n"
        )
        await line.head()

    w = await world(serve)
    reply = await w.ask(
        b"POST / HTTP/1.1\r\nHost: x\r\nTE: trailers, deflate\r\nConnection: TE\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\nx\r\n0\r\nSum: 1\r\nX-Forwarded-For: 9.9.9.9\r\nHost: y\r\nAuthorization: z\r\n\r\n"
    )
    assert reply.trailers == [("Sum", "7")]
    assert seen[0][1] == [("Sum", "1")]
    assert b"\r\nConnection: TE\r\nTE: trailers\r\n" in seen[0][0]


@pytest.mark.parametrize(
    ("request_bytes", "answer", "body", "closes"),
    [
        (GET, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", False),
        (GET, b"HTTP/1.1 204 No Content\r\n\r\n", b"", False),
        (GET, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"", False),
        (GET.replace(b"GET", b"HEAD"), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"", False),
        (GET.replace(b"GET", b"HEAD"), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"", False),
        (GET, b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", b"no", False),
        (GET, b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (GET, b"HTTP/1.1 200\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (GET.replace(b"1.1", b"1.0"), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
        (
            GET.replace(b"1.1\r\n", b"1.0\r\nConnection: keep-alive\r\n"),
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"ok",
            False,
        ),
        (
            GET.replace(b"1.1\r\n", b"1.0\r\nConnection: keep-alive\r\n"),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            b"ok",
            True,
        ),
        (
            GET.replace(b"1.1\r\n", b"1.1\r\nConnection: close\r\n"),
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"ok",
            True,
        ),
    ],
)
async def test_how_an_answer_is_framed(world, request_bytes, answer, body, closes):
    """Its length reaches the client in a form its version understands, and every answer carries rate headers."""

    async def serve(line):
        await line.head()
        line.send(answer)
        await line.head()

    w = await world(serve)
    client = await w.client()
    method = request_bytes.split(b" ")[0].decode()
    reply = await client.ask(request_bytes, method=method)
    assert reply.body == body
    assert reply.raw.startswith(b"HTTP/1.1 ")
    assert reply.get("X-RateLimit-Remaining") is not None
    if closes:
        assert reply.get("Connection") == "close"
        assert await client.ended() == "closed"
    else:
        assert reply.get("Connection") != "close"


async def test_a_body_that_ends_with_the_connection_is_chunked_for_the_client(world):
    """So the client connection lives on, and a cut body would be seen."""

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await line.flush()
        line.send(b"thing")
        line.close()

    w = await world(serve)
    client = await w.client()
    for _ in range(2):
        reply = await client.ask(GET)
        assert reply.body == b"something"
        assert reply.get("Transfer-Encoding") == "chunked"


async def test_interim_answers_reach_the_client(world):
    """103 passes; 100 only where it was asked for; the final answer alone carries rate headers."""

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await line.head()

    w = await world(serve)
    client = await w.client()
    hints = await client.ask(GET)
    assert (hints.status, hints.get("Link"), hints.get("X-RateLimit-Limit")) == (103, "</a>", None)
    assert (await client.reply()).status == 200
    old = await w.ask(GET.replace(b"1.1", b"1.0"))
    assert old.status == 200


async def test_an_answer_may_come_before_the_whole_request(world):
    """The client gets it at once, and the rest of the body still flows."""

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nea")
        assert await line.exactly(10) == b"0123456789"
        line.send(b"rly")
        await line.head()

    w = await world(serve)
    client = await w.client()
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234")
    head = await client.head()
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert await client.exactly(2) == b"ea"
    client.send(b"56789")
    assert await client.exactly(3) == b"rly"


async def test_an_answer_before_the_end_of_the_request_does_not_confuse_the_next(world):
    """The rest of a small body is read and thrown away; the upstream connection is not used again."""

    async def serve(line):
        head = await line.head()
        line.backend.heads.append(head)
        line.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        await line.rest()

    w = await world(serve)
    client = await w.client()
    client.send(b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n")
    assert (await client.reply()).status == 403
    client.send(b"GET /smuggled HTTP/1.1\r\nHost:x" + b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.reply()).status == 403
    assert w.backend.targets == ["POST /1", "GET /2"]
    assert len(w.backend.lines) == 2


async def test_upstream_bytes_that_nobody_asked_for_are_not_the_next_answer(world):
    """A connection with bytes left over is closed, so no client gets another's answer."""
    sent = 0

    async def serve(line):
        nonlocal sent
        await line.head()
        sent += 1
        line.send(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%dHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil" % sent
        )
        await line.rest()

    w = await world(serve)
    client = await w.client()
    assert (await client.ask(GET)).body == b"1"
    assert (await client.ask(GET)).body == b"2"
    assert len(w.backend.lines) == 2


async def test_an_idle_upstream_connection_that_speaks_is_closed(world):
    """The same when the bytes come later."""

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1")
        await asyncio.sleep(0.02)
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await line.rest()

    w = await world(serve)
    client = await w.client()
    assert (await client.ask(GET)).body == b"1"
    await w.until(lambda: not next(iter(w.gateway.upstreams.values()))[0])
    assert (await client.ask(GET)).body == b"1"


async def test_an_absolute_target_is_forwarded_in_origin_form(world):
    """When it names the same host as Host."""
    w = await world()
    assert (await w.ask(b"GET http://X.example/a?b HTTP/1.1\r\nHost: x.Example\r\n\r\n")).status == 200
    assert (await w.ask(b"GET http://x?b HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    assert (await w.ask(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    assert w.backend.targets == ["GET /a?b", "GET /?b", "OPTIONS *"]


async def test_an_upstream_on_a_unix_socket(world, tmp_path):
    """And a gateway on one, whose peer has no address."""
    w = await world(ok_with_head, paths=[str(tmp_path / "up.sock")], listen=Address(path=str(tmp_path / "gw.sock")))
    reply = await w.ask(GET)
    assert reply.status == 200
    assert b"X-Forwarded-For" not in reply.body


async def ok_with_head(line):
    """Answer with the head that arrived."""
    while True:
        head = await line.head()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))
