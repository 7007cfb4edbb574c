"""What refused clients are told: jitter, templates, and the refusal of what nobody can hold."""

from __future__ import annotations

from random import Random

import pytest

from sluicegate.algorithms.verdict import Outcome
from sluicegate.clock import ManualClock
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.refusals import Refusals, refusal, too_many_held
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

PAGE = Facts(method="GET", path="/", ip="203.0.113.9", descriptors={"q": "1"})


def limiter_of(rules: str) -> Limiter:
    """A limiter by rules, on a clock that stands still."""
    return Limiter.from_rules(load_rules(f"version: 1\nrules: [{rules}]", "rules.yaml"), clock=ManualClock())


def test_jitter_leaves_passes_alone() -> None:
    """What passes is told as it is, with its own Reset."""
    limiter = limiter_of("{name: a, quota: 2/minute}")
    passed = limiter.check(PAGE)
    assert Refusals(limiter, 1000, Random(1)).told(passed) is passed


def test_jitter_moves_the_rules_that_refuse_only() -> None:
    """All refusing rules are told later by the same whole seconds, the longest wait is Retry-After; passing ones keep their Reset."""
    rules = "{name: hour, quota: 1/hour}, {name: minute, quota: 1/minute}, {name: wide, quota: 9/minute}"
    limiter = limiter_of(rules)
    limiter.check(PAGE)
    refused = limiter.check(PAGE)
    told = Refusals(limiter, 1000, Random(1)).told(refused)
    later_us = (told.retry_after_us or 0) - 3_600_000_000
    assert (later_us > 0, later_us % 1_000_000) == (True, 0)
    assert [each.retry_after_us for each in told.results[:2]] == [3_600_000_000 + later_us, 60_000_000 + later_us]
    assert told.results[2] == refused.results[2]
    assert (told.allowed, told.reset_after_us, told.rule) == (False, told.retry_after_us, "hour")


def test_jitter_promises_nothing_to_what_never_passes() -> None:
    """A ban has no time to come back, with jitter either."""
    limiter = limiter_of("{name: banned, quota: 0}")
    refused = limiter.check(PAGE)
    assert Refusals(limiter, 1000, Random(1)).told(refused) is refused


def test_jitter_spreads_outages() -> None:
    """A 503 is told later as well, and never without Retry-After."""
    store = FlakyStore(MemoryStore(ManualClock()))
    rules = load_rules("version: 1\nrules: [{name: shut, quota: 9/minute, on_store_failure: closed}]", "rules.yaml")
    limiter = Limiter.from_rules(rules, store)
    store.down = True
    waits = set()
    for seed in range(20):
        told = Refusals(limiter, 5, Random(seed)).told(limiter.check(PAGE))
        assert refusal(told).status == 503
        waits.add(int(dict(RateHeaders("off").items(told, 0))["Retry-After"]))
    assert min(waits) >= 1
    assert max(waits) <= 6
    assert len(waits) > 2


def test_an_outage_is_worth_waiting_for() -> None:
    """A 503 has Retry-After also where another rule, which can be decided, would never let the request pass."""
    store = FlakyStore(MemoryStore(ManualClock()))
    rules = """
version: 1
rules: [{name: shut, quota: 9/minute, on_store_failure: closed}, {name: small, quota: 2/minute}]
"""
    limiter = Limiter.from_rules(load_rules(rules, "rules.yaml"), store)
    store.down = True
    refused = limiter.check(PAGE, 3)
    assert (refused.refusal, refused.retry_after_us) == ("store", None)
    assert dict(RateHeaders("off").items(refused, 0)) == {"Retry-After": "1"}


@pytest.mark.parametrize(
    ("content_type", "told"),
    [
        ("text/html", "text/html; charset=utf-8"),
        ("text/html; charset=ascii", "text/html; charset=ascii"),
        ("application/json", "application/json"),
    ],
)
def test_texts_say_how_they_are_coded(content_type: str, told: str) -> None:
    """A text without a charset is UTF-8, and says so; other types are left as they are."""
    limiter = limiter_of("{name: a, quota: 0}")
    respond = {"template": "{rule} {limit} {remaining} {retry_after_s} {other}", "content_type": content_type}
    reply = refusal(limiter.check(PAGE), respond)
    assert (reply.status, reply.content_type, reply.body) == (429, told, b"a 0 0 null {other}")


def test_what_would_wait_in_shadow_is_not_what_refuses() -> None:
    """The rule that is told is the enforced one whose queue is long, whatever stands in queues that are only watched."""
    rules = """
        {name: watched, quota: 1/second burst 5, algorithm: leaky_bucket, mode: shadow},
        {name: missing, per: {first_of: [descriptor.none], on_missing: deny}, quota: 9/minute, mode: shadow},
        {name: wide, quota: 9/minute},
        {name: queue, quota: 1/second burst 5, algorithm: leaky_bucket}
    """
    limiter = limiter_of(rules)
    limiter.check(PAGE)
    held = limiter.check(PAGE)
    assert (held.allowed, held.delay_us) == (True, 1_000_000)
    refused = too_many_held(held)
    assert (refused.allowed, refused.rule, refused.retry_after_us) == (False, "queue", 1_000_000)
    assert [each.rule for each in refused.results if each.refuses] == ["queue"]
    pairs = zip(held.plan.charges, refused.summary.verdicts, strict=True)
    outcomes = {charge[0].name: verdict[0] for charge, verdict in pairs}
    assert outcomes == {"watched": Outcome.ALLOWED, "wide": Outcome.ALLOWED, "queue": Outcome.DENIED}
