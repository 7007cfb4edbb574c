"""The decision API with its counters in a real Redis: shared budgets, calls that ride together, and a server that is gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.limiter.limiter import Limiter

Start = Callable[..., Awaitable[Any]]
Node = Callable[..., Awaitable[Any]]

RULES = """
version: 1
rules:
  - {name: login, match: {path: /login}, per: [ip], quota: 100/hour}
  - {name: money, match: {path: /money}, per: [ip], quota: 100/hour, on_store_failure: closed}
"""
POLICY = {"algorithm": "token_bucket", "capacity": 100, "refill_per_sec": 0.001}
INLINE = {"key": "k", "policy": POLICY}
LOGIN = {"facts": {"path": "/login", "ip": "203.0.113.9"}}
MONEY = {"facts": {"path": "/money", "ip": "203.0.113.9"}}


@pytest.fixture
def node(start: Start, redis_limiter: Callable[[str, str], Awaitable[Limiter]]) -> Start:
    """Start a decision API on a Redis: ``node(url)``."""

    async def node(url: str) -> Any:
        limiter = await redis_limiter(url, RULES)
        return await start(limiter=limiter)

    return node


@pytest.fixture
def url(redis_url: str) -> str:
    """A Redis with nothing in it."""
    return redis_url


async def ask(server: Any, documents: list[object]) -> list[Any]:
    """Ask one after the other on one connection."""
    client = await server.connect()
    return [await client.check(document) for document in documents]


@pytest.mark.parametrize("document", [INLINE, LOGIN, MONEY], ids=["inline", "local", "closed"])
async def test_two_nodes_share_one_budget(node: Node, url: str, document: object) -> None:
    """Of 300 checks by 30 connections to two nodes exactly the limit passes; every answer says so, none is degraded."""
    nodes = [await node(url), await node(url)]
    found = await asyncio.gather(*[ask(nodes[i % 2], [document] * 10) for i in range(30)])
    answers = [answer for each in found for answer in each]
    assert sorted(answer.status for answer in answers) == [200] * 100 + [429] * 200
    assert sorted(answer.json["remaining"] for answer in answers if answer.status == 200) == list(range(100))
    assert not any(answer.json.get("degraded") for answer in answers)
    for each in nodes:
        assert each.limiter.stats.degraded == 0
        stats = each.limiter.store.stats
        # The rest were refused here, because the store had said for how long it refuses.
        assert stats.batched + each.limiter.near.stats.denied >= 150
        assert stats.batches < stats.batched, "some ride together"


async def test_pipelined_checks_ride_in_one_call(node: Node, url: str, make_request: Callable[..., bytes]) -> None:
    """50 checks of one write take a call or two, and are decided in their order."""
    server = await node(url)
    client = await server.connect()
    before = server.limiter.store.stats.batches
    await client.send(make_request("POST", "/v1/check", json.dumps(INLINE).encode()) * 50)
    assert [(await client.read()).json["remaining"] for _ in range(50)] == list(range(99, 49, -1))
    assert server.limiter.store.stats.batches - before <= 3


async def test_batches_are_decided_in_order(node: Node, url: str) -> None:
    """A large batch of plain checks, and one of everything, peeks in the middle included."""
    server = await node(url)
    client = await server.connect()
    answers = (await client.post("/v1/check/batch", [INLINE] * 600)).json
    assert [item["status"] for item in answers] == [200] * 100 + [429] * 500
    assert [item["remaining"] for item in answers[:100]] == list(range(99, -1, -1))
    items = [LOGIN, {**LOGIN, "peek": True}, {"key": ""}, LOGIN, {**LOGIN, "receipt": True, "cost": 8}, MONEY, LOGIN]
    answers = (await client.post("/v1/check/batch", items)).json
    assert [item["status"] for item in answers] == [200, 200, 400, 200, 200, 200, 200]
    assert [item.get("remaining") for item in answers] == [99, 99, None, 98, 90, 99, 89]
    refund = {"decision_id": answers[4]["decision_id"]}
    assert (await client.post("/v1/refund", refund)).json == {"refunded": 1}
    assert (await client.check({**LOGIN, "peek": True})).json["remaining"] == 97


@pytest.mark.measured
async def test_a_server_that_stops_answering_holds_nobody_up(
    node: Node, start_redis: Callable[..., Any], make_request: Callable[..., bytes]
) -> None:
    """Answers come within the deadline, degraded or 503 by policy; health asks nothing; when the server goes on, so do shared counters."""
    redis = start_redis()
    server = await node(redis.url.replace("5000", "100"))
    client, other = await server.connect(), await server.connect()
    assert (await client.check(LOGIN)).json["degraded"] is False
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        for document, status in ((LOGIN, 200), (MONEY, 503), (INLINE, 200)):
            async with asyncio.timeout(2):
                asked = asyncio.create_task(client.check(document))
                assert (await other.ask(make_request("GET", "/livez"))).status == 200
                answer = await asked
            assert answer.status == status
            assert status == 503 or answer.json["degraded"] is True
    finally:
        os.kill(redis.pid, signal.SIGCONT)
    async with asyncio.timeout(60):
        while (await client.check(LOGIN)).json["degraded"]:
            await asyncio.sleep(0.02)
    assert (await client.check(MONEY)).status == 200
    assert server.stats.internal_errors == 0
