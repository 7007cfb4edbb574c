"""``/metrics`` of the rules service: integers kept by its parts, read when somebody asks. docs/metrics.md says what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluicegate.control.http.context import Context

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(context: Context) -> bytes:
    """All metrics with their values now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(context))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        yield from self._interface()
        yield from self._service()
        yield from self._context.service.more_metrics()

    def _interface(self) -> Iterator[Metric]:
        numbers, access = self._context.numbers, self._context.access
        requests = CounterMetricFamily(
            "sluicegate_control_requests", "Requests that were answered.", labels=["operation", "status"]
        )
        for (operation, status), times in sorted(numbers.requests.items()):
            requests.add_metric([operation, str(status)], times)
        yield requests
        limited = CounterMetricFamily("sluicegate_control_limited", "Requests answered with 429.", labels=["limit"])
        for limit, times in access.limited.items():
            limited.add_metric([limit], times)
        yield limited
        yield _counter("refused_logins", "Requests with a wrong token.", access.refused_logins)
        yield _counter("overloaded", "Requests refused because too many were at work.", numbers.overloaded)
        yield _counter("internal_errors", "Faults of the rules service.", numbers.internal_errors)
        yield _gauge("requests_at_work", "Requests at work.", numbers.at_work)
        yield _gauge("polls", "Long polls that wait.", numbers.polls)

    def _service(self) -> Iterator[Metric]:
        service = self._context.service
        watch = service.watch
        yield _gauge("rules_version", "Version of the rules in service.", service.hub.latest.ruleset)
        yield _counter("watch_failures", "Failures of the background: polls and chores.", watch.failures)
        yield _gauge("watch_failing", "1 while the background fails.", int(watch.error is not None))
        yield _gauge("listening", "1 while PostgreSQL tells of changes.", int(watch.listening))
        yield _counter("publish_failures", "Pushes that failed.", service.ledger.publish_failures)
        operations = CounterMetricFamily(
            "sluicegate_control_counter_operations", "Times counters of nodes were asked about.", labels=["operation"]
        )
        for operation, times in service.counters.operations.items():
            operations.add_metric([operation], times)
        yield operations
        trials = CounterMetricFamily("sluicegate_control_whatif", "Trials of proposed rules.", labels=["result"])
        for result, times in service.whatif.done.items():
            trials.add_metric([result], times)
        yield trials
        yield _gauge("samples", "Sampled requests that are kept.", service.whatif.samples.kept)
        yield _counter("rollouts_rolled_back", "Rollouts undone by their guard.", service.rollouts.rolled_back)


def _counter(name: str, text: str, value: int) -> Metric:
    metric = CounterMetricFamily(f"sluicegate_control_{name}", text)
    metric.add_metric([], value)
    return metric


def _gauge(name: str, text: str, value: int) -> Metric:
    metric = GaugeMetricFamily(f"sluicegate_control_{name}", text)
    metric.add_metric([], value)
    return metric
