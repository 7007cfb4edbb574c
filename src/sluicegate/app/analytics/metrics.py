"""What is counted of telling about decisions, in ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluicegate.app.analytics.flusher import Flusher
from sluicegate.events import Dropped

__all__ = ["analytics_metrics"]


def analytics_metrics(flusher: Flusher) -> Iterator[Metric]:
    """The families, in order."""
    stats = flusher.sink.stats
    for name, text, value in (
        ("batches", "Batches about decisions that are kept", stats.batches),
        ("decisions_recorded", "Decisions that those count", stats.decisions),
        ("sink_errors", "Attempts to hand a batch over that failed", stats.errors),
    ):
        yield CounterMetricFamily(f"sluicegate_analytics_{name}", text, value)
    dropped = CounterMetricFamily(
        "sluicegate_analytics_dropped", "What could not be told of decisions, by kind", labels=["kind"]
    )
    for kind in Dropped.__struct_fields__:
        dropped.add_metric([kind], flusher.dropped[kind])
    yield dropped
    yield GaugeMetricFamily("sluicegate_analytics_queue_batches", "Batches that wait to be taken", flusher.queued)
    yield GaugeMetricFamily("sluicegate_analytics_queue_bytes", "Their size", flusher.queued_bytes)
    if flusher.age_s is not None:
        text = "Time since a batch was last acknowledged"
        yield GaugeMetricFamily("sluicegate_analytics_flush_age_seconds", text, flusher.age_s)
