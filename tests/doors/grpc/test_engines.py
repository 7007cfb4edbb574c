"""The two engines: the same bytes get the same answers from both, and each says when it is not there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from sluicegate.clock import ManualClock
from sluicegate.doors.grpc import door as door_module
from sluicegate.doors.grpc.door import GrpcDoor, is_installed
from sluicegate.doors.listen import Address
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.limiter.limiter import Limiter

Start = Callable[..., Awaitable[Any]]

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEALTH = "/grpc.health.v1.Health/Check"


async def outcome(channel: Any, path: str, message: bytes, **how: Any) -> Any:
    """What a call comes to: its answer, or its status and words."""
    try:
        return await channel.unary_unary(path)(message, timeout=60, **how)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()


async def test_messages_of_every_kind(start_door: Start, message: bytes) -> None:
    """Requests that are right, mutilated and random get byte for byte the same answers, or the same status and words."""
    dice = random.Random(4)
    doors = [await start_door(engine=engine) for engine in ("ngh2", "grpcio")]
    assert [each.door.engine for each in doors] == ["ngh2", "grpcio"]
    asked = [(RATE_LIMIT, message)] * 7 + [(HEALTH, b""), (HEALTH, b"\x0a\x01x"), (HEALTH, b"\xff")]
    for _ in range(200):
        data = bytearray(message)
        at = dice.randrange(len(data) + 1)
        data[at : at + dice.randint(0, 3)] = dice.randbytes(dice.randint(0, 3))
        asked.append((dice.choice((RATE_LIMIT, RATE_LIMIT, HEALTH)), bytes(data)))
        asked.append((RATE_LIMIT, dice.randbytes(dice.randint(0, 12))))
    found = []
    for each in doors:
        async with grpc.aio.insecure_channel(each.target) as channel:
            found.append([await outcome(channel, *pair) for pair in asked])
    assert found[0] == found[1]
    kinds = {type(each) for each in found[0]}
    assert kinds == {bytes, tuple}, "some were answered and some were not"
    assert doors[0].stats.calls == doors[1].stats.calls


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
async def test_what_both_do(start_door: Start, message: bytes, engine: str) -> None:
    """Other methods, tokens and messages that are too large get the same status from both."""
    found = await start_door(engine=engine, token="secret", message_bytes_max=100)
    async with grpc.aio.insecure_channel(found.target) as channel:
        codes = [
            (await outcome(channel, path, body, metadata=metadata))[0]
            for path, body, metadata in (
                ("/a.B/C", b"", ()),
                (RATE_LIMIT, message, ()),
                (RATE_LIMIT, message, (("authorization", "Bearer other"),)),
                (RATE_LIMIT, bytes(101), (("authorization", "Bearer secret"),)),
            )
        ]
        right = await outcome(channel, RATE_LIMIT, message, metadata=(("authorization", "Bearer secret"),))
    status = grpc.StatusCode
    assert codes == [status.UNIMPLEMENTED, status.UNAUTHENTICATED, status.UNAUTHENTICATED, status.RESOURCE_EXHAUSTED]
    assert right[:2] == b"\x08\x01"


async def test_draining_grpcio(start_door: Start, message: bytes) -> None:
    """The server of the gRPC project is stopped by the drain; afterwards nobody listens."""
    found = await start_door(engine="grpcio")
    async with grpc.aio.insecure_channel(found.target) as channel:
        assert (await outcome(channel, RATE_LIMIT, message))[:2] == b"\x08\x01"
    assert await found.door.connections.drain(1) == 0
    with pytest.raises(OSError, match="Connect"):
        await asyncio.open_connection("127.0.0.1", found.listener.address.port)


async def test_an_address_in_use(start_door: Start) -> None:
    """Both say that an address is in use."""
    taken = await start_door()
    for engine in ("ngh2", "grpcio"):
        other = GrpcDoor(taken.limiter, clock=ManualClock(), ready=lambda: (True, {}), engine=engine)
        with pytest.raises(ConfigurationError, match="the address is in use"):
            await other.open(Address("127.0.0.1", taken.listener.address.port))


@pytest.mark.parametrize(
    ("installed", "engine", "expected"),
    [
        ({"ngh2", "grpc_reflection"}, "auto", "ngh2"),
        ({"grpc_reflection"}, "auto", "grpcio"),
        ({"ngh2", "grpc_reflection"}, "grpcio", "grpcio"),
        (set(), "auto", "envoy"),
        ({"grpc_reflection"}, "ngh2", "envoy"),
        ({"ngh2", "grpc"}, "grpcio", "envoy-grpcio"),
    ],
)
def test_choosing(monkeypatch: pytest.MonkeyPatch, installed: set[str], engine: str, expected: str) -> None:
    """``auto`` takes the first that is installed; what is not there is an error that names its extra."""
    monkeypatch.setattr(door_module, "find_spec", lambda name: name if name in installed else None)
    assert is_installed() is bool(installed)
    limiter, clock = Limiter.from_quota("1/second"), ManualClock()
    try:
        chosen = GrpcDoor(limiter, clock=clock, ready=lambda: (True, {}), engine=engine).engine
    except MissingExtra as error:
        chosen = error.extra
    assert chosen == expected


def test_an_engine_that_is_none() -> None:
    """A name that is no engine is refused with those that are."""
    limiter = Limiter.from_quota("1/second")
    with pytest.raises(ConfigurationError, match="want one of auto, ngh2, grpcio, got 'h3'"):
        GrpcDoor(limiter, clock=ManualClock(), ready=lambda: (True, {}), engine="h3")
