"""The commands that change things, on a service and on a database in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RULES = "version: 1\nrules: [{name: login, match: {path: /login}, per: [ip], quota: 5/minute}]\n"


def test_the_same_commands_on_postgresql(
    command: Any, start_service: Any, new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules, a rollback, a list, a subject, a pause and the audit trail, over HTTP and with --db beside the service."""
    url = new_database()
    (tmp_path / "rules.yaml").write_text(RULES)
    with start_service("--db", url) as service:
        monkeypatch.setenv("SLUICEGATE_SERVER", service.address)
        monkeypatch.setenv("SLUICEGATE_TOKEN", service.token)
        for line in (
            "rules apply rules.yaml --managed-by git --reason first",
            "rules set login quota=6/minute --force",
            "rollback 1 --force --reason back",
            "lists add block 203.0.113.0/24 --expires 1h",
            "subjects set user:8123 --factor 10x --until 3d",
            "pause --for 15m",
            "resume",
            "audit verify",
        ):
            ran = command(*line.split())
            assert ran.status == 0, f"{line}: {ran.err}"
        assert command("rules", "diff", "rules.yaml").status == 0
        beside = command("rules", "set", "login", "quota=7/minute", "--force", "--db", url)
        assert beside.status == 0, beside.err
        assert "quota: 7/minute" in command("rules", "get", "login").out
        rows = json.loads(command("audit", "list", "--action", "rule.patch", "--json").out)
        assert [row["actor"].partition(":")[0] for row in rows] == ["offline", "admin"]
