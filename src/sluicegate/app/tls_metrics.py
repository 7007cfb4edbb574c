"""What is counted of TLS, listener by listener."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluicegate.app.tls import ListenerTls
from sluicegate.clock import US_PER_S

__all__ = ["tls_metrics"]


def tls_metrics(listeners: Mapping[str, ListenerTls]) -> Iterator[Metric]:
    """The families, in order. With the grpcio engine that of ``grpc`` has no handshakes: grpcio tells nothing of them."""
    ok = GaugeMetricFamily(
        "sluicegate_tls_files_ok",
        "0 while the certificate's files as they are now are not in service",
        labels=["listener"],
    )
    ends = GaugeMetricFamily(
        "sluicegate_tls_expiry_timestamp_seconds", "When the certificate in service ends", labels=["listener"]
    )
    now = GaugeMetricFamily("sluicegate_tls_handshakes_now", "Handshakes under way", labels=["listener"])
    handshakes = CounterMetricFamily(
        "sluicegate_tls_handshakes", "Handshakes by what became of them", labels=["listener", "outcome"]
    )
    for name, tls in listeners.items():
        ok.add_metric([name], int(tls.live.error is None))
        ends.add_metric([name], tls.live.content.not_after_us / US_PER_S)
        now.add_metric([name], tls.layer.under_way)
        for outcome in ("made", "failed", "given_up"):
            handshakes.add_metric([name, outcome], getattr(tls.layer, outcome))
    yield from (ok, ends, now, handshakes)
