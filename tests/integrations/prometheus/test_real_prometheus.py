"""A real Prometheus beside real servers: what it scrapes, what it understands, and the alerts of a store that goes away."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from monitoring import Monitoring
from real_servers import BINARIES, running

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


@pytest.mark.parametrize("workers", ["1", "2"])
def test_prometheus_scrapes_a_server(
    monitoring: Monitoring, require_program: Callable[[str], str], workers: str
) -> None:
    """One process, and two whose samples are merged: the scrape succeeds, promtool finds nothing in it, and every query of the dashboard is understood."""
    target = monitoring.serve("--workers", workers)
    monitoring.watch(target)
    monitoring.until(lambda: [row["value"][1] for row in monitoring.query("up")] == ["1"])
    monitoring.until(lambda: len(monitoring.query("sluicegate_ready == 1")) == int(workers))
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
