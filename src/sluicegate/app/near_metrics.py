"""What ``/metrics`` says of what is answered without asking the store: leases, the deny cache, hot counters."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.near import NearStore

__all__ = ["near_metrics"]

_ANSWERED = {"leased": "lease", "denied": "denial", "never": "never_fits", "asked": "store"}
"""A near store's count of requests -> by what they were answered."""

_COUNTS: dict[str, tuple[str, str]] = {
    "lapsed": ("lease_lapsed", "Charges of leases that ended while the store decided the rest of the request"),
    "undone": ("near_undone", "Charges given back because the request was refused after all"),
    "undo_failed": ("near_undo_failed", "Those that could not be given back, so that the client lost them"),
}
_LEASES: dict[str, tuple[str, str]] = {
    "asks": ("lease_asks", "Questions about leases, one for each counter and call"),
    "failed": ("lease_asks_failed", "Those that got no answer"),
    "granted": ("lease_tokens_granted", "Tokens taken of the store in advance"),
    "returned": ("lease_tokens_returned", "Tokens given back unspent"),
    "written_off": ("lease_tokens_written_off", "Tokens of leases that ended before they were spent or given back"),
}


def near_metrics(limiter: Limiter) -> Iterator[Metric]:
    """Nothing where the store is asked about everything."""
    near = limiter.near
    if near is None:
        return
    text = "Requests by what answered them; all but `store` cost no call of the store"
    answered = CounterMetricFamily("sluicegate_near_requests", text, labels=["answered"])
    for name, label in _ANSWERED.items():
        answered.add_metric([label], getattr(near.stats, name))
    yield answered
    for name, (metric, text) in _COUNTS.items():
        yield CounterMetricFamily(f"sluicegate_{metric}", text, getattr(near.stats, name))
    counts = near.front.leases.counts
    for name, (metric, text) in _LEASES.items():
        yield CounterMetricFamily(f"sluicegate_{metric}", text, getattr(counts, name))
    yield from _now(near)


def _now(near: NearStore) -> Iterator[Metric]:
    front, hot = near.front, near.hot
    values = {
        "leased_counters": (
            "Counters of which this process holds tokens, or is about to ask for some",
            front.leases.held,
        ),
        "lease_failing": (
            "1 while the last exchange about leases, or about hot counters, has failed",
            int(near.failing),
        ),
        "deny_cache_entries": ("Refusals remembered, ended ones that have not left yet included", len(front.denials)),
        "hot_counters": ("Counters that are hot in this process", near.warmth.promoted),
        "split_counters": ("Hot counters that this process knows to be split", len(hot.splits.all())),
        "estimated_counters": ("Hot counters that this process admits by chance", len(hot.estimates.all())),
    }
    for name, (text, value) in values.items():
        yield GaugeMetricFamily(f"sluicegate_{name}", text, value)
