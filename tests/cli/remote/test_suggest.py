"""``sluicegate suggest``: proposals and drafts, of a data directory and through the rules service's interface."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.app.analytics.homes import open_home
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.events import SCHEMA_VERSION, Batch, Demand, batch_id

ROOT = Path(__file__).resolve().parents[3]
RULES = """\
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - name: api
    match: {path: /api/**}
    per: [user]
    quota: {free: 40/minute, paid: 400/minute}
    algorithm: fixed_window
"""
Command = Callable[..., Any]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with three days of 300 free clients, of which 30 ask 60 a minute and are held at 40."""
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "rules.yaml").write_text(RULES)
    base_us = SystemClock().now_us() // (60 * US_PER_S) * 60 * US_PER_S - 3 * 86_400 * US_PER_S
    rows = [
        Demand(
            "api",
            "free",
            f"c{number:03}",
            base_us + day * 86_400 * US_PER_S,
            60,
            asked,
            asked,
            max(0, asked - 40),
            2,
            10,
        )
        for number in range(300)
        for day in range(3)
        for asked in (60 if number < 30 else 5,)
    ]
    home = open_home(folder)
    home.ingest([Batch(SCHEMA_VERSION, batch_id("n", 1, 0), "n", base_us, base_us + US_PER_S, demand=rows)])
    home.close()
    return folder


def test_table_and_reasons(command: Command, data: Path) -> None:
    """A table has both tiers, and below it stands why, in words; what was not seen enough of is said to be missing."""
    ran = command("suggest", "--data", str(data), "--rules", "rules.yaml")
    assert ran.status == 0, ran.err
    assert "40/minute   80/minute  raise" in ran.out
    assert "api, free: 40/minute refuses 10 % of the clients" in ran.out
    assert "api, paid: There is not enough to go by: no demand was recorded" in ran.out
    explained = command("suggest", "--data", str(data), "--rules", "rules.yaml", "--explain", "--tier", "free")
    assert "asked in the busiest minute: half of the clients at most 5, 90 % 5, 99 % 60" in explained.out
    assert "api, paid" not in explained.out


def test_draft_of_a_file(command: Command, data: Path) -> None:
    """A draft is a new file that differs in the proposed number only; one that exists is never written over, nor is the file of now."""
    words = ("suggest", "--data", str(data), "--rules", "rules.yaml", "--draft")
    dry = command(*words, "--dry-run")
    assert (dry.status, Path("rules.suggested.yaml").exists()) == (0, False)
    ran = command(*words)
    assert ran.status == 0, ran.err
    assert "40/minute -> 80/minute" in ran.out
    assert "sluicegate replay --rules rules.suggested.yaml --against rules.yaml LOG" in ran.out
    assert Path("rules.yaml").read_text() == RULES
    assert command("rules", "check", "rules.suggested.yaml").status == 0
    again = command(*words)
    assert (again.status, "exists and is not written over" in again.err) == (2, True)
    other = command(*words, "--output", "absent/other.yaml")
    assert (other.status, "cannot write" in other.err) == (2, True)


def test_draft_in_a_service(command: Command, data: Path) -> None:
    """A draft is a rollout with nobody inside; the audit trail has the proposal's id and the what-if; the rules in service stay."""
    assert command("control", "upgrade", "--data", str(data)).status == 0
    assert command("rules", "apply", "rules.yaml", "--data", str(data)).status == 0
    words = ("suggest", "--data", str(data), "--draft", "--reason", "spring")
    dry = command(*words, "--dry-run")
    assert (dry.status, "would be done" in dry.out) == (0, True)
    made = json.loads(command(*words, "--json").out)
    rollout, suggestion = made["draft"]["rollout"], made["suggestions"][0]
    assert (rollout["kind"], rollout["basis_points"], rollout["state"]) == ("canary", 0, "running")
    assert suggestion["proposed"] == "80/minute"
    row = json.loads(command("audit", "list", "--data", str(data), "--json").out)[0]
    assert row["action"] == "rollout.create"
    assert row["actor"].startswith("offline:")
    for part in ("spring", suggestion["id"], "40/minute -> 80/minute", "what-if: none"):
        assert part in row["reason"]
    assert "40/minute" in command("rules", "export", "--data", str(data)).out
    second = command(*words)
    assert (second.status, "runs: promote or abort it first" in second.err) == (2, True)
    assert command("rollout", "promote", "--data", str(data)).status == 0
    assert "80/minute" in command("rules", "export", "--data", str(data)).out


def test_nothing_to_draft(command: Command, data: Path) -> None:
    """Where nothing is proposed there is no draft, and the exit status says so."""
    ran = command("suggest", "--data", str(data), "--rules", "rules.yaml", "--draft", "--tier", "paid")
    assert (ran.status, "nothing to draft" in ran.err) == (1, True)


def test_empty_home_and_another_time(command: Command, data: Path, tmp_path: Path) -> None:
    """Where nothing is recorded that is said, and where it is of another time, of which."""
    empty = tmp_path / "empty"
    empty.mkdir()
    ran = command("suggest", "--data", str(empty), "--rules", "rules.yaml")
    assert "not enough data" in ran.out or "nothing" in ran.err
    other = command("suggest", "--data", str(data), "--rules", "rules.yaml", "--at", "2015-05-20", "--window", "3d")
    assert "no demand was recorded" in other.out


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--floor", "api=5"), "api"),
        (("--floor", "api"), "RULE=QUOTA"),
        (("--floor", "none=5/minute"), "none"),
        (("--floor", "api=5/minute,api=6/minute"), "commas"),
        (("--rule", "none"), "none"),
        (("--tier", "gold"), "gold"),
        (("--window", "soon"), "soon"),
        (("--window", "90000d"), "days"),
        (("--target", "1"), "target"),
        (("--at", "1h", "--since", "2h"), "not both"),
        (("--until", "1h"), "--since"),
        (("--since", "1h", "--until", "2h"), "before"),
        (("--output", "x"), "--draft"),
        (("--server", "http://127.0.0.1:1"), "not both"),
    ],
)
def test_wrong_flags_are_told(command: Command, data: Path, flags: tuple[str, ...], word: str) -> None:
    """A flag that cannot be meant is an error in one line, exit status 2."""
    ran = command("suggest", "--data", str(data), "--rules", "rules.yaml", *flags)
    assert ran.status == 2, ran.out
    assert word in ran.err
    assert "Traceback" not in ran.err


def test_real_log(command: Command, tmp_path: Path) -> None:
    """From a public access log the proposal of docs/analytics/suggestions.md comes out; replayed it refuses nobody more, and most of the clients less."""
    log = Path(os.environ.get("SLUICEGATE_ACCESS_LOG") or ROOT.parent / "shared" / "data" / "access.log")
    if not log.exists():
        pytest.skip("the real access log is not here: SLUICEGATE_ACCESS_LOG names it")
    (tmp_path / "web.yaml").write_text("version: 1\nrules:\n  - {name: web, per: [ip], quota: 10/minute}\n")
    assert command("replay", "--rules", "web.yaml", "--record", "--data", "kept", str(log)).status == 0
    words = ("suggest", "--rules", "web.yaml", "--data", "kept", "--at", "2015-05-20T21:06:00Z", "--window", "84h")
    page = (ROOT / "docs" / "analytics" / "suggestions.md").read_text()
    for line in command(*words).out.splitlines():
        assert line in page
    made = json.loads(command(*words, "--json", "--draft").out)["suggestions"][0]
    assert (made["verdict"], made["proposed"], made["evidence"]["clients"]) == ("raise", "20/minute", 1_753)
    assert made["evidence"]["excluded"] == 4
    compared = command("replay", "--rules", "web.suggested.yaml", "--against", "web.yaml", "--json", str(log))
    report = json.loads(compared.out)
    assert (report["against"]["newly_refused"], report["against"]["refused"]) == (0, 1_013)
    assert report["refused"] < 300
