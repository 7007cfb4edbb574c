"""A server whose decisions take time writes the bytes that one whose decisions are there at once writes.

Scripts of pipelined requests, good and bad, are cut into pieces at random and sent to both; all that each server
writes until it closes must be the same, whenever the answers of the store come, and wherever its counters are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.base import Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import RedisStore
from sluicegate.testing.later import LaterStore

Start = Callable[..., Awaitable[Any]]

RULES = """
version: 1
rules:
  - {name: login, match: {path: /login}, per: [ip], quota: 5/minute, algorithm: fixed_window}
  - {name: seen, match: {path: /login}, per: [ip], quota: 2/minute, mode: shadow}
  - {name: queue, match: {path: /queue}, per: [ip], quota: 2/second, algorithm: leaky_bucket}
"""
POLICY = {"algorithm": "token_bucket", "capacity": 20, "refill_per_sec": 1}
LEAKY = {"algorithm": "leaky_bucket", "capacity": 3, "refill_per_sec": 1}


def post(path: str, document: object, *fields: str) -> bytes:
    """A request with a body of known length."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", *fields, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(document: object) -> bytes:
    """The same in chunks."""
    body = json.dumps(document).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    return b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


CHECK = {"key": "k", "policy": POLICY}
LOGIN = {"facts": {"path": "/login", "ip": "203.0.113.9"}}
ORDINARY = [
    post("/v1/check", CHECK),
    post("/v1/check", {**CHECK, "cost": 7}),
    post("/v1/check", {**CHECK, "peek": True}),
    post("/v1/check", {**CHECK, "receipt": True}),
    post("/v1/check", {"key": "l", "policy": LEAKY}),
    post("/v1/check", LOGIN),
    post("/v1/check", {"facts": {"path": "/queue", "ip": "203.0.113.9"}}),
    post("/v1/check", {"facts": {"path": "/free"}}),
    post("/v1/check", {**CHECK, "cost": 0}),
    post("/v1/check", b"{"),
    post("/v1/check", b""),
    post("/v1/check/batch", [CHECK] * 5),
    post("/v1/check/batch", [CHECK, LOGIN, {"key": ""}, {**CHECK, "peek": True}]),
    post("/v1/check/batch", {}),
    post("/v1/refund", {"decision_id": "nobody"}),
    chunked(CHECK),
    b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/check HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /readyz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"\r\n" + post("/v1/check", CHECK),
]
LAST = [
    post("/v1/check", CHECK, "Connection: close"),
    post("/v1/check/batch", [CHECK], "Connection: close"),
    b"POST /v1/check HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    b"BROKEN\r\n\r\n",
    b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
    b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
]


async def written(server: Any, pieces: list[bytes]) -> bytes:
    """All that a server writes on a connection that gets these pieces and then no more."""
    client = await server.connect()
    for piece in pieces:
        client.writer.write(piece)
        await asyncio.sleep(0)
    client.writer.write_eof()
    data = await client.at_end()
    return re.sub(rb'"decision_id":"[^"]*"', b'"decision_id":"one"', data)


def script_of(seed: int) -> list[bytes]:
    """Pipelined requests, the last one perhaps the end of the connection, cut into pieces."""
    chosen = random.Random(seed)
    script = b"".join([*chosen.choices(ORDINARY, k=chosen.randint(1, 120)), chosen.choice([b"", *LAST])])
    cuts = sorted({0, len(script), *(chosen.randrange(len(script)) for _ in range(chosen.choice([0, 3, 60])))})
    return [script[a:b] for a, b in itertools.pairwise(cuts)]


async def all_of(start: Start, pieces: list[bytes], clock: ManualClock, store: Store) -> list[bytes]:
    """The messages that a server with this store writes."""
    # Every check asks the store: a refusal that is remembered here does not know what is left.
    server = await start(limiter=Limiter.from_rules(load_rules(RULES, "rules.yaml"), store, clock, near=None))
    found = await written(server, pieces)
    assert server.stats.internal_errors == 0
    assert sum(server.stats.timeouts.values()) == 0
    return found.split(b"HTTP/1.1 ")


async def at_once(start: Start, pieces: list[bytes]) -> list[bytes]:
    """What is right."""
    clock = ManualClock()
    return await all_of(start, pieces, clock, MemoryStore(clock))


@pytest.mark.parametrize("seed", range(12))
async def test_the_same_bytes_are_written(start: Start, seed: int) -> None:
    """The answers do not show whether the decision came at once or in a later round of the loop."""
    pieces = script_of(seed)
    clock = ManualClock()
    expected = await at_once(start, pieces)
    assert await all_of(start, pieces, clock, LaterStore(MemoryStore(clock))) == expected
    assert len(expected) > 1


@pytest.mark.parametrize("seed", range(12, 20))
async def test_the_same_bytes_are_written_whatever_comes_first(start: Start, seed: int) -> None:
    """Nor do they show in which order the store has answered."""
    pieces = script_of(seed)
    clock = ManualClock()
    store = LaterStore(MemoryStore(clock))
    store.hold()
    releasing = asyncio.create_task(release(store))
    found = await all_of(start, pieces, clock, store)
    releasing.cancel()
    assert found == await at_once(start, pieces)


@pytest.mark.parametrize("seed", range(20, 32))
async def test_the_same_bytes_are_written_with_redis(
    start: Start, servers: Any, require_program: Callable[[str], str], seed: int
) -> None:
    """Nor whether the counters are in this process or in a Redis, whose time is the same here."""
    pieces = script_of(seed)
    clock = ManualClock()
    store = RedisStore(servers.empty("redis", require_program).url, clock=clock, time_source=clock)
    # A script that a server does not know yet is sent again, behind what was sent beside it.
    assert await store.awarm()
    try:
        found = await all_of(start, pieces, clock, store)
    finally:
        await store.aclose()
    assert found == await at_once(start, pieces)


async def release(store: LaterStore) -> None:
    """Give answers, the newest first, in ones and in heaps."""
    for count in itertools.count():
        store.release(min(store.waiting, 1 + count % 5), newest_first=True)
        await asyncio.sleep(0.0002)
