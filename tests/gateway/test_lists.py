"""Clients on a list at the gateway."""

from __future__ import annotations

import json

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.rules.feed import ListEntry

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
RULES = """
version: 1
rules:
  - {name: two, per: [ip], quota: 2/minute, penalty: {after: 3 refusals/1m, block: 15m}}
"""


async def test_a_blocked_address_never_reaches_the_upstream(world):
    """429 with a problem document and Retry-After, and no connection to the upstream; on the allow list it passes uncharged."""
    clock = ManualClock()
    w = await world(rules=RULES, clock=clock)
    w.limiter.lists.put(ListEntry("block", "ip", "127.0.0.0/8", clock.now_us() + 90 * US_PER_S, "feed"))
    reply = await w.ask(GET)
    assert (reply.status, reply.get("Retry-After"), reply.get("X-RateLimit-Limit")) == (429, "90", "0")
    assert json.loads(reply.body)["violated-policies"] == ["block:ip"]
    assert (w.stats.upstream_connects, w.stats.refused) == (0, 1)
    w.limiter.lists.put(ListEntry("allow", "ip", "127.0.0.1"))
    replies = [await w.ask(GET) for _ in range(4)]
    assert [(each.status, each.get("X-RateLimit-Limit")) for each in replies] == [(200, None)] * 4


async def test_a_persistent_client_is_blocked(world):
    """After the refusals that its rule allows a client is told to come back when its penalty ends."""
    w = await world(rules=RULES, clock=ManualClock())
    client = await w.client()
    replies = [await client.ask(GET) for _ in range(6)]
    assert [each.status for each in replies] == [200, 200, 429, 429, 429, 429]
    assert (replies[4].get("Retry-After"), replies[5].get("Retry-After")) == ("30", "900")
