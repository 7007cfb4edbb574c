"""The worked examples of what becomes of live counters when a limit changes, as the page for operators tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import RuleSet

PAGE = Path(__file__).parents[2] / "docs" / "control" / "live-counters.md"
ALGORITHMS = ("token_bucket", "fixed_window", "sliding_window", "sliding_log")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith(tuple(f"| {name} " for name in ALGORITHMS))
]


def rules(quota: str, algorithm: str, on_change: str) -> RuleSet:
    line = f"name: r, per: [user], quota: {quota}, algorithm: {algorithm}, on_change: {on_change}"
    return load_rules(f"version: 1\nrules: [{{{line}}}]\n", "rules.yaml")


def test_the_page_has_examples_of_every_kind() -> None:
    """Each algorithm and each way to change is on the page."""
    assert {row[0] for row in ROWS} == set(ALGORITHMS)
    assert {row[4] for row in ROWS} == {"keep", "scale", "reset"}


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_an_example_is_what_happens(row: list[str]) -> None:
    """After the change the client has what the page says left, and its next request passes exactly when the page says."""
    algorithm, old, used, new, on_change, left, wait = row
    wait_us = round(float(wait.removesuffix(" s")) * US_PER_S)
    clock = ManualClock(1_700_000_040 * US_PER_S)  # the beginning of a minute
    limiter = Limiter.from_rules(rules(old, algorithm, on_change), clock=clock)
    client = {"user": "u"}
    assert limiter.check(client, int(used)).allowed
    limiter.apply(rules(new, algorithm, on_change))
    seen = limiter.peek(client, 0)
    assert seen.remaining == int(left)
    if wait_us:
        clock.advance(wait_us - 1)
        assert not limiter.check(client).allowed
        clock.advance(1)
    assert limiter.check(client).allowed


def test_a_client_of_another_tier_keeps_its_counter() -> None:
    """A client that used all of the free limit and becomes a paying one has the difference at once."""
    text = """
version: 1
tiers: {default: free, names: [free, paid]}
rules: [{name: r, per: [user], quota: {free: 100/minute, paid: 1000/minute}}]
"""
    limiter = Limiter.from_rules(load_rules(text, "rules.yaml"), clock=ManualClock())
    assert limiter.check({"user": "u", "tier": "free"}, 100).allowed
    assert limiter.check({"user": "u", "tier": "paid"}).remaining == 899


@pytest.mark.parametrize(
    "change", ["algorithm: fixed_window", "quota: 10/2m, algorithm: sliding_window", "per: {first_of: [ip]}", "name: q"]
)
def test_another_counter_starts_full(change: str) -> None:
    """Another algorithm, window, client or name is another counter: the client gets the old limit and the new one once."""
    fields = {"name": "r", "per": "[user]", "quota": "10/minute", "algorithm": "sliding_window"}
    parts = [part.split(": ", 1) for part in (change.split(", ") if "first_of" not in change else [change])]
    texts = [
        f"version: 1\nrules: [{{{', '.join(f'{name}: {value}' for name, value in given.items())}}}]\n"
        for given in (fields, fields | dict(parts))
    ]
    before, after = (load_rules(text, "rules.yaml") for text in texts)
    limiter = Limiter.from_rules(before, clock=ManualClock())
    client = {"user": "u", "ip": "10.0.0.1"}
    admitted = sum(limiter.check(client).allowed for _ in range(20))
    limiter.apply(after)
    assert admitted + sum(limiter.check(client).allowed for _ in range(20)) == 20
