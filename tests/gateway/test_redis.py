"""The gateway with its counters in a real Redis."""

from __future__ import annotations

import asyncio

import pytest

from sluicegate.clock import SystemClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.redis import RedisStore

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
RULES = """
version: 1
rules:
  - {name: floor, quota: 1000000/hour}
  - {name: hundred, per: [ip], quota: 100/hour}
"""


@pytest.fixture
async def node(world, servers, require_program):
    """Start a gateway on the Redis that all of them share."""
    url = servers.empty("redis", require_program).url
    limiters = []

    async def start():
        limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml"), RedisStore(url), SystemClock())
        limiters.append(limiter)
        assert await limiter.awarm()
        return await world(rules=limiter)

    yield start
    for limiter in limiters:
        await limiter.aclose()


async def test_two_gateways_share_one_limit(node):
    """Of 300 requests over 30 connections to two gateways exactly the limit reaches the upstreams."""
    gateways = [await node(), await node()]

    async def ask(w):
        client = await w.client()
        return [(await client.ask(GET)).status for _ in range(10)]

    found = await asyncio.gather(*[ask(gateways[i % 2]) for i in range(30)])
    assert sorted(status for each in found for status in each) == [200] * 100 + [429] * 200
    assert sum(len(w.backend.heads) for w in gateways) == 100
    assert [w.limiter.stats.degraded for w in gateways] == [0, 0]
    for w in gateways:
        stats = w.limiter.store.stats
        assert stats.batches < stats.batched, "some ride together"


async def test_pipelined_requests_keep_their_order(node):
    """Each is decided after the answer before it, whatever the store takes."""
    w = await node()
    client = await w.client()
    client.send(GET * 120)
    assert [(await client.reply()).status for _ in range(120)] == [200] * 100 + [429] * 20
