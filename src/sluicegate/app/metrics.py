"""``/metrics``: plain integers kept by the parts of the program, read when somebody asks.

Every label has few values: rules are those of the file, outcomes, routes, reasons and status classes are fixed words.
No label ever comes from a request. Names and meanings are in docs/metrics.md, which a test compares with this module.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from sluicegate.app.analytics.accuracy import AccuracyWatch, accuracy_metrics
from sluicegate.app.analytics.flusher import Flusher
from sluicegate.app.analytics.metrics import analytics_metrics
from sluicegate.app.client_metrics import client_metrics
from sluicegate.app.feed.metrics import feed_metrics
from sluicegate.app.feed.node import FeedNode
from sluicegate.app.near_metrics import near_metrics
from sluicegate.app.open_metrics import OPEN_CONTENT_TYPE, open_metrics
from sluicegate.app.status import Status
from sluicegate.app.store_metrics import store_metrics
from sluicegate.app.tls import ListenerTls
from sluicegate.app.tls_metrics import tls_metrics
from sluicegate.clock import US_PER_S
from sluicegate.doors.durations import Durations, Example
from sluicegate.doors.gateway import Gateway
from sluicegate.doors.grpc.calls import CODES
from sluicegate.doors.grpc.door import GrpcDoor
from sluicegate.doors.http.door import HttpDoor
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.watched import RulesState

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Collector):
    """Reads everything there is. ``doors``, ``gateway``, ``grpc`` and ``tls`` are filled in as they are composed."""

    def __init__(
        self, rules: RulesState, limiter: Limiter, status: Status, latency: Durations, feed: FeedNode | None = None
    ) -> None:
        self.doors: dict[str, HttpDoor] = {}
        self.gateway: Gateway | None = None
        self.grpc: GrpcDoor | None = None
        self.tls: Mapping[str, ListenerTls] = {}
        self.flusher: Flusher | None = None
        self.accuracy: AccuracyWatch | None = None
        self._rules = rules
        self._feed = feed
        self._limiter = limiter
        self._status = status
        self._latency = latency
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> tuple[str, bytes]:
        """Content type and text of the answer to a scrape."""
        return CONTENT_TYPE, generate_latest(self._registry)

    def open_metrics(self) -> tuple[str, bytes]:
        """The same as OpenMetrics 1.0, which has exemplars too."""
        return OPEN_CONTENT_TYPE, open_metrics(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Every metric with its values now."""
        yield from self._process()
        yield from self._rule_file()
        if self._feed is not None:
            yield from feed_metrics(self._feed)
        yield from self._decisions()
        yield from client_metrics(self._limiter)
        yield from store_metrics(self._limiter)
        yield from near_metrics(self._limiter)
        text = "How long the store took to answer the heartbeat of each second"
        yield _histogram("store_latency_seconds", text, {(): self._latency})
        yield from self._identity()
        if self.doors:
            yield from _http(self.doors)
            text = "How long checks over HTTP took, of a sample of them"
            measured = {(name,): door.durations for name, door in self.doors.items()}
            yield _histogram("decision_duration_seconds", text, measured, "listener")
        if self.gateway is not None:
            yield from _gateway(self.gateway)
        if self.grpc is not None:
            yield from _grpc(self.grpc)
        if self.flusher is not None:
            yield from analytics_metrics(self.flusher)
        if self.accuracy is not None:
            yield from accuracy_metrics(self.accuracy)
        if self.tls:
            yield from tls_metrics(self.tls)

    def _process(self) -> Iterator[Metric]:
        build = {"version": version("sluicegate"), "python": platform.python_version()}
        yield InfoMetricFamily("sluicegate_build", "The program that runs", value=build)
        yield _gauge("ready", "1 while new requests are welcome, as in /readyz", int(self._status.ready()[0]))
        text = "What the wall clock of the process says"
        yield _gauge("clock_timestamp_seconds", text, self._latency.clock.now_us() / US_PER_S)
        yield _gauge("uptime_seconds", "Time since the process was composed", self._status.uptime_s)

    def _rule_file(self) -> Iterator[Metric]:
        rules = self._rules
        yield InfoMetricFamily("sluicegate_rules", "The rules in service", value={"digest": rules.digest})
        yield _gauge(
            "rules_version",
            "Version of the rules in service; of a rule file it counts accepted edits from 1",
            rules.version,
        )
        error = self._status.rules_error
        yield _gauge("rules_file_ok", "0 while the rule file as it is now is not in service", int(error is None))
        yield _gauge(
            "rules_loaded_timestamp_seconds", "When the rules in service were accepted", rules.loaded_us / US_PER_S
        )
        yield _counter("rules_accepted", "Rule files accepted, the first one included", rules.accepted)
        yield _counter("rules_rejected", "Rule files rejected", rules.rejected)

    def _decisions(self) -> Iterator[Metric]:
        stats = self._limiter.stats
        for name, text in _DECISIONS.items():
            yield _counter(name, text, getattr(stats, name))
        refused = {(rule, outcome.value): count for (rule, outcome), count in stats.refused.copy().items()}
        yield _labelled("refused", "Refusals by the rule that decided", ("rule", "outcome"), refused)
        text = "What shadow rules would have refused"
        yield _labelled("shadow_refused", text, ("rule",), stats.shadow_refused.copy())

    def _identity(self) -> Iterator[Metric]:
        reasons = self._limiter.resolver.stats.as_dict()
        yield _labelled("identity_events", "Statements about clients by what became of them", ("reason",), reasons)


