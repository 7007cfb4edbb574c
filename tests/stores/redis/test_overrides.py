"""Overrides of single clients on counters that live on a server: two nodes, of which the second learns of an override later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry, SubjectEntry
from sluicegate.rules.load import load_rules

EVE, BOB = Facts(user="eve"), Facts(user="bob")
QUOTAS = {
    "token_bucket": "4/day",
    "leaky_bucket": "4/day, nodelay: true",
    "fixed_window": "4/day",
    "sliding_window": "4/day",
    "sliding_log": "4/day",
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def node(open_store: Callable[..., Any], clock: ManualClock) -> Callable[[str], Limiter]:
    """Makes a node whose store goes by the clock of the test."""

    def make(rule: str) -> Limiter:
        rules = load_rules(f"version: 1\nrules:\n  - {{name: api, per: [user], {rule}}}\n", "rules.yaml")
        return Limiter.from_rules(rules, open_store(clock), clock)

    return make


@pytest.mark.parametrize("algorithm", QUOTAS)
def test_an_override_keeps_the_counter(algorithm: str, node: Callable[[str], Limiter], clock: ManualClock) -> None:
    """A raise helps at once and what was used stays used, on every algorithm; at its end the usual limit is back."""
    limiter = node(f"algorithm: {algorithm}, quota: {QUOTAS[algorithm]}")
    assert [limiter.check(EVE).allowed for _ in range(5)] == [True] * 4 + [False]
    limiter.subjects.put(SubjectEntry("user:eve", None, 3, 1, clock.now_us() + 60 * US_PER_S))
    assert [limiter.check(EVE).allowed for _ in range(9)] == [True] * 8 + [False]
    assert limiter.peek(EVE).limit == 12
    clock.advance(60 * US_PER_S)
    assert (limiter.check(EVE).allowed, limiter.peek(EVE).limit) == (False, 4)
    assert limiter.check(BOB).allowed


def test_when_every_node_knows_of_an_override_it_is_one_limit(node: Callable[[str], Limiter]) -> None:
    """While one of two nodes knows of a raise at worst every second request passes; when both do, what was used counts on both."""
    early, late = node("quota: 4/day"), node("quota: 4/day")
    early.subjects.put(SubjectEntry("user:eve", None, 3, 1))
    passed = sum(each.check(EVE).allowed for _ in range(20) for each in (early, late))
    assert 4 <= passed <= 20 + 4
    late.subjects.put(SubjectEntry("user:eve", None, 3, 1))
    remaining = early.peek(EVE).remaining
    assert remaining is not None
    used = 12 - remaining
    assert used >= 4
    assert sum(each.check(EVE).allowed for _ in range(20) for each in (early, late)) == 12 - used


async def test_lists_and_overrides_hold_for_coroutines(node: Callable[[str], Limiter]) -> None:
    """Coroutines on a server: a blocked client is refused without the server, an allowed one charged nothing, a raised one has more."""
    limiter = node("quota: 2/day")
    limiter.lists.put(ListEntry("block", "user", "mallory"))
    limiter.lists.put(ListEntry("allow", "user", "root"))
    limiter.subjects.put(SubjectEntry("user:eve", None, 2, 1))
    asked = [Facts(user=user) for user in ("mallory", "root", "eve", "root", "eve", "eve", "eve", "eve", "root")]
    decisions = await limiter.acheck_many(asked)
    assert [decision.allowed for decision in decisions] == [False, True, True, True, True, True, True, False, True]
    assert [decision.rule for decision in decisions[:3]] == ["block:user", None, "api"]
    assert await limiter.areset(Facts(user="root")) == 0
    assert await limiter.areset(EVE) == 1
    await limiter.aclose()
