"""What commands say: who manages the rules, what may have been meant, and what is wrong with a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

RULES = "{version: 1, rules: [{name: login, per: [user], quota: 5/minute}, {name: api, per: [user], quota: 9/minute}]}"


@pytest.fixture
def rules(offline: Any, tmp_path: Path) -> Any:
    """Runs commands on a database that has two rules."""
    (tmp_path / "rules.yaml").write_text(RULES)
    assert offline("rules", "apply", "rules.yaml").status == 0
    return offline


def test_who_manages_the_rules_is_shown_and_can_end(rules: Any) -> None:
    """The list of rules names the manager; an empty name with --force ends it, after which anybody may change them."""
    assert "managed by" not in rules("rules", "list").out
    assert rules("rules", "apply", "rules.yaml", "--managed-by", "git").status == 0
    assert rules("rules", "list").out.endswith("managed by git\n")
    refused = rules("rules", "set", "login", "quota=6/minute")
    assert (refused.status, "(--force, force=true)" in refused.err) == (2, True)
    assert rules("rules", "apply", "rules.yaml", "--managed-by", "", "--force").status == 0
    assert "managed by" not in rules("rules", "list").out
    assert rules("rules", "set", "login", "quota=6/minute").status == 0


@pytest.mark.parametrize("line", ["rules get logn", "rules delete logn --if-match *", "pause --rule logn"])
def test_a_slip_in_the_name_of_a_rule(rules: Any, line: str) -> None:
    """A rule that is not there is answered with the one that may be meant."""
    assert "there is no rule 'logn' (did you mean 'login'?)" in rules(*line.split()).err


def test_what_is_there_or_is_not(rules: Any) -> None:
    """An entry that is there, and a pause of all rules that is not, are said in English."""
    assert rules("lists", "add", "block", "user:1").status == 0
    assert "there is an entry 'block:user:1' already" in rules("lists", "add", "block", "user:1").err
    assert "there is no pause of all rules" in rules("resume").err


def test_a_bad_value_is_named_by_where_it_came_from(rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad value of the command line is that of the flag; one of the environment names the variable."""
    assert "SLUICEGATE_FOR" not in rules("pause", "--for", "soon").err
    monkeypatch.setenv("SLUICEGATE_FOR", "soon")
    assert "SLUICEGATE_FOR" in rules("pause").err


def test_an_address_within_a_network_on_a_list(rules: Any) -> None:
    """Where an address has no entry of its own, ``lists get`` and ``lists remove`` name the network that covers it."""
    assert rules("lists", "add", "block", "203.0.113.0/24").status == 0
    found = rules("lists", "get", "block", "203.0.113.9")
    assert (found.status, "is within 203.0.113.0/24, which has" in found.err) == (1, True)
    assert rules("lists", "get", "allow", "203.0.113.9").err == "203.0.113.9 is not on the allow list\n"
    assert "203.0.113.0/24, which is on the list, covers it" in rules("lists", "remove", "block", "203.0.113.9").err
