"""Subjects by command: what is not named stays, and only a factor ends."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

SET = "{version: 1, tiers: {default: free, names: [free, paid]}, rules: [{name: api, per: [user], quota: 5/minute}]}"


@pytest.fixture
def subjects(offline: Any, tmp_path: Path) -> Any:
    """Runs ``sluicegate subjects`` on a database whose rules know the tiers free and paid."""
    (tmp_path / "rules.yaml").write_text(SET)
    assert offline("rules", "apply", "rules.yaml").status == 0
    return lambda *words: offline("subjects", *words)


def test_a_tier_has_no_end(subjects: Any) -> None:
    """An end without a factor is refused, where there is none before either; with both it is said which of them ends."""
    refused = subjects("set", "user:1", "--tier", "paid", "--until", "2099-12-04")
    assert refused.status == 2
    assert "give --factor; a tier stays" in refused.err
    assert subjects("show", "user:1").status == 1
    made = subjects("set", "user:1", "--tier", "paid", "--factor", "10x", "--until", "2099-12-04")
    assert made.out == "user:1: tier paid; limits 10 times until 2099-12-04T00:00:00Z\n"
    later = subjects("set", "user:1", "--until", "never")
    assert later.out.startswith("user:1: tier paid; limits 10 times (before: tier paid; limits 10 times until 2099")


def test_what_is_not_named_stays(subjects: Any) -> None:
    """A change of one field keeps the others, and says what was there before; an empty text takes a field away."""
    words = ("--tier", "paid", "--rule", "api", "--note", "vip")
    assert subjects("set", "user:1", *words).status == 0
    changed = subjects("set", "user:1", "--factor", "0.5")
    assert changed.out == (
        "user:1: tier paid; limits 0.5 times in api; note: vip (before: tier paid; limits as in the rules in api; note: vip)\n"
    )
    bare = subjects("set", "user:1", "--tier", "", "--rule", "", "--note", "")
    assert bare.out.startswith("user:1: no tier; limits 0.5 times (before: ")
    assert subjects("set", "user:1", "--tier", "free", "--factor", "1x").out.startswith("user:1: tier free; limits as")
    assert subjects("set", "user:1").status == 2


def test_a_factor_that_has_ended(subjects: Any, tmp_path: Path) -> None:
    """A factor whose end has passed is marked, and does not come back with a change of something else."""
    assert subjects("set", "user:1", "--tier", "paid", "--factor", "10x", "--until", "1h").status == 0
    with closing(sqlite3.connect(tmp_path / "offline" / "control.db")) as connection, connection:
        connection.execute("UPDATE subjects SET until_us = 1000000")
    assert "10 times, ended" in subjects("show", "user:1").out
    assert "10 times, ended" in subjects("show").out
    assert subjects("set", "user:1", "--tier", "free").out.startswith(
        "user:1: tier free; limits as in the rules (before"
    )
    row = json.loads(subjects("show", "user:1", "--json").out)
    assert (row["factor_numerator"], row["until_us"]) == (1, None)
