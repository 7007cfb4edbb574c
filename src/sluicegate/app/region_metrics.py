"""What this process knows of its region's parts, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluicegate.clock import US_PER_S
from sluicegate.stores.regional.store import RegionalStore

__all__ = ["region_metrics"]

_SHARES = {
    "held": "Part of the whole limit that this region has of a counter that all clients share (0 to 1)",
    "lent": "Part of the whole limit that is this region's and that other regions have",
    "borrowed": "Part of the whole limit that this region has of other regions",
}
_COUNTS = {
    "given": "Transfers of parts to other regions made by this process",
    "taken": "Transfers of parts to this region made by this process",
    "begun": "Records of this region begun anew by this process: it was new, or its store has come back or lost it",
    "conflicts": "Steps of this process that another one was faster at",
    "outdated": "Records met that were written by another table of regions",
}


def region_metrics(store: RegionalStore) -> Iterator[Metric]:
    """Every metric of a region; parts are those of counters that were in use lately."""
    status = store.status()
    for name, text in _SHARES.items():
        family = GaugeMetricFamily(f"sluicegate_region_{name}", text, labels=["region", "counter"])
        for key, share in status.counters.items():
            family.add_metric([status.region, key], getattr(share, name))
        yield family
    text = (
        "Seconds since another region's store, or this one's, could not be reached to move parts; absent while it can"
    )
    away = GaugeMetricFamily("sluicegate_region_unreachable_seconds", text, labels=["region"])
    for name, away_us in status.unreachable_us.items():
        away.add_metric([name], away_us / US_PER_S)
    yield away
    for name, text in _COUNTS.items():
        value = getattr(status.stats, name)
        yield CounterMetricFamily(f"sluicegate_region_{name}", text, value=value)
