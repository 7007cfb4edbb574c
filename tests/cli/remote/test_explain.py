"""``sluicegate explain`` of a service that reaches no counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_without_counters(offline: Any, rules: Path) -> None:
    """Rules, lists and pauses are explained all the same, and it is said that no state of a counter is known."""
    assert offline("rules", "apply", str(rules), "--prune").status == 0
    ask = ("explain", "--user", "8123", "--ip", "203.0.113.9", "--method", "POST", "--path", "/api/x")
    told = offline(*ask)
    assert (told.status, told.out.splitlines()[0]) == (0, "allowed, unless a counter is used up")
    assert "how the counters stand is not known: " in told.err
    assert "not known" in told.out
    assert offline("lists", "add", "allow", "user:8123").status == 0
    assert offline(*ask).out.splitlines()[0] == "allowed"
    assert offline("lists", "remove", "allow", "user:8123").status == 0
    assert offline("lists", "add", "block", "203.0.113.0/24", "--reason", "scanner").status == 0
    assert offline(*ask).out.splitlines()[0].startswith("refused by block:ip")
    assert offline("pause", "--rule", "api", "--reason", "locked out").status == 0
    assert "locked out" in offline(*ask).out
