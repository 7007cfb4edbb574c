"""What is counted of the rules service, in ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluicegate.app.feed.node import FeedNode

__all__ = ["feed_metrics"]


def feed_metrics(node: FeedNode) -> Iterator[Metric]:
    """The families, in order."""
    standing, client = node.standing, node.client
    for name, text, value in (
        ("connected", "1 while the rules service answers", float(bool(standing.connected))),
        ("lag_seconds", "Time since this process lacks something that the rules service has", standing.lag_s),
        ("overlay", "Revision of the rollout and the pauses in service", standing.applied.overlay),
        ("paused", "Pauses that keep rules from applying now", float(len(node.paused))),
        ("subjects_revision", "Revision of the subjects in memory", standing.applied.subjects),
        ("set_back", "1 while the rules service has less than this process", float(standing.is_set_back)),
        ("kept_ok", "0 while what was told could not be kept on disk, or read", float(node.kept_problem is None)),
    ):
        yield GaugeMetricFamily(f"sluicegate_feed_{name}", text, value)
    if standing.age_s is not None:
        text = "Time since the rules service answered a poll"
        yield GaugeMetricFamily("sluicegate_feed_heard_seconds", text, standing.age_s)
    yield CounterMetricFamily("sluicegate_feed_requests", "Requests to the rules service", client.asked)
    yield CounterMetricFamily("sluicegate_feed_request_errors", "Those that failed", client.failed)
    yield CounterMetricFamily("sluicegate_feed_reports", "Reports that it answered", node.reports.sent)
    if node.hints is not None:
        text = "1 while Redis or PostgreSQL can tell of changes"
        yield GaugeMetricFamily("sluicegate_feed_push_connected", text, float(node.hints.connected))
        yield CounterMetricFamily("sluicegate_feed_push_messages", "Changes they told of", node.hints.received)
