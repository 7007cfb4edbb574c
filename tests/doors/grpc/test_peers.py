"""Peers that end calls and connections in their own ways, and faults of ours: what the shell around nghttp2 does then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.bounds import GRPC_PENDING_BYTES_MAX
from sluicegate.clock import ManualClock
from sluicegate.doors.grpc.calls import Route
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import LaterStore

Start = Callable[..., Awaitable[Any]]

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
CALLS = 200_000


def call_of_no_method(number: int) -> bytes:
    """A whole call, a HEADERS frame that ends its stream. The answer repeats its long path, which no compression makes short."""
    fields = b"\x83\x86\x04\x78/%0119d\x01\x01a\x0f\x10\x10application/grpc" % number
    return len(fields).to_bytes(3, "big") + b"\x01\x05" + (2 * number + 1).to_bytes(4, "big") + fields


async def test_a_client_that_reads_nothing(start_door: Start, message: bytes) -> None:
    """Its calls are taken no longer once its answers stand here, so they are bounded; in time the connection is cut, and others are answered."""
    door = await start_door(write_s=1.0, streams_max=CALLS)  # else it would have to wait for answers by itself
    client = await door.connect()
    while not door.stats.bytes_out:
        await asyncio.sleep(0.01)
    client.writer.transport.pause_reading()
    calls = b"".join(call_of_no_method(number) for number in range(CALLS))
    sending = asyncio.ensure_future(client.send(calls))
    async with asyncio.timeout(60):
        while not door.stats.timeouts["write"]:
            await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert door.stats.calls["other"][12] < CALLS
    assert (door.stats.protocol_errors, len(door.door.connections)) == (0, 0)
    assert (await (await door.connect()).call(RATE_LIMIT, message)).code == "OK"


async def test_a_call_given_up_in_the_read_that_completes_it(door: Any, client: Any, message: bytes) -> None:
    """A call and its reset in the same bytes: nobody is answered, nothing fails, and the connection serves on."""
    for body in (message, b"\xff"):  # one that would be answered, one that would be refused
        stream = client.request(RATE_LIMIT, body)
        data = client.http2.data_to_send()
        client.http2.reset_stream(stream)
        await client.send(data + client.http2.data_to_send())
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    assert (door.stats.cancelled, door.stats.internal_errors, door.stats.protocol_errors) == (2, 0, 0)


async def test_data_for_a_call_that_was_answered(start_door: Start, message: bytes) -> None:
    """What still comes for a call that was refused for its length is thrown away."""
    door = await start_door(message_bytes_max=100)
    client = await door.connect()
    stream = client.request(RATE_LIMIT, None)
    client.http2.send_data(stream, bytes(200))
    for _ in range(20):
        client.http2.send_data(stream, bytes(1000))
    client.http2.send_data(stream, b"", end_stream=True)
    await client.flush()
    assert (await client.reply(stream)).code == "RESOURCE_EXHAUSTED"
    assert (await client.call(RATE_LIMIT, message)).code == "OK"


@pytest.mark.parametrize(("ending", "code"), [(b"", "OK"), (b"\xff", "INVALID_ARGUMENT")])
async def test_calls_in_pieces_make_room_again(client: Any, message: bytes, ending: bytes, code: str) -> None:
    """What came in pieces counts for its connection until the call is answered, well or badly, and no longer."""
    padding = b"\x7a" + bytes((0xE0, 0xD4, 0x03)) + bytes(60_000)  # field 15, which nobody knows
    body = message + padding + ending
    framed = b"\0" + len(body).to_bytes(4, "big") + body
    for _ in range(-(-GRPC_PENDING_BYTES_MAX // 60_000) + 2):
        stream = client.request(RATE_LIMIT, None)
        client.http2.send_data(stream, framed[:60_000])
        await client.flush()
        client.http2.send_data(stream, framed[60_000:], end_stream=True)
        await client.flush()
        assert (await client.reply(stream)).code == code


@pytest.mark.measured
async def test_the_time_of_a_request_is_not_that_of_its_answer(start_door: Start, message: bytes) -> None:
    """A call that is complete and waits for the store is not ended for coming slowly."""
    store = LaterStore(MemoryStore(ManualClock()))
    rules = load_rules("version: 1\nrules: [{name: a, match: {domain: edge}, quota: 5/minute}]", "rules.yaml")
    door = await start_door(limiter=Limiter.from_rules(rules, store), request_s=0.1)
    client = await door.connect()
    store.hold()
    complete, slow = client.request(RATE_LIMIT, message), client.request(RATE_LIMIT, None)
    await client.flush()
    assert (await client.reply(slow)).code == "DEADLINE_EXCEEDED"
    store.release()
    assert (await client.reply(complete)).code == "OK"


async def test_the_largest_message(start_door: Start, message: bytes) -> None:
    """A message of as many bytes as may be is answered, and one of a byte more is not."""
    door = await start_door(message_bytes_max=len(message))
    client = await door.connect()
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    assert (await client.call(RATE_LIMIT, message + b"\x7a\0")).code == "RESOURCE_EXHAUSTED"


async def test_a_goaway_of_the_client(door: Any, client: Any, message: bytes) -> None:
    """A client that takes its leave is closed when it has its answers, which is nobody's fault."""
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    client.http2.terminate_connection(0)
    await client.flush()
    await client.at_end()
    assert (door.stats.protocol_errors, door.stats.timeouts["linger"]) == (0, 0)


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
async def test_a_fault_of_ours(
    start_door: Start, message: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, engine: str
) -> None:
    """An exception of a handler is INTERNAL to one call, logged and counted; the others are answered."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    made = Route.__new__

    def half_broken(cls: type[Route], name: str, handler: Any, counts: Any, guarded: bool) -> Route:
        return made(cls, name, broken if name == "ShouldRateLimit" else handler, counts, guarded)

    monkeypatch.setattr(Route, "__new__", half_broken)
    door = await start_door(engine=engine)
    client = await door.connect()
    with caplog.at_level(logging.CRITICAL, logger="sluicegate.grpc"):
        failed = await client.call(RATE_LIMIT, message)
    assert failed.code == "INTERNAL"
    assert "whether anything was charged is not known" in failed.fields["grpc-message"].replace("%20", " ")
    assert (await client.call("/grpc.health.v1.Health/Check", b"")).code == "OK"
    assert (door.stats.internal_errors, door.stats.calls["ShouldRateLimit"]) == (1, {13: 1})
