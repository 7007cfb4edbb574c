"""Who is on a list costs neither the store nor what stands in front of it anything."""

from __future__ import annotations

import asyncio

import pytest

from sluicegate.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry
from sluicegate.rules.load import load_rules
from sluicegate.stores.near import NearSettings, NearStore

RULES = """
version: 1
rules:
  - {name: client, per: [user], quota: 5/minute}
  - {name: everybody, scope: global, quota: 1000000/second}
"""
EVE = Facts(method="GET", path="/", user="eve")


def asked_in_all_ways(limiter: Limiter, facts: Facts) -> list[bool]:
    """What each form of asking says."""

    async def later() -> list[bool]:
        return [(await limiter.acheck(facts)).allowed, *(one.allowed for one in await limiter.acheck_many([facts] * 3))]

    return [
        limiter.check(facts).allowed,
        *(one.allowed for one in limiter.check_many([facts] * 3)),
        *asyncio.run(later()),
    ]


@pytest.mark.parametrize("name", ["allow", "block"])
def test_who_is_on_a_list_is_decided_before_leases_refusals_and_the_store(bench, name: str) -> None:
    """No call of the store, no lease looked for, nothing remembered; whoever is on no list is decided by all of them."""
    limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml"), bench.model, bench.clock, near=NearSettings())
    near = limiter.near
    assert isinstance(near, NearStore)
    limiter.lists.put(ListEntry(name, "user", "eve"))
    read = near.now_us
    readings: list[int] = []

    def now_us() -> int:
        """Whatever is decided here needs the time."""
        readings.append(read())
        return readings[-1]

    near.now_us = now_us
    assert asked_in_all_ways(limiter, EVE) == [name == "allow"] * 8
    assert readings == []
    assert bench.model.asked == []
    assert set(near.stats.as_dict().values()) == {0}
    assert len(near.front.denials) == 0
    assert limiter.check(Facts(method="GET", path="/", user="adam")).allowed
    assert readings
    assert len(bench.model.asked) == 1
    limiter.close()
