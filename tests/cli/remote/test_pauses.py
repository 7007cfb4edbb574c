"""``sluicegate pause`` on a database that no process serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_a_pause_that_no_service_tells(offline: Any, rules: Path) -> None:
    """Who pauses or resumes in the database directly is warned that nodes hear of it from a service; a dry run warns of nothing."""
    assert offline("rules", "apply", str(rules), "--prune").status == 0
    assert "nodes hear of it" not in offline("pause", "--rule", "api", "--dry-run").err
    for line in (("pause", "--rule", "api"), ("resume", "--rule", "api")):
        told = offline(*line)
        assert (told.status, "nodes hear of it" in told.err) == (0, True)
