"""From limits and traffic to a proposal. Pure: the same input gives the same proposal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate

from sluicegate.algorithms import Ban
from sluicegate.analytics.suggestions import words
from sluicegate.analytics.suggestions.model import Exact, Judged, Limits, Policy
from sluicegate.analytics.suggestions.numbers import choose
from sluicegate.analytics.suggestions.series import Client, busiest, clients_of, quantile
from sluicegate.analytics.suggestions.trying import refusals, share_between
from sluicegate.clock import US_PER_S
from sluicegate.events import Demand
from sluicegate.rules.proposals import Evidence, Quantiles, Refusals, Suggestion, Verdict
from sluicegate.rules.quota_format import format_quota

__all__ = ["judge", "outliers"]

_ORDINARY_SHARE = 0.95


def judge(
    limits: Limits, rows: Sequence[Demand], policy: Policy | None = None, exact: Exact | None = None
) -> Suggestion:
    """A proposal for these limits. ``rows``: demand of the rule; those of other tiers are left alone."""
    policy = policy or Policy()
    mine = [row for row in rows if row.rule == limits.rule and limits.covers(row.tier)]
    clients, left_out = clients_of(mine)
    span_s = _span_s(mine)
    window_us = max((spec.window_us for spec in limits.specs), default=60 * US_PER_S)
    ordinary, _, many = outliers(clients, window_us, policy)
    evidence = _evidence(clients, ordinary, mine, limits, span_s, window_us, exact or Exact())
    missing = words.missing(limits, evidence, policy, needed_s=_needed_s(window_us, policy.raise_span_s))
    no_numbers = limits.shared or not limits.specs or all(isinstance(spec, Ban) for spec in limits.specs)
    if missing or no_numbers:
        verdict: Verdict = "keep" if no_numbers else "not enough data"
        judged = Judged(limits.specs, ())
    else:
        may_lower = span_s >= _needed_s(window_us, policy.lower_span_s) and (
            limits.minimum is None or len(limits.specs) == 1
        )
        judged = choose(limits, ordinary, policy, may_lower=may_lower, may_raise=_is_refused_too_much(ordinary, policy))
        verdict = _verdict(limits, judged)
        evidence = _with_trial(evidence, limits, judged, ordinary)
    cautions = words.cautions(limits, evidence, judged, policy, excluded_many=many, left_out=left_out, exact=exact)
    proposed = limits.text if judged.specs == limits.specs else format_quota(judged.specs)
    made = Suggestion(
        id="",
        rule=limits.rule,
        tier=limits.tier,
        verdict=verdict,
        current=limits.text,
        proposed=proposed,
        why="",
        confidence="none" if missing or no_numbers else _confidence(evidence, policy, window_us),
        evidence=evidence,
        cautions=cautions,
        missing=() if no_numbers else missing,
    )
    return words.told(made, _id(made), limits, judged, policy)


def _is_refused_too_much(ordinary: Sequence[Client], policy: Policy) -> bool:
    """Whether more clients were really refused than is wanted. What is laid out from sums and peaks alone raises nothing."""
    refused = sum(client.weight for client in ordinary if client.refused)
    return refused > (1 - policy.target_share) * sum(client.weight for client in ordinary)


def outliers(clients: Sequence[Client], window_us: int, policy: Policy) -> tuple[list[Client], list[Client], bool]:
    """Clients that count, those that are left out, and whether there were more of that sort than may be left out.

    Left out is who asked more than ``outlier_factor`` times what 95 % of the clients stay below, those that asked most first, until they are
    ``outlier_share_max`` of all.
    """
    peaks = [(busiest(client, window_us), client) for client in clients]
    bound = policy.outlier_factor * quantile([(peak, client.weight) for peak, client in peaks], _ORDINARY_SHARE)
    room = policy.outlier_share_max * sum(client.weight for client in clients)
    out: list[Client] = []
    many = False
    for peak, client in sorted(peaks, key=lambda pair: (-pair[0], pair[1].subject)):
        if peak <= bound:
            break
        room -= client.weight
        if room < 0:
            many = True
            break
        out.append(client)
    names = {client.subject for client in out}
    return [client for client in clients if client.subject not in names], out, many


def _evidence(
    clients: Sequence[Client], ordinary: Sequence[Client], rows: Sequence[Demand], limits: Limits, span_s: int, window_us: int, exact: Exact
) -> Evidence:  # fmt: skip
    asked = sum(client.weight * client.asked for client in clients)
    rates = [row.sample_rate for row in rows] or [1.0]
    refused_clients, half, top = _concentration(clients)
    of_ordinary = sum(client.weight * client.asked for client in ordinary)
    return Evidence(
        clients=len(clients),
        clients_estimated=round(sum(client.weight for client in clients)),
        requests=sum(client.asked for client in clients),
        requests_estimated=round(asked),
        span_s=span_s,
        sample_rate_min=min(rates),
        sample_rate_max=max(rates),
        demand=_quantiles(clients, window_us),
        needed=(),
        seen=_seen(clients),
        now=None
        if limits.shared or not clients
        else refusals(ordinary, limits.specs, denied_counts=limits.denied_counts),
        proposed=None,
        excluded=len(clients) - len(ordinary),
        excluded_requests=1 - of_ordinary / asked if asked else 0.0,
        matched=exact.matched,
        refused=exact.refused,
        refused_clients=refused_clients,
        half_of_refusals=half,
        top_client=top,
    )


def _with_trial(evidence: Evidence, limits: Limits, judged: Judged, ordinary: Sequence[Client]) -> Evidence:
    same = judged.specs == limits.specs
    tried = evidence.now if same else refusals(ordinary, judged.specs, denied_counts=limits.denied_counts)
    values = {name: getattr(evidence, name) for name in Evidence.__struct_fields__}
    return Evidence(**values | {"needed": judged.needed, "proposed": tried, "buckets": judged.buckets})


def _quantiles(clients: Sequence[Client], window_us: int) -> Quantiles | None:
    if not clients:
        return None
    peaks = [(busiest(client, window_us), client.weight) for client in clients]
    half, p90, p99, p999 = (quantile(peaks, share) for share in (0.5, 0.9, 0.99, 0.999))
    return Quantiles(window_us / US_PER_S, half, p90, p99, p999, max(peak for peak, _ in peaks))


def _seen(clients: Sequence[Client]) -> Refusals | None:
    if not clients:
        return None
    weight = sum(client.weight for client in clients)
    asked = sum(client.weight * client.asked for client in clients)
    refused = [client for client in clients if client.refused]
    low, high = share_between(len(refused), len(clients), sampled=any(client.weight > 1 for client in clients))
    lost = sum(client.weight * client.refused for client in refused)
    return Refusals(sum(client.weight for client in refused) / weight, lost / asked, low, high)


def _concentration(clients: Sequence[Client]) -> tuple[int, int, float]:
    """Whose the refusals are: clients that had any, the fewest that had half of all, and the share of the one with the most."""
    counts = sorted((client.refused for client in clients if client.refused), reverse=True)
    if not counts:
        return 0, 0, 0.0
    total = sum(counts)
    half = next(number for number, passed in enumerate(accumulate(counts), 1) if 2 * passed >= total)
    return len(counts), half, counts[0] / total


def _span_s(rows: Sequence[Demand]) -> int:
    if not rows:
        return 0
    first = min(row.at_us for row in rows)
    return max(row.at_us + row.span_s * US_PER_S for row in rows) // US_PER_S - first // US_PER_S


def _needed_s(window_us: int, least_s: int) -> int:
    """At least two whole windows of the quota."""
    return max(least_s, -(-2 * window_us // US_PER_S))


def _verdict(limits: Limits, judged: Judged) -> Verdict:
    if judged.specs == limits.specs:
        return "keep"
    long_us = max(spec.window_us for spec in limits.specs)
    pairs = list(zip(limits.specs, judged.specs, strict=True))
    more = any(
        new.capacity > old.capacity or new.most_admitted(long_us) > old.most_admitted(long_us) for old, new in pairs
    )
    return "raise" if more else "lower"


def _confidence(evidence: Evidence, policy: Policy, window_us: int) -> words.Confidence:
    """How much there was to go by, not how likely it is to be wanted."""
    clients, days = evidence.clients, evidence.span_s / 86_400
    if clients >= 10 * policy.clients_min and days >= 7 and evidence.span_s * US_PER_S >= 20 * window_us:
        return "high"
    if clients >= 2 * policy.clients_min and days >= 1 and evidence.span_s * US_PER_S >= 5 * window_us:
        return "medium"
    return "low"


def _id(made: Suggestion) -> str:
    seed = repr((made.rule, made.tier, made.verdict, made.current, made.proposed, made.evidence))
    return f"s-{hashlib.sha256(seed.encode()).hexdigest()[:12]}"
