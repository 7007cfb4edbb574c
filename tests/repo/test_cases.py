"""The page of cases: every number a test carries is explained, and where the page says it is tested, it is."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([TP]\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
NUMBER = re.compile(r"\b[TP]\d{2,3}\b")


def carried() -> dict[str, set[str]]:
    """Number -> folders whose tests carry it."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in (*(path for path in (ROOT / "tests").iterdir() if path.is_dir()), ROOT / "src/sluicegate/testing"):
        for path in folder.rglob("*.py"):
            for number in NUMBER.findall(path.read_text(encoding="utf-8")):
                found[number].add(folder.relative_to(ROOT).as_posix())
    return found


def test_every_case_number_is_on_the_page() -> None:
    """docs/cases.md has a row for every number that a test carries, with the folders that carry it, and no other row."""
    page = (ROOT / "docs/cases.md").read_text(encoding="utf-8")
    shown = {number: set(re.findall(r"`([^`]+)`", folders)) for number, folders in ROW.findall(page)}
    assert shown == carried()
