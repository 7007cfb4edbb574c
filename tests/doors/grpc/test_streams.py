"""Streams of every shape: requests in pieces, with faults in head or body, given up at any point, not ended, interleaved; both engines.

What the two engines tell differently is written down here, and each is held to what is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, cast

import pytest
from ngh2 import NGH2Error

Start = Callable[..., Awaitable[Any]]

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEALTH = "/grpc.health.v1.Health/Check"
REFUSED = "reset"
"""An outcome: the stream was reset by the server."""

Outcome = str | None
"""The name of a status, ``REFUSED``, or None where no answer came."""

HEADS: dict[str, tuple[tuple[tuple[str, str], ...], Outcome, Outcome]] = {
    "usual": ((), "OK", "OK"),
    "a subtype": ((("content-type", "application/grpc+proto"),), "OK", "OK"),
    "a parameter": ((("content-type", "application/grpc; x=y"),), "OK", "OK"),
    "a long timeout": ((("grpc-timeout", "99S"),), "OK", "OK"),
    "no time left": ((("grpc-timeout", "0m"),), "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"),
    "an encoding": ((("grpc-encoding", "gzip"),), "OK", "OK"),
    "many fields": (tuple((f"x-{n}", "y" * 50) for n in range(40)), "OK", "OK"),
    "another path": (((":path", "/a.B/C"),), "UNIMPLEMENTED", "UNIMPLEMENTED"),
    "a query": (((":path", RATE_LIMIT + "?x"),), "UNIMPLEMENTED", "UNIMPLEMENTED"),
    "two slashes": (((":path", "/" + RATE_LIMIT),), "UNIMPLEMENTED", "UNIMPLEMENTED"),
    "small letters": (((":path", RATE_LIMIT.lower()),), "UNIMPLEMENTED", "UNIMPLEMENTED"),
    "a path alone": (((":path", "/"),), "UNIMPLEMENTED", "UNIMPLEMENTED"),
    # grpcio resets what it takes for no gRPC, but for the content type, which it does not look at.
    "GET": (((":method", "GET"),), "UNIMPLEMENTED", REFUSED),
    "PUT": (((":method", "PUT"),), "UNIMPLEMENTED", REFUSED),
    "JSON": ((("content-type", "application/json"),), "UNIMPLEMENTED", "OK"),
    "no length": ((("content-length", "1"),), REFUSED, "OK"),
}
"""By name: fields, and what a good message comes to at ngh2 and at grpcio."""

Body = Callable[[bytes], bytes]


def framed(message: bytes, flag: int = 0, more: int = 0) -> bytes:
    """A message as gRPC frames it; ``more``: by how much its length is wrong."""
    return bytes((flag,)) + (len(message) + more).to_bytes(4, "big") + message


BODIES: dict[str, tuple[Body, Outcome, Outcome]] = {
    "good": (framed, "OK", "OK"),
    "empty": (lambda _: framed(b""), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    "mutilated": (lambda message: framed(message[:-1]), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    "too large": (lambda _: framed(bytes(70_000)), "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"),
    # Both refuse what is compressed; grpcio for the want of a name for it.
    "compressed": (lambda message: framed(message, 1), "UNIMPLEMENTED", "INTERNAL"),
    # What is cut off is no message to grpcio, and it waits for one as long as the client does.
    "nothing": (lambda _: b"", "INTERNAL", None),
    "half a prefix": (lambda _: b"\0\0\0", "INTERNAL", None),
    "cut off": (lambda message: framed(message)[:-1], "INTERNAL", None),
    "a length too large": (lambda message: framed(message, more=9), "INTERNAL", None),
    # grpcio does not look at what stands behind the first message.
    "a length too small": (lambda message: framed(message, more=-1), "INTERNAL", "INVALID_ARGUMENT"),
    "two messages": (lambda message: framed(message) * 2, "INTERNAL", "OK"),
}
"""By name: bytes of the body, and what they come to behind a usual head."""

ENDS = ("with the last piece", "by an empty piece", "by trailers")


class Play(NamedTuple):
    """One stream: its head and body by name, how the body is cut, and how it ends; ``given_up``: after so many pieces."""

    head: str
    body: str
    pieces: tuple[int, ...]
    end: str
    given_up: int | None

    def outcome(self, engine: str) -> Outcome:
        """What is written above; a head that is refused is told, whatever the body is."""
        if self.given_up is not None:
            return None
        column = ("ngh2", "grpcio").index(engine) + 1
        by_head: Any = HEADS[self.head][column]
        if by_head == "OK" or (self.head == "no length" and engine == "grpcio"):
            by_head = BODIES[self.body][column]
        return cast("Outcome", by_head)


def random_play(dice: random.Random) -> Play:
    """A play with at most one fault, cut into pieces anywhere."""
    head, body = "usual", "good"
    if dice.random() < 0.5:
        head = dice.choice(list(HEADS))
    else:
        body = dice.choice(list(BODIES))
    pieces = tuple(dice.choice((0, 1, 2, 5, 20, 100)) for _ in range(dice.randrange(5)))
    # What is longer than its length says is refused before it has ended, so only then it matters how it ends.
    given_up = dice.randrange(len(pieces) + 1) if dice.random() < 0.2 else None
    return Play(head, body, pieces, dice.choice(ENDS), given_up)


class Stage:
    """Plays on one connection, their pieces interleaved."""

    def __init__(self, client: Any, message: bytes) -> None:
        self.client = client
        self.message = message
        self.streams: list[int] = []
        self._left: list[list[Callable[[int], None]]] = []

    def add(self, play: Play) -> None:
        """Begin a play."""
        stream = self.client.request(RATE_LIMIT, None, *HEADS[play.head][0])
        self.streams.append(stream)
        body = BODIES[play.body][0](self.message)
        parts = []
        for size in play.pieces:
            parts.append(body[:size])
            body = body[size:]
        http2 = self.client.http2
        steps: list[Callable[[int], None]] = [lambda s, part=part: http2.send_data(s, part) for part in parts]  # type: ignore[misc]
        if play.given_up is not None:
            steps[play.given_up :] = [http2.reset_stream]
        elif play.end == "with the last piece":
            steps.append(lambda s: http2.send_data(s, body, end_stream=True))
        elif play.end == "by an empty piece":
            steps += [lambda s: http2.send_data(s, body), lambda s: http2.send_data(s, b"", end_stream=True)]
        else:
            steps += [lambda s: http2.send_data(s, body), lambda s: http2.send_trailers(s, [(b"x-end", b"1")])]
        self._left.append(steps)

    async def perform(self, dice: random.Random) -> None:
        """All steps, in any order between the plays; what is answered early takes no more."""
        while any(self._left):
            number = dice.choice([number for number, steps in enumerate(self._left) if steps])
            step = self._left[number].pop(0)
            with contextlib.suppress(NGH2Error):
                step(self.streams[number])
            if dice.random() < 0.5:
                await self.client.flush()
        await self.client.flush()

    def outcome(self, number: int) -> Outcome:
        """What one play has come to."""
        reply = self.client.replies[self.streams[number]]
        return REFUSED if reply.code is None and reply.reset is not None else reply.code


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
async def test_streams_of_every_shape(start_door: Start, message: bytes, engine: str) -> None:
    """Each stream ends as is written for its engine, whatever goes on beside it, and its connection lives on."""
    dice = random.Random(20_261_130)
    door = await start_door(engine=engine, rules="version: 1\nrules:\n  - {name: all, quota: 1000000/second}\n")
    seen: dict[Outcome, int] = {}
    for _ in range(25):
        client = await door.connect()
        stage = Stage(client, message)
        plays = [random_play(dice) for _ in range(dice.randint(1, 12))]
        for play in plays:
            stage.add(play)
        await stage.perform(dice)
        expected = [play.outcome(engine) for play in plays]
        answered = {stream for stream, outcome in zip(stage.streams, expected, strict=True) if outcome is not None}
        await client.until(lambda client=client, answered=answered: answered <= client.closed or client.ended)
        assert (await client.call(RATE_LIMIT, message)).code == "OK"
        for number, play in enumerate(plays):
            if play.given_up is None:
                assert stage.outcome(number) == expected[number], play
                seen[expected[number]] = seen.get(expected[number], 0) + 1
        await client.close()
    assert len(seen) >= 6, "plays of every kind"
    assert door.stats.internal_errors == 0


@pytest.mark.measured
@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
async def test_streams_that_do_not_end(start_door: Start, message: bytes, engine: str) -> None:
    """Half a request is not answered and charges nothing; the door is there for others, and ngh2 ends it in time."""
    door = await start_door(engine=engine, request_s=0.2)
    client = await door.connect()
    body = framed(message)
    halves = []
    for size in range(len(body)):
        stream = client.request(RATE_LIMIT, None)
        client.http2.send_data(stream, body[:size])
        halves.append(stream)
    await client.flush()
    assert (await client.call(HEALTH, b"")).code == "OK"
    assert {client.replies[stream].code for stream in halves} == {None}
    if engine == "ngh2":
        assert {(await client.reply(stream)).code for stream in halves} == {"DEADLINE_EXCEEDED"}
    assert len(door.limiter.store) == 0
    assert (await client.call(RATE_LIMIT, message)).code == "OK"


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
async def test_clients_that_go_at_any_point(start_door: Start, message: bytes, engine: str) -> None:
    """A connection that is cut after any frame, with calls begun, complete or half answered, costs nobody else anything."""
    door = await start_door(engine=engine)
    body = framed(message)
    for frames in range(7):
        client = await door.connect()
        steps: list[Callable[[], Any]] = []
        for number in range(3):
            steps.append(partial(client.request, RATE_LIMIT, None))
            steps.append(partial(client.http2.send_data, 2 * number + 1, body, end_stream=True))
        for step in steps[:frames]:
            step()
            await client.flush()
        client.writer.transport.abort()
    async with asyncio.timeout(60):
        while len(door.door.connections):
            await asyncio.sleep(0.01)
    assert (await (await door.connect()).call(RATE_LIMIT, message)).code == "OK"
    assert door.stats.internal_errors == 0
