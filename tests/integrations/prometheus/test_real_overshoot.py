"""The alert of a broken promise, with a real Prometheus: a limiter that admits too much makes it fire."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from monitoring import Monitoring
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sluicegate.analytics.embedded import EmbeddedHome, EmbeddedSink
from sluicegate.app.analytics.accuracy import AccuracyWatch, accuracy_metrics
from sluicegate.app.analytics.flusher import Flusher
from sluicegate.bounds import ACCURACY_MARGIN_US
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.recording import Recorder
from sluicegate.limiter.recording.following import digest_of
from sluicegate.rules.load import load_rules
from sluicegate.stores.base import Answer, Request
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

ROOT = Path(__file__).resolve().parents[3]
WATCHED = next(f"10.0.{n >> 8}.{n & 255}" for n in range(65_536) if digest_of(f"ip:10.0.{n >> 8}.{n & 255}") >> 22 == 0)

pytestmark = pytest.mark.slow


class Mutant(FlakyStore):
    """While it is ``broken`` one request in ten is charged nothing."""

    broken = False

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        return super().decide_one(request, peek=self.broken and self.calls % 10 == 0)


class Exposed(Collector):
    """The metrics of a watch, as its process has them."""

    def __init__(self, watch: AccuracyWatch) -> None:
        self.watch = watch

    def collect(self) -> Iterable[Metric]:
        return accuracy_metrics(self.watch)


def served(watch: AccuracyWatch) -> ThreadingHTTPServer:
    registry = CollectorRegistry()
    registry.register(Exposed(watch))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = generate_latest(registry)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_a_limiter_that_admits_too_much_fires_the_alert(monitoring: Monitoring, tmp_path: Path) -> None:
    """As long as the limiter keeps its promise the alert is silent; a tenth too much makes it fire."""
    clock = ManualClock()
    store = Mutant(MemoryStore(clock))
    rules = load_rules("{version: 1, rules: [{name: ip, per: [ip], quota: 50/second}]}", "r", 1)
    limiter = Limiter.from_rules(rules, store, clock)
    recorder = Recorder(clock, name_of=str, follow=True)
    limiter.record(recorder)
    home = EmbeddedHome(tmp_path / "analytics.db")
    flusher = Flusher(recorder, EmbeddedSink(home, clock), clock, "n")
    watch = AccuracyWatch(home, clock)

    def load() -> None:
        for _ in range(100):
            clock.advance(US_PER_S // 10)
            for _ in range(20):
                limiter.check({"ip": WATCHED})
            flusher.flush()
        clock.advance(ACCURACY_MARGIN_US + US_PER_S)
        watch.step()

    server = served(watch)
    try:
        load()
        address = f"127.0.0.1:{server.server_address[1]}"
        monitoring.watch(address, rules=ROOT / "integrations/prometheus/alerts.yaml")
        monitoring.until(lambda: bool(monitoring.query('sluicegate_overshoot_tokens{rule="ip"} == 0')))
        assert "SluicegateOvershoot" not in monitoring.firing()
        store.broken = True
        load()
        monitoring.until(lambda: "SluicegateOvershoot" in monitoring.firing())
    finally:
        server.shutdown()
        server.server_close()
        home.close()
