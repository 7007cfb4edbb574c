"""Tests of durations are repeated before they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"

TESTS = """\
import pytest

TURNS = {}

@pytest.fixture
def fresh():
    return []

def late(name, times, fresh):
    assert fresh == []
    fresh.append(1)
    TURNS[name] = TURNS.get(name, 0) + 1
    assert TURNS[name] > times

@pytest.mark.measured
@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_measured(times, fresh):
    late(times, times, fresh)

@pytest.mark.measured
async def test_on_a_loop(fresh):
    late("loop", 1, fresh)

def test_not_marked(fresh):
    late("plain", 1, fresh)
"""


def test_a_measurement_is_repeated_twice_and_told(tmp_path: Path) -> None:
    """A marked test passes where one of three turns does, each with fresh fixtures, and is named; one without the mark fails at once."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "measured", "-p", "no:cacheprovider", "-rf", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PLUGINS)},
        timeout=90,
        check=False,
    )
    assert "2 failed, 4 passed" in ran.stdout, ran.stdout
    told = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "measured again"))]
    assert [line.split(" - ")[0] for line in told if line.startswith("FAILED")] == [
        "FAILED test_it.py::test_measured[3]",
        "FAILED test_it.py::test_not_marked",
    ]
    assert [line for line in told if line.startswith("measured")] == [
        "measured again: test_it.py::test_measured[1] (2 turns)",
        "measured again: test_it.py::test_measured[2] (3 turns)",
        "measured again: test_it.py::test_measured[3] (3 turns)",
        "measured again: test_it.py::test_on_a_loop (2 turns)",
    ]
