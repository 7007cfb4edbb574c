"""The PROXY protocol on a listening gateway."""

from __future__ import annotations

import asyncio
import struct

import pytest

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
V1 = b"PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\n"
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V2_V6 = (
    SIGNATURE
    + b"\x21\x21"
    + struct.pack("!H", 36 + 7)
    + bytes.fromhex("20010db8000000000000000000000009")
    + bytes(16)
    + b"\x10\x00\x00\x50"
    + b"\x01\x00\x04http"
)
V2_MAPPED = SIGNATURE + b"\x21\x21" + struct.pack("!H", 36) + bytes(10) + b"\xff\xff\xc0\x00\x02\x07" + bytes(20)
V2_LOCAL = SIGNATURE + b"\x20\x00\x00\x00"


async def mirror(line):
    """Answer with the head that arrived."""
    while True:
        head = await line.head()
        line.backend.heads.append(head)
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (V1, b"203.0.113.9"),
        (b"PROXY UNKNOWN\r\n", b"127.0.0.1"),
        (V2_V6, b"2001:db8::9"),
        (V2_MAPPED, b"192.0.2.7"),
        (V2_LOCAL, b"127.0.0.1"),
    ],
)
async def test_the_address_of_the_header_is_the_peer(world, trusting, header, address):
    """For rules and for X-Forwarded-For, for every request of the connection, however the header arrives."""
    rules = trusting + "  - {name: each, per: [ip], quota: 2/hour, algorithm: fixed_window}\n"
    w = await world(mirror, rules=rules, proxy_protocol=True)
    together = await w.client()
    together.send(header + GET + GET)
    for _ in range(2):
        assert b"\r\nX-Forwarded-For: %b\r\n" % address in (await together.reply()).body
    slowly = await w.client()
    for index in range(len(header)):
        slowly.send(header[index : index + 1])
        await slowly.flush()
        await asyncio.sleep(0)
    assert (await slowly.ask(GET)).status == 429


async def test_a_client_behind_the_balancer_is_not_trusted_for_it(world, trusting):
    """The balancer may name its client; the client's own headers are a stranger's."""
    w = await world(mirror, rules=trusting, proxy_protocol=True)
    client = await w.client()
    client.send(V1 + GET.replace(b"\r\n\r\n", b"\r\nX-Forwarded-For: 1.2.3.4\r\nX-User-Id: admin\r\n\r\n"))
    body = (await client.reply()).body
    assert b"\r\nX-Forwarded-For: 203.0.113.9\r\n" in body
    assert b"admin" not in body


@pytest.mark.parametrize(
    "data", [GET, b"PROXY TCP4 1.2.3.4\r\n", b"PROXY " + b"x" * 200, SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12)]
)
async def test_a_missing_or_malformed_header_ends_the_connection(world, trusting, data):
    """Without an answer: who would get it is not known."""
    w = await world(mirror, rules=trusting, proxy_protocol=True)
    client = await w.client()
    client.send(data)
    assert await client.ended() in {"closed", "reset"}
    assert w.stats.proxy_rejected == 1
    assert w.backend.heads == []


async def test_a_header_from_an_untrusted_peer_ends_the_connection(world, trusting):
    """Or anybody who reaches the port could be anybody."""
    w = await world(mirror, rules=trusting.replace("127.0.0.0/8", "10.0.0.0/8"), proxy_protocol=True)
    client = await w.client()
    client.send(V1 + GET)
    assert await client.ended() in {"closed", "reset"}
    assert w.stats.proxy_rejected == 1


async def test_without_the_setting_a_header_is_a_bad_request(world, trusting):
    """It names nobody."""
    w = await world(mirror, rules=trusting)
    assert (await w.ask(V1 + GET)).status == 400


@pytest.mark.measured
@pytest.mark.slow
async def test_a_header_that_never_comes_is_not_waited_for(world, trusting):
    """header_timeout_s covers it."""
    w = await world(mirror, rules=trusting, proxy_protocol=True, header_timeout_s=0.1)
    client = await w.client()
    client.send(V1[:10])
    assert await client.ended() in {"closed", "reset"}
