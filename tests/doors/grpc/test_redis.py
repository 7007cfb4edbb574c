"""The gRPC door with its counters in a real Redis: shared budgets, calls that ride together, and a server that is gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.limiter.limiter import Limiter

Start = Callable[..., Awaitable[Any]]

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
RULES = """
version: 1
rules:
  - {name: floor, quota: 100000/second}
  - {name: keys, match: {domain: edge}, per: [descriptor.api_key], quota: 50/hour}
  - {name: shut, match: {domain: money}, per: [descriptor.api_key], quota: 50/hour, on_store_failure: closed}
"""


@pytest.fixture
def node(start_door: Start, redis_limiter: Callable[[str, str], Awaitable[Limiter]]) -> Start:
    """Start a door on a Redis: ``node(url)``."""

    async def node(url: str) -> Any:
        limiter = await redis_limiter(url, RULES)
        return await start_door(limiter=limiter, clock=limiter.clock)

    return node


@pytest.fixture
def url(redis_url: str) -> str:
    """A Redis with nothing in it."""
    return redis_url


async def ask(client: Any, pb: Any, *messages: bytes) -> list[Any]:
    """The answers to calls that are sent together; where there is none, the status."""
    streams = [client.request(RATE_LIMIT, message) for message in messages]
    await client.flush()
    replies = [await client.reply(stream) for stream in streams]
    return [pb.RateLimitResponse.FromString(r.message) if r.code == "OK" else r.code for r in replies]


def request(pb: Any, *descriptors: dict[str, Any], domain: str = "edge") -> bytes:
    """A request of descriptors with the entry ``api_key=a`` and these fields."""
    entry = {"key": "api_key", "value": "a"}
    made: bytes = pb.RateLimitRequest(
        domain=domain, descriptors=[{"entries": [entry], **fields} for fields in descriptors]
    ).SerializeToString()
    return made


async def test_two_doors_share_a_budget(node: Start, url: str, pb: Any) -> None:
    """Two processes' worth of doors admit together exactly the limit, and many calls ride in one of the store's."""
    clients = [await (await node(url)).connect() for _ in range(2)]
    message = request(pb, {})
    found = await asyncio.gather(*(ask(client, pb, *[message] * 40) for client in clients))
    answers = [answer for each in found for answer in each]
    assert sorted(answer.overall_code for answer in answers) == [1] * 50 + [2] * 30
    refused = next(answer for answer in answers if answer.overall_code == 2)
    assert (refused.statuses[0].current_limit.name, refused.statuses[0].limit_remaining) == ("keys", 0)


async def test_steps(node: Start, url: str, pb: Any) -> None:
    """Looking, charging and giving back in one request; a counter that is not there is not made. # T12"""
    door = await node(url)
    client = await door.connect()
    look, back = {"hits_addend": {"value": 0}}, {"hits_addend": {"value": 3}, "is_negative_hits": True}
    (first,) = await ask(client, pb, request(pb, look))
    assert (first.overall_code, first.statuses[0].limit_remaining) == (1, 50)
    (undone,) = await ask(client, pb, request(pb, back))
    assert (undone.overall_code, undone.statuses[0].limit_remaining) == (1, 50)
    (all_three,) = await ask(client, pb, request(pb, look, {"hits_addend": {"value": 5}}, back))
    assert [status.limit_remaining for status in all_three.statuses] == [50, 45, 48]
    assert door.limiter.stats.degraded == 0


async def test_a_server_that_is_gone(
    node: Start, pb: Any, start_redis: Callable[..., Any], require_program: Callable[[str], str]
) -> None:
    """Without its Redis a door goes on for rules that are local, and is UNAVAILABLE for those that fail closed."""
    redis = start_redis()
    client = await (await node(redis.url)).connect()
    both = (request(pb, {}), request(pb, {}, domain="money"))
    assert [answer.overall_code for answer in await ask(client, pb, *both)] == [1, 1]
    os.kill(redis.pid, signal.SIGKILL)
    local, shut = await ask(client, pb, *both)
    assert (local.overall_code, local.dynamic_metadata["degraded"], shut) == (1, True, "UNAVAILABLE")
