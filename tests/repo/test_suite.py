"""What runs the whole suite says where it was cut off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HALF = "the half of app, cli, control"


@pytest.fixture(scope="module")
def cut_off() -> Callable[[str, str, int], str]:
    """The function of the script that reads what a half has printed."""
    namespace: dict[str, object] = {"__name__": "suite", "__file__": str(ROOT / "scripts" / "suite")}
    exec(compile((ROOT / "scripts" / "suite").read_text(), "scripts/suite", "exec"), namespace)
    found = namespace["cut_off"]
    assert callable(found)
    return found


@pytest.mark.parametrize(
    "closing",
    ["=== 3 passed in 0.12s ===", "== 1 failed, 2 passed in 601.00s (0:10:01) ==", "===== no tests ran in 0.01s ====="],
)
def test_a_half_that_came_to_its_end_was_not_cut_off(closing: str, cut_off: Callable[[str, str, int], str]) -> None:
    """Of a half with a closing line nothing more is said, whatever its exit status."""
    assert cut_off(HALF, f"collected 3 items\n\ntests/a/test_b.py ...   [100%]\n\n{closing}\n", 1) == ""


def test_a_half_that_was_killed_is_told_by_its_last_file(cut_off: Callable[[str, str, int], str]) -> None:
    """The file that had begun last is named, not one that a report of a failure mentions."""
    text = (
        "collected 3 items\n\ntests/a/test_b.py ...   [ 50%]\ntests/a/test_c.py .tests/a/test_d.py:7: AssertionError\n"
    )
    assert cut_off(HALF, text, -9) == f"{HALF} was cut off (exit status -9) in tests/a/test_c.py"
    assert cut_off(HALF, "", 3) == f"{HALF} was cut off (exit status 3) before its first test"


@pytest.mark.slow
def test_a_test_that_hangs_is_told_by_its_name(tmp_path: Path, cut_off: Callable[[str, str, int], str]) -> None:
    """Where pytest ends itself for a test that hangs, the test and its line are named."""
    (tmp_path / "tests").mkdir()
    file = tmp_path / "tests" / "test_held.py"
    file.write_text(
        "import threading\n\ndef test_fine():\n    pass\n\ndef test_held():\n    threading.Event().wait(60)\n", "utf-8"
    )
    overrides = [f"--override-ini=faulthandler_{name}" for name in ("timeout=0.5", "exit_on_timeout=true")]
    command = [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", "-c", "/dev/null", *overrides, "tests"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    told = cut_off(HALF, run.stdout + run.stderr, run.returncode)
    assert told == f"{HALF} was cut off (exit status 1) in test_held, tests/test_held.py:7"
