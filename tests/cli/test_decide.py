"""``sluicegate check`` and ``sluicegate explain``: one request against a file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
LOGIN = '{"method": "POST", "path": "/login", "ip": "203.0.113.9"}'


def test_allowed(sluicegate: Run, rules: Path) -> None:
    """An allowed request names the rule with the least left; exit status 0."""
    ran = sluicegate("check", "--rules", str(rules), "--facts", LOGIN)
    assert ran.status == 0
    assert ran.out.splitlines()[0] == "allowed: 4 of 5 left by rule 'login'"


def test_refused(sluicegate: Run, rules: Path) -> None:
    """A cost above the capacity is refused for good; exit status 1."""
    ran = sluicegate("check", "--rules", str(rules), "--facts", LOGIN, "--cost", "6")
    assert ran.status == 1
    assert ran.out.splitlines()[0] == "refused by rule 'login': it can never pass"


def test_no_rule(sluicegate: Run, rules: Path) -> None:
    """A request that no rule matches is allowed, and that is said."""
    assert sluicegate("check", "--rules", str(rules), "--facts", "{}") == (0, "allowed: no rule matches\n", "")


def test_json_is_the_whole_decision(sluicegate: Run, rules: Path) -> None:
    """``--json`` prints the decision as the API would describe it; tiers come from the facts."""
    facts = '{"path": "/api/x", "api_key": "k", "tier": "paid"}'
    content = json.loads(sluicegate("check", "--rules", str(rules), "--facts", facts, "--json").out)
    assert (content["allowed"], content["rule"], content["limit"], content["tier"]) == (True, "api", 1000, "paid")


def test_facts_from_standard_input(sluicegate: Run, rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--facts -`` reads them."""
    monkeypatch.setattr("sys.stdin", io.StringIO(LOGIN))
    assert sluicegate("check", "--rules", str(rules), "--facts", "-").status == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--facts", "{"), ("--facts", "not JSON")),
        (("--facts", '{"pth": "/"}'), ("--facts", "pth")),
        (("--facts", '{"ip": 3}'), ("--facts", "ip")),
        (("--facts", '{"ip": "192.0.2.1", "ip": "192.0.2.2"}'), ("--facts", "ip", "twice")),
        (("--facts", '{"path": "/login", "method": "POST", "ip": "nowhere"}'), ("facts.ip", "nowhere")),
        (("--facts", LOGIN, "--cost", "0"), ("cost", "0")),
        (("--facts", LOGIN, "--cost", "-1"), ("cost", "-1")),
        (("--facts", LOGIN, "--cost", "1.5"), ("--cost", "1.5")),
        ((), ("--facts",)),
    ],
)
@pytest.mark.parametrize("command", ["check", "explain"])
def test_bad_request_is_one_line(
    sluicegate: Run, rules: Path, command: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """What cannot be decided is said with its field; exit status 2, which is not 'refused'."""
    ran = sluicegate(command, "--rules", str(rules), *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err


def test_explain_says_why_and_why_not(sluicegate: Run, rules: Path) -> None:
    """Each rule has a line: the counter and quota of those that apply, the reason of those that do not."""
    ran = sluicegate("explain", "--rules", str(rules), "--facts", LOGIN)
    assert ran.status == 0
    login, api = ran.out.splitlines()
    assert login.startswith("login")
    assert "applies" in login
    assert "5/minute for ip:203.0.113.9, cost 1" in login
    assert api.startswith("api")
    assert " no " in api
    assert "path" in api


def test_explain_as_json(sluicegate: Run, rules: Path) -> None:
    """``--json`` gives each rule as an object."""
    rows = json.loads(sluicegate("explain", "--rules", str(rules), "--facts", LOGIN, "--json").out)
    assert [(row["rule"], row["matched"]) for row in rows] == [("login", True), ("api", False)]
