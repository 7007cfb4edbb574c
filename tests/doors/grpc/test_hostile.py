"""Peers that mean harm: each attack costs little, ends in bounded time, and hurts no other connection."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ngh2 import NGH2Error

Start = Callable[..., Awaitable[Any]]

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
# :method POST, :scheme http, :path /, :authority a, content-type application/grpc
HEAD = b"\x83\x86\x84\x41\x01a\x0f\x10\x10application/grpc"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


BEGIN = PREFACE + frame(SETTINGS, 0, 0)

ATTACKS = {
    "no HTTP/2": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 50,
    "oversized frame": BEGIN + (1 << 20).to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big") + bytes(1000),
    "CONTINUATION flood": BEGIN + frame(HEADERS, 0, 1, HEAD) + frame(CONTINUATION, 0, 1, b"\x40\x01a\x01b") * 60_000,
    "HPACK bomb": BEGIN
    + frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD + b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000 + b"\xbe" * 12_000),
    "rapid reset": BEGIN
    + b"".join(
        frame(HEADERS, END_HEADERS, stream, HEAD) + frame(RESET, 0, stream, b"\0\0\0\x08")
        for stream in range(1, 40_001, 2)
    ),
    "PING flood": BEGIN + frame(PING, 0, 0, bytes(8)) * 100_000,
    "SETTINGS flood": BEGIN + frame(SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff") * 100_000,
    "empty DATA flood": BEGIN + frame(HEADERS, END_HEADERS, 1, HEAD) + frame(DATA, 0, 1) * 100_000,
    "PRIORITY on itself": BEGIN + frame(PRIORITY, 0, 1, b"\0\0\0\x01\x10") * 100_000,
    "window overflow": BEGIN + frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2,
    "DATA on no stream": BEGIN + frame(DATA, END_STREAM, 5, b"x"),
    "even stream": BEGIN + frame(HEADERS, END_HEADERS | END_STREAM, 2, HEAD),
    "broken compression": BEGIN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff\xff\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_attacks_end_their_connection(door: Any, message: bytes, attack: str) -> None:
    """The connection is closed, another one is answered meanwhile and after, and memory stays where it was."""
    other = await door.connect()
    assert (await other.call(RATE_LIMIT, message)).code == "OK"
    before = resident_bytes()
    attacker = await door.connect(begin=False)
    sending = asyncio.create_task(send_all(attacker, ATTACKS[attack]))
    ended = asyncio.create_task(read_all(attacker))
    assert (await other.call(RATE_LIMIT, message)).code == "OK"
    await asyncio.wait_for(ended, 10)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert (await other.call(RATE_LIMIT, message)).code == "OK"
    assert resident_bytes() - before < 32 << 20
    assert door.stats.internal_errors == 0


async def send_all(client: Any, data: bytes) -> None:
    """Send as long as the other side takes it."""
    try:
        await client.send(data)
    except ConnectionError:
        return


async def read_all(client: Any) -> bytes:
    """What comes until the connection ends."""
    received = b""
    try:
        while data := await client.reader.read(65536):
            received += data
    except ConnectionError:
        return received
    return received


async def test_a_goaway_is_told_before_the_end(door: Any) -> None:
    """A peer that breaks the protocol can read why, also where it is still sending."""
    attacker = await door.connect(begin=False)
    await attacker.send(BEGIN + (1 << 20).to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big"))
    for _ in range(20):
        await attacker.send(bytes(1000))
    received = await asyncio.wait_for(read_all(attacker), 10)
    assert frame(GOAWAY, 0, 0)[3:] + bytes(4) + (6).to_bytes(4, "big") in received, "FRAME_SIZE_ERROR"
    assert door.stats.protocol_errors == 1


@pytest.mark.measured
async def test_lingering_is_bounded(start_door: Start) -> None:
    """Who goes on sending after our last word is cut off after a while, and after so many bytes."""
    door = await start_door(linger_s=0.1)
    attacker = await door.connect(begin=False)
    await attacker.send(b"x" * 100)
    for _ in range(200):
        await asyncio.sleep(0.02)
        if not len(door.door.connections):
            break
    assert len(door.door.connections) == 0
    flood = await (await start_door(linger_s=60.0)).connect(begin=False)
    with pytest.raises(ConnectionError):
        for _ in range(2_000):
            await flood.send(bytes(65_536))


@pytest.mark.measured
async def test_tiny_frames_are_cheap(door: Any, client: Any, message: bytes) -> None:
    """A message in frames of one byte costs in proportion to its length: a large one is refused like any other, and delays nobody."""
    attacker = await door.connect()
    await attacker.send(BEGIN[len(PREFACE) :] + frame(HEADERS, END_HEADERS, 1, HEAD) + frame(DATA, 0, 1, b"x") * 65_000)
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while door.stats.bytes_in < 65_000 * 10:
        await asyncio.sleep(0.001)
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    assert loop.time() - begun_s < 5


async def test_calls_that_are_begun_and_not_ended(door: Any, message: bytes) -> None:
    """What a connection holds of incomplete calls is bounded: those beyond are refused, and what is complete or given up makes room again."""
    client = await door.connect()
    part = bytes(60_000)
    streams = [client.request(RATE_LIMIT, None) for _ in range(30)]
    for stream in streams:
        client.http2.send_data(stream, part)
    await client.flush()
    await client.until(lambda: len(client.closed) >= len(streams) - 17)
    refused = [stream for stream in streams if client.replies[stream].code is not None]
    assert {client.replies[stream].code for stream in refused} == {"RESOURCE_EXHAUSTED"}
    assert len(refused) == len(streams) - 17
    for stream in set(streams) - set(refused):
        client.http2.reset_stream(stream)
    await client.flush()
    again = client.request(RATE_LIMIT, None)
    client.http2.send_data(again, part)
    await client.flush()
    client.http2.send_data(again, b"", end_stream=True)
    await client.flush()
    assert (await client.reply(again)).code == "INTERNAL"
    assert (await client.call(RATE_LIMIT, message)).code == "OK"


async def test_window_updates_are_cheap(door: Any, client: Any, message: bytes) -> None:
    """A flood of window updates is taken, for it costs next to nothing, and delays nobody for long."""
    attacker = await door.connect()
    await attacker.send(frame(WINDOW, 0, 0, b"\0\0\0\x01") * 100_000)
    assert (await client.call(RATE_LIMIT, message)).code == "OK"


async def test_keepalive_pings_are_welcome(client: Any, message: bytes) -> None:
    """A few thousand pings between calls, as clients send to keep connections alive, end nothing."""
    for _ in range(20):
        for _ in range(100):
            client.http2.ping()
        await client.flush()
        assert (await client.call(RATE_LIMIT, message)).code == "OK"


async def test_calls_that_fail_are_no_attack(client: Any, message: bytes) -> None:
    """Thousands of calls that end in an error do not end the connection."""
    for _ in range(30):
        streams = [client.request(RATE_LIMIT, b"\xff") for _ in range(100)]
        await client.flush()
        assert {(await client.reply(stream)).code for stream in streams} == {"INVALID_ARGUMENT"}
    assert (await client.call(RATE_LIMIT, message)).code == "OK"


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
async def test_mutilated_streams(start_door: Start, message: bytes, engine: str) -> None:
    """Real traffic with bytes changed, removed and put in ends in an answer or an end, never in a fault of ours."""
    door = await start_door(engine=engine)
    dice = random.Random(20_261_130)
    body = b"\0" + len(message).to_bytes(4, "big") + message
    head = HEAD.replace(b"\x84", b"\x44" + bytes((len(RATE_LIMIT),)) + RATE_LIMIT.encode())
    good = BEGIN + b"".join(
        frame(HEADERS, END_HEADERS, stream, head) + frame(DATA, END_STREAM, stream, body) for stream in (1, 3, 5)
    )
    for _ in range(150):
        data = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            data[at : at + dice.randint(0, 3)] = dice.randbytes(dice.randint(0, 3))
        client = await door.connect(begin=False)
        await send_all(client, bytes(data))
        client.writer.write_eof()
        await asyncio.wait_for(read_all(client), 10)
        await client.close()
    assert door.stats.internal_errors == 0
    assert (await (await door.connect()).call(RATE_LIMIT, message)).code == "OK"


def not_http2(dice: random.Random) -> list[bytes]:
    """First bytes of peers that took the wrong port, or that lost their thread, and noise."""
    head = b"\x03" + bytes(32) + b"\0\0\x02\x13\x01\x01\0\0\0"
    hello = b"\x16\x03\x01" + (len(head) + 4).to_bytes(2, "big") + b"\x01" + len(head).to_bytes(3, "big") + head
    return [
        b"\n", b"\0", hello, b"SSH-2.0-OpenSSH_9.2\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST / HTTP/1.0\r\n\r\n", b"PRI * HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        PREFACE + b"GET / HTTP/1.1\r\n\r\n", PREFACE + hello,
        *(PREFACE[:end] + b"x" for end in range(len(PREFACE))),
        *(dice.randbytes(dice.randint(1, 200)) for _ in range(100)),
        *(PREFACE + dice.randbytes(dice.randint(9, 200)) for _ in range(50)),
        *(BEGIN + dice.randbytes(dice.randint(9, 200)) for _ in range(50)),
    ]  # fmt: skip


async def test_what_is_not_http2_is_the_peers_fault(start_door: Start, message: bytes) -> None:
    """It is counted, told by a GOAWAY and closed; the loop hears of no fault of ours, and others are answered."""
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    door = await start_door(linger_s=0.1)
    for data in not_http2(random.Random(20_261_201)):
        seen = door.stats.protocol_errors
        client = await door.connect(begin=False)
        await send_all(client, data)
        if data[:1] != b"P":
            received = await asyncio.wait_for(read_all(client), 10)
            assert received.endswith(frame(GOAWAY, 0, 0, bytes(4) + (1).to_bytes(4, "big"))[3:]), data
            assert door.stats.protocol_errors == seen + 1, data
        else:
            # What may be the beginning of a frame is waited for.
            client.writer.write_eof()
            await asyncio.wait_for(read_all(client), 10)
        await client.close()
        assert faults == [], data
    assert door.stats.internal_errors == 0
    assert (await (await door.connect()).call(RATE_LIMIT, message)).code == "OK"


async def test_truncated_prefaces_end_quietly(start_door: Start) -> None:
    """A peer that goes away, or falls silent, within its first bytes costs a connection for a bounded time and no fault."""
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    door = await start_door(linger_s=0.1, preface_s=0.1)
    for end in range(len(BEGIN)):
        silent, gone = await door.connect(begin=False), await door.connect(begin=False)
        await send_all(silent, BEGIN[:end])
        await send_all(gone, BEGIN[:end])
        await gone.close()
    async with asyncio.timeout(60):
        while len(door.door.connections):
            await asyncio.sleep(0.01)
    assert faults == []
    assert door.stats.internal_errors == 0


async def test_nothing_is_asked_of_an_engine_that_has_failed(start_door: Start) -> None:
    """Whoever comes first after nghttp2 has failed, the connection ends with a GOAWAY of our own and no fault."""
    begin = (
        lambda protocol: protocol.drain(),
        lambda protocol: protocol._end_for("preface"),
        lambda protocol: protocol.resume_writing(),
        lambda protocol: protocol._end_notice(),
        lambda protocol: (protocol._reset(1, 0), protocol._flush()),
    )
    door = await start_door()
    for first in begin:
        seen = door.stats.bytes_out
        client = await door.connect(begin=False)
        async with asyncio.timeout(60):
            while door.stats.bytes_out == seen:
                await asyncio.sleep(0.001)
        (protocol,) = [each for each in door.door.connections._live if not each._closing]
        with pytest.raises(NGH2Error):
            protocol._connection.receive_data(b"x" * 24)
        first(protocol)
        assert (await asyncio.wait_for(read_all(client), 10)).endswith(bytes(7) + b"\x01")
        await client.close()
