"""Whatever gives a refused client more is in force with the next request of this process: no refusal from before stands in its way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluicegate.clock import US_PER_S
from sluicegate.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry, SubjectEntry
from sluicegate.rules.load import load_rules
from sluicegate.stores.near import NearSettings

RULES = """
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - {name: api, per: [user], quota: {free: 2/hour, paid: 20/hour}}
"""
EVE = Facts(method="GET", path="/", user="eve")


@pytest.fixture
def refused(bench) -> Limiter:
    """A limiter that remembers that it refuses a client, and asks nobody about her."""
    limiter = Limiter.from_rules(
        load_rules(RULES, "rules.yaml"), bench.model, bench.clock, near=NearSettings(trust_us=10_000_000)
    )
    assert [limiter.check(EVE).allowed for _ in range(4)] == [True, True, False, False]
    asked = len(bench.model.asked)
    assert not any(limiter.check(EVE).allowed for _ in range(20))
    assert len(bench.model.asked) == asked
    return limiter


def raised(limiter: Limiter) -> Facts:
    limiter.apply(load_rules(RULES.replace("free: 2/hour", "free: 3/hour"), "rules.yaml"))
    return EVE


def overridden(limiter: Limiter) -> Facts:
    limiter.subjects.put(SubjectEntry("user:eve", None, 10, 1, limiter.clock.now_us() + 60 * US_PER_S))
    return EVE


def of_another_tier(limiter: Limiter) -> Facts:
    limiter.subjects.put(SubjectEntry("user:eve", "paid"))
    return EVE


def who_pays(_: Limiter) -> Facts:
    return Facts(method="GET", path="/", user="eve", tier="paid")


def allowed(limiter: Limiter) -> Facts:
    limiter.lists.put(ListEntry("allow", "user", "eve"))
    return EVE


def forgotten_elsewhere(limiter: Limiter) -> Facts:
    # As a rules service does that has changed the counter, and tells every node.
    limiter.store.reset([(charge[0], charge[1]) for charge in limiter.store.asked[-1]])  # type: ignore[attr-defined]
    limiter.forget(EVE)
    return EVE


@pytest.mark.parametrize("how", [raised, overridden, of_another_tier, who_pays, allowed, forgotten_elsewhere])
def test_what_gives_more_helps_at_once(refused: Limiter, how: Callable[[Limiter], Facts]) -> None:
    """A raised limit, an override, another tier, a list, a counter that was changed: no time has passed since the refusal."""
    assert refused.check(how(refused)).allowed
    refused.close()


def test_an_override_that_has_ended_is_refused_again(bench, refused: Limiter) -> None:
    """What was admitted under it says nothing of the usual limit, nor the other way round."""
    assert refused.check(overridden(refused)).allowed
    bench.clock.advance(60 * US_PER_S)
    assert not refused.check(EVE).allowed
    refused.close()


def test_two_tiers_of_one_client_do_not_refuse_each_other(refused: Limiter) -> None:
    """Requests of one client with different tiers share a counter and not their refusals."""
    for _ in range(5):
        assert not refused.check(EVE).allowed
        assert refused.check(who_pays(refused)).allowed
    refused.close()


def test_peeks_see_the_store(bench, refused: Limiter) -> None:
    """Whoever looks is told how the counter stands, not what is remembered of it."""
    charge = bench.model.asked[-1][0]
    bench.model.memory.reset([charge[:2]])
    assert refused.check(EVE, peek=True).allowed
    assert not refused.check(EVE).allowed
    refused.close()