_DECISIONS: dict[str, str] = {
    "allowed": "Decisions that let the request proceed",
    "unmatched": "Those of them to which no rule applied",
    "allow_listed": "Those of them whose client is on the allow list",
    "block_listed": "Refusals because the client is on the block list",
    "bypassed": "Allowed ones made while the limiter was switched off",
    "degraded": "Decisions made without the store",
    "peeks": "Questions that charged nothing",
    "store_errors": "Failed calls of the store",
    "applies": "Changes of rules put in service",
}


def _http(doors: Mapping[str, HttpDoor]) -> Iterator[Metric]:
    requests = {
        (name, route, str(status)): count
        for name, door in doors.items()
        for route, counts in door.stats.requests.items()
        for status, count in counts.items()
    }
    yield _labelled(
        "http_requests", "Answers of the API by route and status", ("listener", "route", "status"), requests
    )
    connections = GaugeMetricFamily("sluicegate_http_connections", "Connections open", labels=["listener"])
    for name, door in doors.items():
        connections.add_metric([name], len(door.connections))
    yield connections
    for table, (label, text) in _HTTP_TABLES.items():
        values = {(name, key): n for name, door in doors.items() for key, n in getattr(door.stats, table).items()}
        yield _labelled(f"http_{table}", text, ("listener", label), values)
    for metric, (field, text) in _HTTP.items():
        counts = {name: getattr(door.stats, field) for name, door in doors.items()}
        yield _labelled(f"http_{metric}", text, ("listener",), counts)


_HTTP_TABLES: dict[str, tuple[str, str]] = {
    "bad_requests": ("kind", "Requests refused for their form"),
    "timeouts": ("phase", "Connections ended for want of time"),
}
_HTTP: dict[str, tuple[str, str]] = {
    "batch_items": ("batch_items", "Checks that came in batches"),
    "internal_errors": ("internal_errors", "Faults of this program, answered 500"),
    "connections_refused": ("connections_refused", "Connections above the limit"),
    "received_bytes": ("bytes_in", "Bytes read from clients"),
    "sent_bytes": ("bytes_out", "Bytes written to clients"),
}


def _grpc(door: GrpcDoor) -> Iterator[Metric]:
    stats = door.stats
    calls = {(method, CODES[code]): n for method, counts in stats.calls.items() for code, n in counts.copy().items()}
    yield _labelled("grpc_calls", "Answers by method and status code", ("method", "code"), calls)
    yield _gauge("grpc_connections", "Connections open", len(door.connections))
    yield _labelled("grpc_timeouts", "Calls and connections ended for want of time", ("phase",), stats.timeouts)
    for metric, (field, text) in _GRPC.items():
        yield _counter(f"grpc_{metric}", text, getattr(stats, field))


