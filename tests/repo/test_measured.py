"""Tests of durations are repeated before they fail, and what hangs fails alone."""

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


HANGING = """\
import asyncio, threading
import bounded
import pytest

bounded.LIMIT_S = 1.5
bounded.LEAST_S = 0.5

@pytest.fixture
def endless():
    yield
    threading.Event().wait()

def test_held():
    threading.Event().wait()

def test_after():
    pass

async def test_on_a_loop():
    await asyncio.Event().wait()

@pytest.mark.measured
def test_measured():
    threading.Event().wait()

def test_cleaning_up(endless):
    pass

def test_last():
    pass
"""


def run(folder: Path, tests: str, *plugins: str) -> str:
    """What pytest says of a file of tests."""
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    loaded = [word for plugin in plugins for word in ("-p", plugin)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *loaded, "-p", "no:cacheprovider", "-rfEp", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PLUGINS)},
        timeout=90,
        check=False,
    ).stdout


def test_what_hangs_fails_and_the_others_have_their_turn(tmp_path: Path) -> None:
    """A test that hangs, in a thread's wait, on a loop or in what it cleans up, fails when its time is over, in one turn; the others pass."""
    said = run(tmp_path, HANGING, "measured", "bounded")
    found = [line.split(" - ")[0] for line in said.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))]
    assert sorted(found) == [
        "ERROR test_it.py::test_cleaning_up",
        "FAILED test_it.py::test_held",
        "FAILED test_it.py::test_measured",
        "FAILED test_it.py::test_on_a_loop",
        "PASSED test_it.py::test_after",
        "PASSED test_it.py::test_cleaning_up",
        "PASSED test_it.py::test_last",
    ], said
    assert said.count("no end in 1.5 s") >= 4


def test_a_measurement_is_repeated_twice_and_told(tmp_path: Path) -> None:
    """A marked test passes where one of three turns does, each with fresh fixtures, and is named; one without the mark fails at once."""
    said = run(tmp_path, TESTS, "measured")
    assert "2 failed, 4 passed" in said, said
    told = [line for line in said.splitlines() if line.startswith(("FAILED", "measured again"))]
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
