"""The worst case of every rule in numbers: what it admits at most, refuses wrongly at most, and costs.

The numbers are the specs' own bounds (``Spec.most_admitted``), which tests hold against generated histories. They count
admissions net of refunds, on one store that keeps acknowledged writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.share import share_of
from sluicegate.algorithms.spec import Spec
from sluicegate.clock import US_PER_S
from sluicegate.rules.model import FailurePolicy, Mode, Rule, RuleSet
from sluicegate.rules.report_near import ReportTerms, shared_bounds
from sluicegate.rules.report_row import RuleBounds, SharedBounds
from sluicegate.rules.report_text import render_bounds

__all__ = ["COUNTER_OVERHEAD_BYTES", "ReportTerms", "RuleBounds", "SharedBounds", "bounds_report", "render_bounds"]

COUNTER_OVERHEAD_BYTES: Final = 256
"""Memory of one counter in the memory store beside its state: key text, entry and its share of the table. Measured: 192
to 244 bytes for subjects of 15 to 32 characters; a test holds the sum with the state against real counters."""


@dataclass(frozen=True, slots=True)
class _Load:
    rps: float
    clients: int
    nodes: int
    near: ReportTerms | None
    regions: Callable[[Rule, Spec], str] | None


def bounds_report(
    ruleset: RuleSet,
    *,
    rps: float = 1000,
    clients: int = 100_000,
    nodes: int = 1,
    near: ReportTerms | None = ReportTerms(),  # noqa: B008 - immutable
    regions: Callable[[Rule, Spec], str] | None = None,
) -> list[RuleBounds]:
    """The bounds of every limit of a rule set, in file order: rules, then tiers, then the parts of a quota.

    ``rps``: requests a second that match each rule; ``clients``: distinct clients with a live counter; ``nodes``: processes
    that decide, for what a store failure costs where each takes its share, and for leases. ``near``: how leases and the deny cache are set;
    None: there are none. ``regions``: says of a limit what each region has of it.
    """
    load = _Load(rps, clients, nodes, near, regions)
    return [row for rule in ruleset.rules for row in _rows(rule, load)]


def _rows(rule: Rule, load: _Load) -> Iterator[RuleBounds]:
    for tier, quota in rule.quotas.items():
        if tier is None and len(rule.quotas) > 1:
            continue
        if len(quota.specs) < 2:
            yield _row(rule, (rule.name, tier, quota.text), quota.specs[0] if quota.specs else None, load)
            continue
        for part, (spec, text) in enumerate(zip(quota.specs, quota.text.split(";"), strict=True), 1):
            yield _row(rule, (f"{rule.name}#{part}", tier, text.strip()), spec, load)


def _row(rule: Rule, label: tuple[str, str | None, str], spec: Spec | None, load: _Load) -> RuleBounds:
    name, tier, text = label
    asked = spec is not None and rule.mode is not Mode.OFF
    # A ban keeps no counter, and neither does a rule that is off.
    kept = spec if asked and not isinstance(spec, Ban) else None
    counters = 0 if kept is None else load.clients if rule.per.dimensions else 1
    counter_bytes = 0 if kept is None else COUNTER_OVERHEAD_BYTES + kept.state_bytes()
    limits = spec if rule.mode is Mode.ENFORCE else None
    wrongly, why = (0, "nothing is refused") if limits is None else _refused_wrongly(limits)
    outage_extra, store_failure = _store_failure(rule, limits, load.nodes)
    shared = shared_bounds(rule, kept, load.nodes, load.near)
    if kept is not None and load.regions is not None:
        shared = replace(shared, regions=load.regions(rule, kept))
    calls = load.rps if shared.calls_per_s is None else min(load.rps, shared.calls_per_s)
    return RuleBounds(
        rule=name,
        tier=tier,
        mode=rule.mode.value,
        per=_per(rule),
        algorithm="unlimited" if spec is None else spec.algorithm,
        quota=text,
        interval_s=None if limits is None or isinstance(limits, Ban) else limits.window_us / US_PER_S,
        most_admitted=None if limits is None else limits.most_admitted(limits.window_us),
        at_once=None if limits is None else limits.most_admitted(2),
        sustained_per_s=None if limits is None else _sustained_per_s(limits),
        formula=_formula(rule, limits),
        refused_wrongly=wrongly,
        refused_wrongly_why=why,
        counters=counters,
        counter_bytes=counter_bytes,
        memory_bytes=counters * counter_bytes,
        store_calls_per_s=calls if asked else 0.0,
        on_store_failure=rule.on_store_failure.value,
        outage_extra=outage_extra,
        store_failure=store_failure,
        shared=shared,
    )


def _per(rule: Rule) -> str:
    names = ", ".join(rule.per.dimensions)
    if not names:
        return "everybody"
    return f"first of {names}" if rule.per.first_of else names


def _sustained_per_s(spec: Spec) -> float:
    if isinstance(spec, TokenBucket | LeakyBucket):
        return spec.tokens * US_PER_S / spec.period_us
    if isinstance(spec, SlidingWindow) and spec.sub_windows is not None:
        # Every hit counts for sub_windows + 1 sub-windows of ceil(W/k).
        step_us = -(-spec.window_us // spec.sub_windows)
        return spec.capacity * US_PER_S / (step_us * (spec.sub_windows + 1))
    return spec.capacity * US_PER_S / spec.window_us


def _formula(rule: Rule, spec: Spec | None) -> str:
    if spec is None:
        return {
            Mode.OFF: "the rule is off",
            Mode.SHADOW: "the rule is a shadow: it counts and refuses nobody",
            Mode.ENFORCE: "unlimited",
        }[rule.mode]
    if isinstance(spec, Ban):
        return "a ban: nothing is admitted"
    if isinstance(spec, LeakyBucket) and not spec.nodelay:
        return "capacity + rate × time; starts are spaced evenly where the caller holds each request as told"
    if isinstance(spec, TokenBucket | LeakyBucket):
        return "capacity + rate × time: a full bucket at once, then the refill"
    if isinstance(spec, FixedWindow):
        return "2 × limit: all of one window at its end, all of the next at its start"
    if isinstance(spec, SlidingWindow) and spec.sub_windows is None:
        return "below 2 × limit: hits late in the window before weigh less than they should"
    return "limit: never more in any such interval, wherever it begins"


def _refused_wrongly(spec: Spec) -> tuple[int, str]:
    if not isinstance(spec, SlidingWindow):
        exact = "the log is exact" if isinstance(spec, SlidingLog) else "the counter is exact"
        return 0, exact
    if spec.sub_windows is None:
        why = "hits early in the window before still weigh, as if they had been spread evenly"
        return spec.capacity, why
    k = spec.sub_windows
    why = f"a hit counts for up to 1/{k} of the window longer than it should: {k}/{k + 1} of the limit in the long run"
    return spec.capacity, why


def _store_failure(rule: Rule, spec: Spec | None, nodes: int) -> tuple[int | None, str]:
    """The most tokens that one outage of the store admits beyond the rule's own bound, None where any number, and why."""
    if spec is None:
        return 0, "nothing changes"
    if rule.on_store_failure is FailurePolicy.OPEN:
        return None, "admits everything, counted and marked degraded"
    if rule.on_store_failure is FailurePolicy.CLOSED:
        return 0, "refuses everything with 503"
    if isinstance(spec, Ban):
        return 0, "still refuses everything"
    sticky = rule.fallback_share == "sticky"
    share = share_of(spec, 1 if sticky else nodes)
    who = f"each of {nodes:,} nodes counts" if nodes > 1 else "counts in this process"
    what = "all of the limit" if sticky or nodes == 1 else f"1/{nodes:,} of the rate, {share.capacity:,} at once"
    lasting = f", and {nodes:,} times the rate while it lasts" if sticky and nodes > 1 else ""
    # Shares are rounded: what they hold together may be more than the limit where there are more nodes than tokens, and less.
    shares = nodes * share.capacity
    if rule.fallback_start == "empty":
        more, start = max(0, shares - spec.capacity), "starts empty, so no burst more"
        if more:
            start = f"starts empty, but has a token at least, so up to {more:,} more per outage over all nodes"
        return (None if lasting else more), f"{who} {what}; {start}{lasting}"
    more = max(spec.capacity, shares)
    extent = f"up to {more:,} more per outage over all nodes" if nodes > 1 else f"up to {more:,} more per outage"
    return (None if lasting else more), f"{who} {what}; starts full, so {extent}{lasting}"
