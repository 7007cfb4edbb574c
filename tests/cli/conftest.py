"""Commands run in this process, with what they print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sluicegate.app.settings import Settings
from sluicegate.cli import serve
from sluicegate.cli.root import run

RULES = """\
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - name: login
    match: {methods: [POST], path: /login}
    per: [ip]
    quota: 5/minute
  - name: api
    match: {path: /api/**}
    per: {first_of: [api_key, ip]}
    quota: {free: 100/minute, paid: 1000/minute}
"""


class Ran(NamedTuple):
    """How a command ended and what it said."""

    status: int
    out: str
    err: str


@pytest.fixture
def sluicegate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Run one command in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Ran:
        status = run(arguments)
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return call


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A valid rule file in the directory the commands run in."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that servers would have been run with."""
    settings: list[Settings] = []

    def keep(given: Settings) -> int:
        settings.append(given)
        return 0

    monkeypatch.setattr(serve, "run", keep)
    return settings
