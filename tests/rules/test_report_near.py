"""What ``rules bounds`` says of leases and the deny cache."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest

from sluicegate.algorithms import Precision
from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.rules.load import load_rules
from sluicegate.rules.report import ReportTerms, RuleBounds, bounds_report, render_bounds
from sluicegate.stores.base import Counter
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings

TERMS = ReportTerms()
MORE = "nothing more is admitted while the store keeps its writes"


def report(*rules: str, nodes: int = 1, near: ReportTerms | None = TERMS, rps: float = 1000) -> list[RuleBounds]:
    """The rows of these rules."""
    text = "version: 1\nrules:\n" + "".join(f"- {{{rule}}}\n" for rule in rules)
    return bounds_report(load_rules(text, "f"), nodes=nodes, near=near, rps=rps)


def test_the_defaults_are_those_of_servers() -> None:
    """Without flags the report tells of what a server does without flags."""
    settings = NearSettings()
    for field in ("terms", "horizon_us", "exact_below", "trust_us"):
        assert getattr(TERMS, field) == getattr(settings, field)


@pytest.mark.parametrize(
    "rule, nodes, precision, leased, decided",
    [
        ("quota: 400/s", 8, "leased", True, f"decided in the process, from leases; {MORE}"),
        (
            "quota: 399/s",
            8,
            "leased",
            False,
            "decided by the store; not leased: 399 tokens are fewer than 50 for each of 8 processes",
        ),
        (
            "quota: 50/s, per: [ip]",
            1,
            "auto",
            True,
            f"decided by the store; where it is hot in the process, from leases; {MORE}",
        ),
        (
            "quota: 49/s, per: [ip]",
            1,
            "auto",
            False,
            "decided by the store; not leased: 49 tokens are fewer than 50 for a process",
        ),
        (
            "quota: 100/s, algorithm: sliding_log",
            1,
            "leased",
            False,
            "decided by the store; not leased: 1 s are fewer than 20.2, so too much would be lost to leases",
        ),
        ("quota: 100/m, algorithm: sliding_log", 1, "leased", True, f"decided in the process, from leases; {MORE}"),
        ("quota: 100/s, precision: exact", 1, "exact", False, "decided by the store"),
        ("quota: 100/s, denied_counts: true", 1, "exact", False, "decided by the store"),
        ("quota: 100/s, algorithm: leaky_bucket, max_delay_ms: 1000", 1, "exact", False, "decided by the store"),
    ],
)
def test_where_a_limit_is_decided(rule: str, nodes: int, precision: str, leased: bool, decided: str) -> None:
    """The precision, whether it can be had at so many nodes, and why not."""
    shared = report(f"name: a, {rule}", nodes=nodes)[0].shared
    assert (shared.precision, shared.leased, shared.decided) == (precision, leased, decided)
    assert shared.over_admitted == 0


def test_what_is_switched_off_is_not_told() -> None:
    """Without leases every check asks the store; without both nothing is decided in the process at all."""
    (off,) = report("name: a, quota: 500/s", near=replace(TERMS, leases=False))
    assert off.shared.decided == "decided by the store; leases are off"
    assert (off.shared.refused_wrongly, off.store_calls_per_s, off.shared.trusted_s) == (0, 1000, 1.0)
    (none,) = report("name: a, quota: 500/s", near=None)
    assert (none.shared.precision, none.shared.decided) == ("exact", "decided by the store")
    assert none.shared.trusted_s == 0


def test_a_lease_costs_calls_by_nodes_and_not_by_requests() -> None:
    """A leased counter is asked for four times in a horizon by each node at most; a hot one may be decided by the store."""
    leased, auto = report("name: a, quota: 5000/s", "name: b, quota: 5000/s, per: [ip]", nodes=8, rps=100_000)
    assert (leased.store_calls_per_s, auto.store_calls_per_s) == (8 * 20, 100_000)
    (rare,) = report("name: a, quota: 5000/s", nodes=8, rps=3)
    assert rare.store_calls_per_s == 3


@pytest.mark.parametrize(
    "quota, horizon_us, held",
    [("1000/s", 200_000, 250), ("1000/s", 40_000, 50), ("1000/m", 200_000, 5), ("1000/s burst 450", 200_000, 225)],
)
def test_what_lies_in_processes(quota: str, horizon_us: int, held: int) -> None:
    """Tokens of a horizon and of one pause between asks, and never more than half of what there is."""
    (row,) = report(f"name: a, quota: {quota}", near=replace(TERMS, horizon_us=horizon_us))
    assert row.shared.refused_wrongly == held
    assert f"up to {held} fewer in any interval" in row.shared.refused_wrongly_why


@pytest.mark.parametrize(
    "rule, lost_us, lost, ends",
    [
        ("quota: 100/m", 2_000_000, 100, "what was leased where one of those comes before the next lease"),
        ("quota: 100/m, precision: exact", 2_000_000, 100, "what was charged is admitted again"),
        ("quota: 6000/m burst 60", 100_000, 60, "before the next lease"),
        ("quota: 100/m", 0, 0, "before the next lease"),
    ],
)
def test_what_lost_writes_cost(rule: str, lost_us: int, lost: int, ends: str) -> None:
    """As much as may be admitted in the time of which the writes are lost, and never more than one capacity."""
    (row,) = report(f"name: a, {rule}", near=replace(TERMS, lost_us=lost_us))
    assert row.shared.lost_writes_extra == lost
    assert row.shared.lost_writes.startswith(f"{lost_us / 1_000_000:g} s of them: up to {lost} more; ")
    assert row.shared.lost_writes.endswith(ends)


def test_confirmed_grants_are_not_lost() -> None:
    """What a replica has before it is used does not come back."""
    (row,) = report("name: a, quota: 100/m", near=replace(TERMS, terms=LeaseTerms(confirmed=True)))
    assert row.shared.lost_writes.endswith("exact charges only: a replica has what was leased")


def test_what_refuses_nobody_has_no_bounds() -> None:
    """Of shadows, bans and unlimited quotas nothing is said."""
    rows = report("name: a, quota: 500/s, mode: shadow", "name: b, quota: 0", "name: c, quota: unlimited")
    text = render_bounds(rows)
    assert "writes lost" not in text
    assert [row.shared.lost_writes_extra for row in rows[1:]] == [0, 0]


def test_the_text_tells_all_of_it() -> None:
    """The lines of a limit name precision, wrong refusals and lost writes; the closing lines how long a refusal is trusted."""
    rows = report("name: a, quota: 100/m, algorithm: sliding_log", near=replace(TERMS, trust_us=250_000))
    text = render_bounds(rows)
    assert f"\n  leased         decided in the process, from leases; {MORE}\n" in text
    assert "each counts up to 1.01 s longer than the window" in text
    assert "\n  writes lost    2 s of them" in text
    assert "is seen after 0.25 s at most" in text
    assert all(len(line) < 200 for line in text.splitlines())
    assert "is seen after" not in render_bounds(report("name: a, quota: 100/m", near=None))
    json.dumps([dataclasses.asdict(row) for row in rows])


def test_longer_leases_are_told() -> None:
    """The numbers are those of the fleet's settings."""
    near = replace(TERMS, terms=LeaseTerms(ttl_us=4_000_000, drift_ppm=100_000))
    (row,) = report("name: a, quota: 100/h, algorithm: sliding_log", near=near)
    assert "each counts up to 4.4 s longer" in row.shared.refused_wrongly_why


