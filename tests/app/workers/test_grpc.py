"""Several workers behind one gRPC listener."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

pytestmark = pytest.mark.slow

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
RULES = "version: 1\nrules:\n  - {name: edge, match: {domain: d}, quota: 100/hour, algorithm: fixed_window}\n"
# Domain "d", one descriptor with one entry, "k".
MESSAGE = b"\x0a\x01d\x12\x05\x0a\x03\x0a\x01k"


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
def test_workers_share_the_listener(start: Callable[..., Any], tmp_path: Path, engine: str) -> None:
    """Connections reach several workers, which admit together exactly the limit, with either engine."""
    rules = tmp_path / "grpc.yaml"
    rules.write_text(RULES)
    server = start(
        *("serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--grpc-engine", engine),
        *("--store", "embedded://?timeout_ms=5000&max_memory_mb=32", "--workers", "3"),
    )
    target = server.url("grpc").removeprefix("http://")
    codes: Counter[bytes] = Counter()
    for _ in range(15):
        with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            ask = channel.unary_unary(RATE_LIMIT)
            codes.update(ask(MESSAGE, timeout=60)[:2] for _ in range(10))
    assert codes == {b"\x08\x01": 100, b"\x08\x02": 50}
    text = httpx.get(f"{server.url('api')}/metrics", timeout=60).text
    calls = [line for line in text.splitlines() if line.startswith("sluicegate_grpc_calls_total{")]
    told = [float(line.rsplit(" ", 1)[1]) for line in calls if 'method="ShouldRateLimit"' in line]
    assert sum(told) == 150
    assert len([count for count in told if count]) > 1
    assert server.stop() == 0
