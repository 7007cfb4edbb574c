"""``manage.py check``: mistakes of the setting ``SLUICEGATE`` are told before a request meets them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from sluicegate.doors.django import get_limiter

Site = Callable[..., Any]

RULES = "version: 1\nrules:\n  - {name: all, per: [ip], quota: 2/minute}\n"


@pytest.fixture
def told(django_ready: None) -> Callable[[Any], list[tuple[str, str]]]:
    """What the system check says of a setting: ``told(setting)`` gives ids and messages."""

    def check(setting: Any) -> list[tuple[str, str]]:
        with override_settings(SLUICEGATE=setting):
            found = [message for message in run_checks() if str(message.id).startswith("sluicegate.")]
        return [(str(message.id), str(message.msg)) for message in found]

    return check


def test_what_is_right(told: Callable[[Any], list[tuple[str, str]]], tmp_path: Path) -> None:
    """A setting that works is not worth a word; what it makes is what serves the first request."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    assert told({"RULES": path}) == []
    assert told({}) == []
    with override_settings(SLUICEGATE={"RULES": path}):
        assert run_checks() == []
        assert get_limiter() is get_limiter()
        assert [rule.name for rule in get_limiter().ruleset.rules] == ["all"]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"RULE": "rules.yaml"}, "unknown entry 'RULE'"),
        ({"RULES": "nowhere/rules.yaml"}, "nowhere/rules.yaml"),
        ({"STORE": "redis//10.0.0.5"}, "store"),
        ({"LIMITER": "no.such.module"}, "LIMITER"),
        ({"HEADERS": "x-rate"}, "x-rate"),
        ({"ENABLED": "yes"}, "ENABLED"),
        ({"HELD_MAX": -1}, "held_max"),
        ({"ON_REFUSED": 5}, "ON_REFUSED"),
        ({"WATCH": "yes"}, "WATCH"),
        ([], "want a dict"),
    ],
)
def test_mistakes_of_the_setting(told: Callable[[Any], list[tuple[str, str]]], setting: Any, says: str) -> None:
    """Each mistake is one error that names the entry."""
    ((kind, message),) = told(setting)
    assert kind == "sluicegate.E001"
    assert says in message


def test_mistakes_of_the_rules(told: Callable[[Any], list[tuple[str, str]]], tmp_path: Path) -> None:
    """Each problem of the rules file is a message with its line; warnings of a file that works are warnings here."""
    path = tmp_path / "rules.yaml"
    path.write_text("version: 1\nrules:\n  - {name: a, qouta: 2/minute}\n  - {name: b, per: [ipp], quota: 2/minute}\n")
    found = told({"RULES": str(path)})
    assert {kind for kind, _ in found} == {"sluicegate.E001"}
    assert any(f"{path}:3" in message and "qouta" in message for _, message in found)
    assert any(f"{path}:4" in message and "ipp" in message for _, message in found)
    path.write_text("version: 1\nidentity: {trusted_peers: [10.0.0.0/8]}\n")
    ((kind, message),) = told({"RULES": path})
    assert (kind, "limits nothing by itself" in message) == ("sluicegate.W001", True)


@pytest.mark.parametrize(("rules", "status"), [("", 1), (RULES, 0)])
def test_manage_py_check(tmp_path: Path, rules: str, status: int) -> None:
    """With the entry in INSTALLED_APPS the command finds a bad rules file although nothing else imports the door."""
    (tmp_path / "rules.yaml").write_text(rules)
    (tmp_path / "site_settings.py").write_text(
        "SECRET_KEY = 'made up'\nROOT_URLCONF = 'site_settings'\nurlpatterns = []\n"
        "INSTALLED_APPS = ['sluicegate.doors.django']\n"
        "MIDDLEWARE = ['sluicegate.doors.django.RateLimitMiddleware']\n"
        "SLUICEGATE = {'RULES': 'rules.yaml'}\n"
    )
    command = [sys.executable, "-m", "django", "check", "--settings", "site_settings"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == status, ran.stderr
    assert ("sluicegate.E001" in ran.stderr) == bool(status), ran.stderr