def test_what_splitting_costs() -> None:
    """What comes back in one call with each split, and what a process that is lost had not told."""
    (row,) = report("name: a, per: [ip], quota: 10000/s, precision: split")
    assert row.shared.decided == "decided by the store; where it is hot, in 64 parts"
    assert row.shared.over_admitted == 10_000
    assert row.shared.over_admitted_why.startswith("up to 80 more with each split, and 10,000 with each process")
    (slow,) = report("name: a, quota: 600/m, precision: split")
    assert (slow.shared.over_admitted, "in 60 parts" in slow.shared.decided) == (600, True)
    (small,) = report("name: a, quota: 19/m, precision: split")
    assert small.shared.decided == "decided by the store; too small to be split"
    assert (small.shared.over_admitted, small.shared.over_admitted_why) == (0, "")


@pytest.mark.parametrize("nodes, more", [(1, 2 * 108 + 100 + 2), (8, 2 * 108 + 100 + 16)])
def test_what_estimating_costs(nodes: int, more: int) -> None:
    """Twice the rate for the age of a figure, a tenth of a second more, and two tokens for each process."""
    (row,) = report("name: a, quota: 1000/s, precision: estimated", nodes=nodes)
    assert row.shared.over_admitted == more
    assert f"up to {more} more where the load jumps" in row.shared.over_admitted_why
    assert f"up to {more} more where the load jumps" in render_bounds([row])


@pytest.mark.parametrize("nodes", [1, 7])
@pytest.mark.parametrize(
    "quota", ["49/s", "50/s", "349/m", "350/m", "400/300ms", "9999/10s", "9999/h", "1000/s burst 60"]
)
@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_window", "sliding_log", "strict"])
def test_what_is_told_to_be_leased_is_leased(quota: str, algorithm: str, nodes: int) -> None:
    """The report and a process agree on which limits are leased by so many processes."""
    if "burst" in quota and algorithm != "token_bucket":
        return
    shape = "algorithm: sliding_window, strict: true" if algorithm == "strict" else f"algorithm: {algorithm}"
    rules = load_rules(f"version: 1\nrules: [{{name: a, quota: {quota}, {shape}}}]", "f")
    ((spec,),) = [quota.specs for quota in rules.rules[0].quotas.values()]
    leases = Leases(NearSettings())
    leases.nodes = nodes
    found = leases.find(Counter("a", spec, "p:", precision=Precision.LEASED), "*", 0)
    assert bounds_report(rules, nodes=nodes)[0].shared.leased is (found is not None)
