"""``rules diff OLD NEW --replay LOG``: what the difference would have done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RULES = "version: 1\nrules:\n  - {{name: per-ip, per: [ip], quota: {}/minute, algorithm: fixed_window}}\n"
LINE = '{} - - [14/Nov/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 5 "-" "-"\n'


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Two rule files and a log, in the directory in which commands run."""
    (tmp_path / "old.yaml").write_text(RULES.format(10))
    (tmp_path / "new.yaml").write_text(RULES.format(5))
    (tmp_path / "access.log").write_text("".join([LINE.format("192.0.2.1") * 8, LINE.format("192.0.2.2") * 3]))


@pytest.mark.usefixtures("files")
def test_the_newly_refused_are_named(sluicegate: Callable[..., Any]) -> None:
    """Behind the difference stands who is newly refused, by rule and by client; the status is that of the difference."""
    ran = sluicegate("rules", "diff", "old.yaml", "new.yaml", "--replay", "access.log")
    assert ran.status == 1, ran.err
    assert "quota 10/minute -> 5/minute" in ran.out
    assert "newly refused 3, newly allowed 0" in ran.out
    assert "3  ip:192.0.2.1" in ran.out
    assert "192.0.2.2" not in ran.out


@pytest.mark.usefixtures("files")
def test_as_json(sluicegate: Callable[..., Any]) -> None:
    """With --json there is one object with both; without a log it is the array of changes, as ever."""
    ran = sluicegate("rules", "diff", "old.yaml", "new.yaml", "--replay", "access.log", "--json")
    told = json.loads(ran.out)
    assert len(told["changes"]) == 1
    assert told["replay"]["against"]["newly_refused_by_rule"] == {"per-ip": 3}
    assert isinstance(json.loads(sluicegate("rules", "diff", "old.yaml", "new.yaml", "--json").out), list)


@pytest.mark.usefixtures("files")
def test_what_cannot_be_done(sluicegate: Callable[..., Any]) -> None:
    """A log that is not there is an error of its own, and sampled traffic is had from a service only."""
    assert sluicegate("rules", "diff", "old.yaml", "new.yaml", "--replay", "nope.log").status == 2
    assert sluicegate("rules", "diff", "old.yaml", "new.yaml", "--minutes", "5").status == 2
