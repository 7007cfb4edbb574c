"""What is counted without describing a decision is what its description says."""

from __future__ import annotations

from collections import Counter as Tally
from random import Random

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

RULES = """
version: 1
rules:
  - {name: trial, per: [ip], quota: 2/minute, mode: shadow}
  - {name: floor, scope: global, quota: 12/minute}
  - {name: login, match: {path: /login}, per: [ip], quota: "2/minute; 4/hour", denied_counts: true}
  - {name: user, per: [user], quota: 5/minute, algorithm: fixed_window}
  - {name: known, match: {path: /known}, per: [api_key], on_missing: deny, quota: 3/minute}
  - {name: maybe, match: {path: /maybe}, per: [tenant], on_missing: deny, quota: 3/minute, mode: shadow}
"""


def test_refusals_are_counted_as_they_are_described() -> None:
    """Over a made history of costs, paths and clients, both counts of a limiter equal those made from its decisions."""
    clock = ManualClock()
    limiter = Limiter.from_rules(load_rules(RULES, "test"), clock=clock)
    rng = Random(8123)
    refused: Tally[tuple[str | None, str]] = Tally()
    shadow: Tally[str] = Tally()
    for _ in range(2_000):
        clock.advance(rng.choice([0, 1, US_PER_S, 20 * US_PER_S]))
        facts = Facts(
            path=rng.choice(["/login", "/known", "/maybe", "/"]),
            ip=rng.choice(["203.0.113.1", "203.0.113.2", None]),
            user=rng.choice(["a", "b", None]),
            api_key=rng.choice(["k", None]),
        )
        decision = limiter.check(facts, rng.choice([1, 1, 1, 2, 6, 100]))
        if not decision.allowed:
            refused[decision.rule, decision.outcome] += 1
        shadow.update(
            result.rule for result in decision.results if result.shadow and result.outcome in ("denied", "never_fits")
        )
    assert len(refused) > 6
    assert dict(refused) == limiter.stats.refused
    assert set(shadow) == {"trial", "maybe"}
    assert dict(shadow) == limiter.stats.shadow_refused
