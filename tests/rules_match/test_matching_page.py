"""The tables of docs/matching.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluicegate.rules.paths import normal_form, parse_pattern, readings, segments_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "matching.md").read_text()


def rows(heading: str) -> list[list[list[str]]]:
    """The code spans in each cell of each row of the first table under a heading."""
    section = PAGE.split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    table = [line for line in section.splitlines() if line.startswith("| `")]
    return [[re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split(" | ")] for line in table]


@pytest.mark.parametrize("row", rows("Path patterns"), ids=lambda row: row[0][0])
def test_pattern_table(row: list[list[str]]) -> None:
    """Each pattern matches the paths of its second column and none of its third."""
    patterns, hits, misses = row
    for pattern in map(parse_pattern, patterns):
        matched = {
            path: any(pattern.matches(segments_of(reading)) for reading in readings(path.removeprefix("OPTIONS ")))
            for path in hits + misses
        }
        assert matched == dict.fromkeys(hits, True) | dict.fromkeys(misses, False)


@pytest.mark.parametrize("row", rows("The normal form"), ids=lambda row: row[0][0])
def test_normal_form_table(row: list[list[str]]) -> None:
    """Each spelling has the normal form beside it."""
    spellings, (form,) = row
    assert [normal_form(spelling) for spelling in spellings] == [form] * len(spellings)


@pytest.mark.parametrize("row", rows("Other readings"), ids=lambda row: row[0][0])
def test_readings_table(row: list[list[str]]) -> None:
    """Each path has exactly the readings beside it."""
    (path,), expected = row
    assert list(readings(path)) == expected
