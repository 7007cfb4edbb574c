"""``sluicegate top`` against a rules service in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

LOG = "".join(f'10.0.0.1 - - [17/May/2025:10:00:0{n} +0000] "GET / HTTP/1.1" 200 5 "-" "a"\n' for n in range(6))
RULES = "version: 1\nrules:\n  - {name: two, per: [ip], quota: 2/minute, algorithm: fixed_window}\n"
AT = ("--at", "2025-05-17T10:01:00Z", "--window", "1h")


class Ran(NamedTuple):
    """How a command ended and what it said."""

    status: int
    out: str
    err: str


def sluicegate(folder: Path, *arguments: str, **environment: str) -> Ran:
    """Run a command in a folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
    done = subprocess.run(
        [sys.executable, "-m", "sluicegate", *arguments],
        capture_output=True, text=True, cwd=folder, env={**inherited, **environment}, timeout=90, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


def test_server_and_directory_tell_the_same(service: Any, tmp_path: Path) -> None:
    """Over HTTP it shows what it shows of the service's own directory, clients looked up included; the window may be up to now."""
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "access.log").write_text(LOG)
    data = str(service.data.resolve())
    replayed = sluicegate(tmp_path, "replay", "--rules", "rules.yaml", "--record", "--data", data, "access.log")
    assert replayed.status == 0, replayed.err
    remote = ("top", "--server", service.address)
    for more in ((), ("--find", "ip:10.0.0.1"), ("--rule", "*"), ("--kind", "asked")):
        here = sluicegate(tmp_path, "top", "--data", data, "--json", *AT, *more)
        there = sluicegate(tmp_path, *remote, "--json", *AT, *more, SLUICEGATE_TOKEN=service.token)
        assert (here.status, there.status) == (0, 0), there.err + here.err
        told = json.loads(there.out)
        assert {**json.loads(here.out), "now_us": 0} == {**told, "now_us": 0}
        assert [row["times"] for row in told["rows"]] == [6 if "asked" in more else 4]
    now = sluicegate(tmp_path, *remote, "--json", SLUICEGATE_TOKEN=service.token)
    assert abs(json.loads(now.out)["now_us"] - time.time_ns() // 1_000) < 600_000_000
    wrong = sluicegate(tmp_path, *remote, SLUICEGATE_TOKEN="wrong")
    assert (wrong.status, wrong.out) == (2, "")
    both = sluicegate(tmp_path, *remote, "--data", data, SLUICEGATE_TOKEN=service.token)
    assert "give --server or --data, not both" in both.err
