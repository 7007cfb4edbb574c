"""What a consuming process says of itself: ``/livez``, ``/readyz``, ``/healthz`` and ``/metrics``.

Names and meanings are in docs/analytics/kafka.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluicegate.analytics.kafka import ConsumerStats
from sluicegate.app.analytics.accuracy import AccuracyWatch, accuracy_metrics
from sluicegate.app.metrics import CONTENT_TYPE
from sluicegate.clock import US_PER_S, Clock
from sluicegate.doors.http.protocol import HttpProtocol
from sluicegate.doors.http.respond import Reply, json_reply
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.http.site import Route, Site
from sluicegate.doors.http.stats import HttpStats

__all__ = ["ConsumerMetrics", "HealthSite"]

_NO_STORE: Final = "Cache-Control: no-store\r\n"

_COUNTERS: Final = (
    ("messages", "messages", "Messages read from Kafka, those read twice included"),
    ("read_bytes", "bytes", "Bytes of these"),
    ("batches", "batches", "Batches put into the home, those it had before included"),
    ("decisions", "decisions", "Decisions that these told of"),
    ("blocks", "blocks", "Blocks put into the home and committed"),
    ("dead_letters", "dead", "Messages that no home can keep"),
    ("dead_letters_unkept", "dead_unkept", "Of these, the ones that could not be put with the dead letters"),
    ("messages_missing", "missing", "Messages that were deleted before they were read"),
    ("home_errors", "home_errors", "Attempts at the home that failed"),
    ("kafka_errors", "kafka_errors", "Failures that the Kafka client told of"),
)


class ConsumerMetrics(Collector):
    """The counts of a consumer, without a label; and what it found of accuracy, by rule."""

    def __init__(self, stats: ConsumerStats, clock: Clock, accuracy: AccuracyWatch | None = None) -> None:
        self._stats = stats
        self._clock = clock
        self._accuracy = accuracy
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """The text of the answer to a scrape."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Every metric with its values now."""
        for name, field, text in _COUNTERS:
            yield CounterMetricFamily(f"sluicegate_consumer_{name}", text, getattr(self._stats, field))
        yield from self._gauges()
        if self._accuracy is not None:
            yield from accuracy_metrics(self._accuracy)

    def _gauges(self) -> Iterator[Metric]:
        stats, now_us = self._stats, self._clock.now_us()
        yield GaugeMetricFamily("sluicegate_consumer_partitions", "Partitions read by this process", stats.partitions)
        text = "1 while the home and Kafka take what they are given"
        yield GaugeMetricFamily("sluicegate_consumer_ok", text, float(stats.well))
        if stats.lag is not None:
            text = "Messages of its partitions that are not in the home yet"
            yield GaugeMetricFamily("sluicegate_consumer_lag_messages", text, stats.lag)
        for name, text, at_us in (
            ("last_block_age_seconds", "Time since a block was put into the home", stats.last_us),
            (
                "told_age_seconds",
                "Time since the end of the latest interval that the home was told of",
                stats.told_until_us,
            ),
        ):
            if at_us:
                yield GaugeMetricFamily(f"sluicegate_consumer_{name}", text, max(0, now_us - at_us) / US_PER_S)


class HealthSite:
    """Ready while the consumer runs and has partitions or waits for some. A home that is away does not make it unready: another process would
    find it away as well, and what is read waits."""

    def __init__(self, stats: ConsumerStats, clock: Clock, accuracy: AccuracyWatch | None = None) -> None:
        self.running = False
        self._stats = stats
        self._metrics = ConsumerMetrics(stats, clock, accuracy)
        routes = [
            Route("/livez", {"GET": self._live}, guarded=False),
            Route("/readyz", {"GET": self._ready}, guarded=False),
            Route("/healthz", {"GET": self._ready}, guarded=False),
            Route("/metrics", {"GET": self._exposition}, guarded=False),
        ]
        self._site = Site({route.path: route for route in routes}, HttpSettings(), clock, HttpStats())

    def protocol_factory(self) -> HttpProtocol:
        """A protocol for one new connection."""
        return HttpProtocol(self._site)

    async def drain(self) -> None:
        """End the connections."""
        await self._site.connections.drain(1.0)

    def _live(self, _body: bytes) -> Reply:
        return json_reply(200, b'{"live":true}', _NO_STORE)

    def _ready(self, _body: bytes) -> Reply:
        stats = self._stats
        detail: dict[str, Any] = {
            "ready": self.running,
            "ok": stats.well,
            "partitions": stats.partitions,
            "lag": stats.lag,
        }
        return json_reply(200 if self.running else 503, msgspec.json.encode(detail), _NO_STORE)

    def _exposition(self, _body: bytes) -> Reply:
        return 200, f"Content-Type: {CONTENT_TYPE}\r\n{_NO_STORE}", self._metrics.exposition()
