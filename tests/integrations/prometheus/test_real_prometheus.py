"""A real Prometheus beside real servers: what it scrapes, what it understands, and the alerts of a store that goes away."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from monitoring import Monitoring
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from real_servers import BINARIES, running

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
ROOT = Path(__file__).resolve().parents[3]
RULES = """\
version: 1
rules:
  - {name: near, match: {path: /local}, per: [ip], quota: 5/minute, on_store_failure: local}
  - {name: open, match: {path: /open}, per: [ip], quota: 5/minute, on_store_failure: open}
  - {name: shut, match: {path: /closed}, per: [ip], quota: 5/minute, on_store_failure: closed}
"""
EXPECTED = {"SluicegateStoreUnreachable", "SluicegateLocalFallback", "SluicegateFailOpen", "SluicegateFailClosed"}

pytestmark = pytest.mark.slow


class TextOnly:
    """Stands before a server and asks it for nothing but the text format, as scrapers without OpenMetrics do."""

    def __init__(self, target: str) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                reply = httpx.get(f"http://{target}{self.path}", headers={"Accept": "text/plain"}, timeout=30)
                self.send_response(reply.status_code)
                self.send_header("Content-Type", reply.headers["content-type"])
                self.send_header("Content-Length", str(len(reply.content)))
                self.end_headers()
                self.wfile.write(reply.content)

            def log_message(self, *_: object) -> None:
                """Nothing is printed."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop."""
        self.server.shutdown()
        self._thread.join(60)
        self.server.server_close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_prometheus_scrapes_a_server(
    monitoring: Monitoring, require_program: Callable[[str], str], workers: str
) -> None:
    """One process, and two whose samples are merged: the scrape succeeds in both formats, promtool finds nothing in it, and every query of the dashboard is understood."""
    target = monitoring.serve("--workers", workers)
    text_only = TextOnly(target)
    try:
        monitoring.watch(target, text_only.address)
        monitoring.until(lambda: [row["value"][1] for row in monitoring.query("up")] == ["1", "1"])
        monitoring.until(lambda: len(monitoring.query("sluicegate_ready == 1")) == 2 * int(workers))
        names, of_text = (
            {row["metric"]["__name__"] for row in monitoring.query(f'{{__name__=~"sluicegate_.+",instance="{each}"}}')}
            for each in (target, text_only.address)
        )
        assert "sluicegate_decision_duration_seconds_bucket" in names
        assert names == of_text
    finally:
        text_only.end()
    opened = httpx.get(f"http://{target}/metrics", headers={"Accept": OPEN_METRICS}, timeout=30)
    assert opened.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert opened.text.count("# EOF") == 1
    assert list(text_string_to_metric_families(opened.text))
    scraped = httpx.get(f"http://{target}/metrics", timeout=30)
    assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")
    checked = subprocess.run(
        [require_program("promtool"), "check", "metrics"], input=scraped.content, capture_output=True, check=False
    )
    found = [line for line in checked.stderr.decode().splitlines() if "sluicegate_" in line]
    assert (checked.returncode in (0, 3), found) == (True, [])
    dashboard = json.loads((ROOT / "integrations/grafana/dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for asked in panel["targets"]:
            monitoring.query(asked["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*"))


def test_the_alerts_of_a_store_that_goes_away(
    monitoring: Monitoring, require_program: Callable[[str], str], tmp_path: Path
) -> None:
    """A drill: the store is stopped and the alerts about it fire; it comes back and they end."""
    (tmp_path / "rules.yaml").write_text(RULES)
    text = (ROOT / "integrations/prometheus/alerts.yaml").read_text()
    # The same alerts with less patience.
    (tmp_path / "alerts.yaml").write_text(
        re.sub(r"for: (30s|1m)$", "for: 1s", text, flags=re.MULTILINE).replace("[1m]", "[10s]")
    )
    with contextlib.ExitStack() as stack:
        (tmp_path / "redis").mkdir()
        store = stack.enter_context(running(require_program(BINARIES["redis"]), tmp_path / "redis"))
        target = monitoring.serve("--rules", "rules.yaml", "--store", f"redis://127.0.0.1:{store.port}")
        monitoring.watch(target, rules=tmp_path / "alerts.yaml")

        def ask() -> None:
            for path in ("/local", "/open", "/closed"):
                facts = {"facts": {"path": path, "ip": "203.0.113.9"}}
                httpx.post(f"http://{target}/v1/check", json=facts, timeout=30)

        def is_firing(alerts: set[str]) -> bool:
            ask()
            return monitoring.firing() & EXPECTED == alerts

        monitoring.until(lambda: bool(monitoring.query("sluicegate_store_up == 1")))
        assert is_firing(set())
        os.kill(store.pid, signal.SIGSTOP)
        try:
            monitoring.until(lambda: is_firing(EXPECTED))
        finally:
            os.kill(store.pid, signal.SIGCONT)
        monitoring.until(lambda: is_firing(set()))
