"""Fifty limiters in eight processes that answer from leases and from what they remember never admit more than the store's limits."""

from __future__ import annotations

import pytest

from sluicegate.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

ROUNDS, ROUNDS_MAX = 12, 60
CALLS = 20
CLIENTS = [f"client{number}" for number in range(10)]

RULES = """
version: 1
rules:
  - {name: everyone, scope: global, quota: 20000/day}
  - {name: client, per: [user], quota: 600/day, algorithm: fixed_window}
"""


@pytest.mark.slow
@pytest.mark.parametrize("raced", ["redis", "valkey-cluster"], indirect=True)
def test_leases_and_exact_counters_together_admit_no_more_than_each_limit(racers, raced) -> None:
    """Every client gets at most its own limit, all of them at most the shared one, and no rule is decided without the store."""
    racers.open(raced.url, RULES, near=True)
    admitted: dict[str, int] = dict.fromkeys(CLIENTS, 0)
    # Fifty limiters times twenty checks a round are twice what the clients may have, unless tokens are late to come back.
    for number in range(ROUNDS_MAX):
        if number >= ROUNDS and sum(admitted.values()) > 0.8 * 600 * len(CLIENTS):
            break
        found = racers.round(CLIENTS, ["/a"], CALLS)
        assert found.degraded == 0
        for user, count in found.admitted_by("user").items():
            admitted[user] += count
    assert sum(admitted.values()) > 0.8 * 600 * len(CLIENTS)
    assert max(admitted.values()) <= 600
    with Limiter.from_rules(load_rules(RULES.encode(), "rules.yaml"), raced.url, near=None) as watcher:
        for user in CLIENTS:
            shared, own = watcher.peek(Facts(path="/a", user=user)).results
            assert own.limit - own.remaining == admitted[user]
            # What is leased and not spent counts as used.
            assert shared.limit - shared.remaining >= sum(admitted.values()) - 1
