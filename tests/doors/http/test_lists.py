"""The decision API's answers about clients on a list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.feed import ListEntry
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.later import LaterStore

Start = Callable[..., Awaitable[Any]]
Request = Callable[..., bytes]

RULES = """
version: 1
identity: {trusted_peers: [127.0.0.0/8], ip: {header: X-Forwarded-For}}
rules:
  - {name: api, per: [ip], quota: 2/minute, respond: {template: "no {rule}"}}
"""


@pytest.fixture(params=["memory", "later"])
async def serving(request: pytest.FixtureRequest, start: Start) -> Any:
    """A server whose store answers at once, or later."""
    clock = ManualClock()
    store = MemoryStore(clock) if request.param == "memory" else LaterStore(MemoryStore(clock))
    server = await start(limiter=Limiter.from_rules(load_rules(RULES, "rules.yaml"), store, clock))
    server.now_us = clock.now_us()
    return server


async def test_a_blocked_client_is_refused_by_its_entry(serving: Any) -> None:
    """429 with the list in the place of the rule, the time of its end, rate headers as of a quota of 0, and what put the entry there."""
    serving.limiter.lists.put(ListEntry("block", "ip", "10.0.0.0/8", serving.now_us + 90 * US_PER_S, "penalty:login"))
    client = await serving.connect()
    answer = await client.check({"facts": {"ip": "10.0.0.1"}})
    assert answer.status == 429
    assert (answer.headers["retry-after"], answer.headers["x-ratelimit-limit"]) == ("90", "0")
    assert answer.headers["x-ratelimit-policy"] == "block:ip;q=0;w=1;alg=ban"
    document = answer.json
    assert (document["allowed"], document["rule"], document["retry_after_ms"]) == (False, "block:ip", 90_000)
    assert document["listed"] == {"list": "block", "kind": "ip", "source": "penalty:login"}
    assert "respond" not in document
    assert (await client.check({"facts": {"ip": "10.0.0.1"}, "peek": True})).status == 200


async def test_a_client_on_the_allow_list_passes(serving: Any) -> None:
    """200 without rate headers, as often as it asks."""
    serving.limiter.lists.put(ListEntry("allow", "user", "root"))
    client = await serving.connect()
    for _ in range(4):
        answer = await client.check({"facts": {"ip": "10.0.0.1", "user": "root"}})
        assert (answer.status, answer.json["rule"], answer.json["listed"]["list"]) == (200, None, "allow")
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def test_a_batch_has_both(serving: Any) -> None:
    """Items of a batch are answered each by its list or by the rules."""
    serving.limiter.lists.put(ListEntry("allow", "user", "root"))
    serving.limiter.lists.put(ListEntry("block", "user", "eve"))
    client = await serving.connect()
    items = [{"facts": {"ip": "10.0.0.1", "user": user}} for user in ("eve", "bob", "root", "bob", "bob")]
    answer = await client.post("/v1/check/batch", items)
    assert answer.status == 200
    told = answer.json
    assert [each["status"] for each in told] == [429, 200, 200, 200, 429]
    assert [each["rule"] for each in told] == ["block:user", "api", None, "api", "api"]


@pytest.mark.parametrize(
    "path, fields, status",
    [
        ("/authz/envoy/x", (), 429),
        ("/authz/nginx", ("X-Original-Method: GET", "X-Original-URI: /x"), 403),
        ("/authz/forward", ("X-Forwarded-Method: GET", "X-Forwarded-Uri: /x"), 429),
    ],
)
async def test_proxies_are_told_of_lists(
    path: str, fields: tuple[str, ...], status: int, serving: Any, make_request: Request
) -> None:
    """A proxy that asks is told the refusal of a blocked address, as a problem document that names the list and no entry of it."""
    serving.limiter.lists.put(ListEntry("block", "ip", "10.0.0.0/8", serving.now_us + 90 * US_PER_S, "feed"))
    client = await serving.connect()
    answer = await client.ask(make_request("GET", path, b"", "X-Forwarded-For: 10.0.0.1", *fields))
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json["violated-policies"], answer.json["retry-after"]) == (["block:ip"], 90)
    assert b"10.0.0" not in answer.body
    assert b"feed" not in answer.body
    serving.limiter.lists.put(ListEntry("allow", "ip", "10.0.0.1"))
    assert (await client.ask(make_request("GET", path, b"", "X-Forwarded-For: 10.0.0.1", *fields))).status == 200


@pytest.mark.parametrize("headers", ["ietf", "ietf-legacy", "x-ratelimit-epoch", "off"])
async def test_every_dialect_tells_of_a_block(headers: str, start: Start) -> None:
    """A block with an end has Retry-After in every dialect; one without has none."""
    server = await start(rules=RULES, headers=headers)
    client = await server.connect()
    lists = server.limiter.lists
    lists.put(ListEntry("block", "user", "eve", server.clock.now_us() + 90 * US_PER_S))
    lists.put(ListEntry("block", "user", "ever"))
    answer = await client.check({"facts": {"user": "eve"}})
    assert (answer.status, answer.headers["retry-after"]) == (429, "90")
    if headers == "ietf":
        assert (answer.headers["ratelimit"], answer.headers["ratelimit-policy"]) == (
            '"block:user";r=0;t=90',
            '"block:user";q=0;w=1',
        )
    ever = await client.check({"facts": {"user": "ever"}})
    assert ever.status == 429
    assert "retry-after" not in ever.headers
    assert ever.json["retry_after_ms"] is None
