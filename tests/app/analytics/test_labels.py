"""No metric holds anything that a client sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

MARK = "zq7x"
RULES = """version: 1
rules:
  - {name: by-user, per: [user], quota: 2/minute}
  - {name: by-ip, per: [ip], quota: 2/minute, mode: shadow}
  - {name: by-key-and-path, per: [api_key, endpoint], quota: 2/minute}
"""
HOSTILE = [
    f'{MARK}",rule="x',
    f"{MARK}}} 1\nsluicegate_{MARK} 2",
    f"{MARK}\\",
    f"{MARK}\u202e\x00\x1b[2J",
    f"{MARK}" + "a" * 2_000,
    f"{MARK}日本",
]


def test_no_label_holds_a_client(start: Callable[..., Any], tmp_path: Path) -> None:
    """After refusals of clients with hostile names, ``/metrics`` parses, and no name, label or value has one, nor has its help. # T92"""
    rules = tmp_path / "hostile.yaml"
    rules.write_text(RULES)
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    url = server.url("api")
    outcomes = set()
    for name in HOSTILE:
        for number in range(4):
            facts = {
                "user": name, "api_key": name, "ip": f"203.0.113.{number}", "method": MARK.upper(),
                "path": f"/{MARK}/{number}", "host": f"{MARK}.example", "attrs": {MARK: name},
            }  # fmt: skip
            answer = server.client.post(f"{url}/v1/check?timeout_ms=5000", json={"facts": facts})
            outcomes.add(answer.status_code)
            server.client.get(f"{url}/{MARK}/{number}", headers={"User-Agent": MARK})
    assert 429 in outcomes, outcomes
    text = server.client.get(f"{url}/metrics").text
    families = list(text_string_to_metric_families(text))
    assert any(sample.name == "sluicegate_refused_total" for family in families for sample in family.samples)
    assert MARK not in text.lower()
