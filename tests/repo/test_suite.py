"""What runs the whole suite says where it was cut off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
HALF = "the half of app, cli, control"
PLUGINS = ROOT / "tests" / "plugins"


@pytest.fixture(scope="module")
def suite() -> Iterator[ModuleType]:
    """The script as a module."""
    loader = SourceFileLoader("suite", str(ROOT / "scripts" / "suite"))
    spec = spec_from_loader("suite", loader)
    assert spec is not None
    module = module_from_spec(spec)
    # A dataclass looks for its module by name.
    sys.modules["suite"] = module
    loader.exec_module(module)
    yield module
    del sys.modules["suite"]


@pytest.fixture(scope="module")
def cut_off(suite: ModuleType) -> Callable[[str, str, int], str]:
    """The function of the script that reads what a half has printed."""
    found: Callable[[str, str, int], str] = suite.cut_off
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


TESTS = """
import pathlib

def turns(name):
    file = pathlib.Path(__file__).with_name(name)
    file.write_text((file.read_text() if file.exists() else "") + "x")
    return len(file.read_text())

def test_steady():
    pass

def test_once():
    assert turns("once") != 1

def test_twice():
    assert turns("twice") > {bad}
"""


@pytest.fixture
def halves(suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run the script over a suite of two folders; its exit status and its last line."""

    def run(folder: str = "faults", bad: int = 1, also: str = "") -> tuple[int, str]:
        for name in (folder, "cli"):
            (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / folder / "test_some.py").write_text(TESTS.replace("{bad}", str(bad)), "utf-8")
        (tmp_path / "tests" / "cli" / "test_other.py").write_text(f"import os\ndef test_other(): pass\n{also}", "utf-8")
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p outcomes -p no:cacheprovider\n", "utf-8")
        script = (ROOT / "scripts" / "suite").read_text("utf-8")
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts" / "suite").write_text(script, "utf-8")
        environment = os.environ | {"PYTHONPATH": str(PLUGINS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, str(tmp_path / "scripts" / "suite")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
        return done.returncode, done.stdout.strip().splitlines()[-1]

    return run


@pytest.mark.slow
def test_a_test_that_failed_once_is_run_again_and_named(halves: Callable[..., tuple[int, str]]) -> None:
    """Of tests of real processes one that fails once and passes twice counts as passed, and the last line names it."""
    status, last = halves(bad=0)
    assert (status, "4 passed" in last, "unsteady: tests/faults/test_some.py::test_once" in last) == (0, True, True), (
        last
    )


@pytest.mark.slow
def test_a_test_that_fails_again_has_failed(halves: Callable[..., tuple[int, str]]) -> None:
    """One that fails at its second turn too has failed."""
    status, last = halves(bad=2)
    assert (status, "1 failed, 3 passed" in last) == (1, True), last


@pytest.mark.slow
def test_a_race_is_not_run_until_it_passes(halves: Callable[..., tuple[int, str]]) -> None:
    """Where tests look for races a single failure is one."""
    status, last = halves("races_redis", bad=0)
    assert (status, "1 failed, 3 passed" in last) == (1, True), last


@pytest.mark.slow
def test_tests_that_had_no_turn_are_run(halves: Callable[..., tuple[int, str]]) -> None:
    """Where a half is killed in the middle, the tests that it had not come to are run after it."""
    killed = "def test_killed():\n    if not os.path.exists('here'):\n        open('here', 'w').close()\n        os._exit(1)\ndef test_last(): pass\n"
    status, last = halves(bad=0, also=killed)
    assert (status, "6 passed" in last, "was cut off" in last) == (0, True, True), last
