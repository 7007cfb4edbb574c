"""Rate limit requests of clients on a list."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.clock import US_PER_S
from sluicegate.rules.feed import ListEntry
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import LaterStore

Make = Callable[..., Any]
OK, OVER = 1, 2


def codes(answer: Any) -> list[int]:
    """The overall code, then those of the descriptors."""
    return [answer.overall_code, *(status.code for status in answer.statuses)]


@pytest.mark.parametrize("store", ["memory://", lambda clock: LaterStore(MemoryStore(clock))])
@pytest.mark.parametrize(
    "kind, value, entry",
    [
        ("ip", "203.0.113.0/24", "remote_address=203.0.113.9"),
        ("user", "eve", "user=eve"),
        ("api_key", "k1", "api_key=k1"),
        ("tenant", "acme", "tenant=acme"),
    ],
)
async def test_a_client_on_the_block_list_is_over_its_limit(
    kind: Any, value: str, entry: str, store: Any, bench: Make
) -> None:
    """All descriptors are over the limit, the client gets a 429's fields and body, and no counter is charged."""
    services = bench(store=store)
    end_us = services.clock.now_us() + 90 * US_PER_S
    services.limiter.lists.put(ListEntry("block", kind, value, end_us, "feed"))
    for _ in range(2):
        answer = await services.ask("route=login", entry, hits=3)
        assert codes(answer) == [OVER, OVER, OVER]
    fields = {header.key: header.value for header in answer.response_headers_to_add}
    assert fields == {
        "x-ratelimit-limit": "0",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "90",
        "x-ratelimit-policy": f"block:{kind};q=0;w=1;alg=ban",
        "retry-after": "90",
        "content-type": "application/problem+json",
    }
    assert json.loads(answer.raw_body)["violated-policies"] == [f"block:{kind}"]
    assert dict(answer.dynamic_metadata) == {"rule": f"block:{kind}", "outcome": "denied"}
    assert services.limiter.stats.block_listed == 2
    services.clock.advance(90 * US_PER_S)
    assert codes(await services.ask("api_key=other", hits=5))[0] == OK


async def test_a_client_on_the_allow_list_passes_uncharged(bench: Make) -> None:
    """The same message passes as often as it comes, whatever it would be charged, also while another entry blocks."""
    services = bench()
    services.limiter.lists.put(ListEntry("block", "ip", "0.0.0.0/0"))
    services.limiter.lists.put(ListEntry("allow", "api_key", "a"))
    for _ in range(8):
        answer = await services.ask("api_key=a", "remote_address=10.0.0.1")
        assert codes(answer) == [OK, OK, OK]
    assert list(answer.response_headers_to_add) == []
    services.limiter.lists.replace([])
    assert (await services.ask("api_key=a")).statuses[0].limit_remaining == 4


async def test_a_message_that_is_remembered_is_looked_up_each_time(bench: Make) -> None:
    """What was planned for a message earlier does not outlive a change of the lists."""
    services = bench()
    told = []
    for entries in ([], [ListEntry("block", "api_key", "a")], [ListEntry("allow", "api_key", "a")], []):
        services.limiter.lists.replace(entries)
        told.append(codes(await services.ask("api_key=a"))[0])
    assert told == [OK, OVER, OK, OK]


async def test_looks_and_give_backs_of_a_listed_client_do_nothing(bench: Make) -> None:
    """A blocked client that looks is over its limit, and one that gives back changes no counter."""
    services = bench()
    await services.ask("api_key=a", hits=3)
    services.limiter.lists.put(ListEntry("block", "user", "eve"))
    back = services.pb.RateLimitDescriptor(entries=[{"key": "api_key", "value": "a"}], is_negative_hits=True)
    look = services.descriptor("user=eve", hits_addend={"value": 0})
    assert codes(await services.ask(back, look)) == [OVER, OVER, OVER]
    services.limiter.lists.replace([])
    assert (await services.ask("api_key=a")).statuses[0].limit_remaining == 1


async def test_a_switched_off_limiter_blocks_nobody(bench: Make) -> None:
    """While the limiter is off a blocked client passes."""
    services = bench()
    services.limiter.lists.put(ListEntry("block", "user", "eve"))
    services.limiter.enabled = False
    assert codes(await services.ask("user=eve")) == [OK, OK]
