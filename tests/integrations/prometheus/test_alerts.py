"""Alert rules, their pages and the dashboard: whole, understood by the real programs, and about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluicegate.analytics.kafka import ConsumerStats
from sluicegate.app.consuming.health import ConsumerMetrics
from sluicegate.clock import ManualClock

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "integrations" / "prometheus"
PAGES = ROOT / "docs" / "alerts"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "integrations" / "grafana" / "dashboard.json").read_text())
QUERIES: list[str] = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
NAME = re.compile(r"(?<!:)\bsluicegate_[a-z0-9_]+")


@pytest.mark.parametrize(
    "words", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")], ids=lambda words: words[0]
)
def test_promtool_is_content(words: tuple[str, ...], require_program: Callable[[str], str]) -> None:
    """The rules are valid, and each alert fires where its test says, and nowhere else."""
    done = subprocess.run(
        [require_program("promtool"), *words], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_complete(alert: dict[str, Any]) -> None:
    """It has a severity, words, a page that shows its expression, and tests in which it fires and in which it does not."""
    name = alert["alert"]
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"docs/alerts/{name}.md"
    page = (PAGES / f"{name}.md").read_text()
    assert alert["expr"] in page
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert headings == [
        "What it means", "Is traffic at risk now", "How to look", "What to do", "How to know that it is over",
    ]  # fmt: skip
    tests = [
        len(case["exp_alerts"])
        for test in yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert tests == [1, 0]


def test_there_is_a_page_for_each_alert_and_no_other() -> None:
    """The folder and its list have the alerts there are."""
    names = {alert["alert"] for alert in ALERTS}
    assert {page.stem for page in PAGES.glob("*.md")} == names | {"README"}
    assert set(re.findall(r"\[(\w+)\]\(\w+\.md\)", (PAGES / "README.md").read_text())) == names


def test_metrics_that_are_asked_for_exist() -> None:
    """Alerts and panels name metrics of docs/metrics.md, which a test holds against the exposition of a server, or such as a consumer exports."""
    known = set(NAME.findall((ROOT / "docs" / "metrics.md").read_text()))
    stats = ConsumerStats()
    stats.lag = stats.last_us = stats.told_until_us = 1
    known |= set(
        re.findall(r"^(sluicegate_\w+)", ConsumerMetrics(stats, ManualClock()).exposition().decode(), re.MULTILINE)
    )
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for text in [rule["expr"] for rule in RULES] + QUERIES:
        assert set(re.findall(r"\b\w+:[\w:]+", text)) <= recorded, text
        assert {name.removesuffix("_bucket") for name in NAME.findall(re.sub(r"\w+:[\w:]+", "", text))} <= known, text


def test_the_dashboard_is_one() -> None:
    """Its name stays, every panel has its place and its own number, and asks the data source that was chosen."""
    assert DASHBOARD["uid"] == "sluicegate"
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "instance"]
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    sources = {part["datasource"]["uid"] for panel in panels for part in (panel, *panel["targets"])}
    assert sources == {"${datasource}"}