_GRPC: dict[str, tuple[str, str]] = {
    "cancelled": ("cancelled", "Calls given up by their client before they were answered"),
    "protocol_errors": ("protocol_errors", "Connections ended for breaking HTTP/2 or flooding"),
    "connections_refused": ("connections_refused", "Connections above the limit"),
    "connections_aged": ("aged", "Connections ended for their age"),
    "internal_errors": ("internal_errors", "Faults of this program"),
    "received_bytes": ("bytes_in", "Bytes read from clients"),
    "sent_bytes": ("bytes_out", "Bytes written to clients"),
}


def _gateway(gateway: Gateway) -> Iterator[Metric]:
    stats = gateway.stats
    outcomes = {"allowed": stats.allowed, "refused": stats.refused, "undecided": stats.undecided}
    yield _labelled("gateway_requests", "Requests by what was decided", ("outcome",), outcomes)
    classes = {f"{first}xx": count for first, count in stats.responses.items()}
    yield _labelled("gateway_responses", "Final answers by class of status", ("status_class",), classes)
    yield _gauge("gateway_connections", "Client connections open", len(gateway.connections))
    for name, (field, text) in _GATEWAY_NOW.items():
        yield _gauge(f"gateway_{name}", text, getattr(stats, field))
    for name, text in _GATEWAY.items():
        yield _counter(f"gateway_{name}", text, getattr(stats, name))
    for name, text in _GATEWAY_TABLES.items():
        yield _labelled(f"gateway_{name}", text, ("kind",), getattr(stats, name))


_GATEWAY_NOW: dict[str, tuple[str, str]] = {
    "in_flight": ("in_flight", "Requests being served"),
    "held_now": ("held", "Requests held by leaky_bucket rules"),
    "tunnels_open": ("tunnels", "WebSockets open"),
}
_GATEWAY: dict[str, str] = {
    "held_total": "Requests that were held",
    "held_rejected": "Requests to be held that found the hold queue full",
    "tunnels_total": "WebSockets opened",
    "retries": "Requests sent again because a kept connection was closed",
    "failovers": "Requests moved to another upstream because the first could not be connected",
    "ejections": "Times an upstream was left out for failing",
    "cancelled": "Requests whose client left before the answer was complete",
    "connections_refused": "Client connections beyond the maximum, answered 503",
    "proxy_rejected": "Connections closed for a missing, malformed or untrusted PROXY header",
    "internal_errors": "Faults of this program",
    "upstream_connects": "Connections opened to upstreams",
}
_GATEWAY_TABLES: dict[str, str] = {
    "bad_requests": "Requests refused for their form",
    "upstream_errors": "Failures of upstreams",
    "timeouts": "Client connections ended for want of time",
}


def _counter(name: str, text: str, value: float, **labels: str) -> Metric:
    family = CounterMetricFamily(f"sluicegate_{name.removesuffix('_total')}", text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"sluicegate_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _histogram(name: str, text: str, values: Mapping[Any, Durations], *labels: str) -> Metric:
    family = HistogramMetricFamily(f"sluicegate_{name}", text, labels=list(labels))
    for key, durations in values.items():
        buckets, sum_s = durations.buckets()
        family.add_metric(
            list(key),
            [
                bucket if one is None else (*bucket, _exemplar(one))
                for bucket, one in zip(buckets, durations.examples, strict=True)
            ],
            sum_s,
        )
    return family


def _exemplar(one: Example) -> Exemplar:
    return Exemplar({"trace_id": one.trace_id}, one.took_us / US_PER_S, one.ended_us / US_PER_S)


def _labelled(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, int]) -> Metric:
    """A counter with labels; a key of ``values`` is one label's value or the tuple of all of them."""
    family = CounterMetricFamily(f"sluicegate_{name}", text, labels=list(labels))
    for key, value in sorted(values.items()):
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family
