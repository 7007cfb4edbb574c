"""What goes wrong while a replay is recorded: said in one line, and put right by running it again."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.model import Span

RULES = "version: 1\nrules:\n  - {name: two, per: [ip], quota: 2/minute, algorithm: fixed_window}\n"
LINES = 4_000
EVER = Span(0, 2**52)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rules, and a log of 4,000 requests in 200 minutes."""
    (tmp_path / "rules.yaml").write_text(RULES)
    with (tmp_path / "access.log").open("w") as log:
        for number in range(LINES):
            minute, second = divmod(number * 3, 60)
            log.write(
                f'10.0.{number % 50}.1 - - [17/May/2025:{minute // 60:02}:{minute % 60:02}:{second:02} +0000] "GET / HTTP/1.1" 200 5 "-" "a"\n'
            )
    return tmp_path


def record(folder: Path, *, file_bytes: int | None = None) -> subprocess.Popen[str]:
    """Begin to record in a process. ``file_bytes``: no file may become larger."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}

    command = [
        sys.executable,
        "-m",
        "sluicegate",
        "replay",
        "--rules",
        "rules.yaml",
        "--record",
        "--data",
        "data",
        "access.log",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=inherited
    )
    if file_bytes is not None:
        # Before it has read its modules, let alone the log.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    return process


def recorded(folder: Path) -> int:
    """The decisions in the directory."""
    home = EmbeddedHome(folder / "data" / "analytics.db")
    try:
        return sum(row.decisions for row in home.requests(EVER))
    finally:
        home.close()


def test_killed_and_run_again_is_whole(folder: Path) -> None:
    """A recording that is killed as soon as it has kept something, and run again, counts everything once."""
    first = record(folder)
    while first.poll() is None and not (folder / "data" / "analytics.db").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(0.02)
    first.kill()
    first.communicate()
    again = record(folder)
    assert again.communicate(timeout=90)[1] == ""
    assert recorded(folder) == LINES


def test_two_at_once_count_once(folder: Path) -> None:
    """Two recordings of one log at once leave each decision once, and use one secret."""
    both = [record(folder) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda process: process.communicate(timeout=90), both))
    assert [err for _, err in ends] == ["", ""]
    assert recorded(folder) == LINES


def test_no_room_is_one_line(folder: Path) -> None:
    """Where the disk takes no more it ends with 2 and one line that names the file."""
    process = record(folder, file_bytes=20_480)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 2
    assert len(err.splitlines()) == 1
    assert "analytics.db" in err


@pytest.mark.parametrize("what", ["a file", "no database"])
def test_a_directory_that_is_none(folder: Path, what: str) -> None:
    """A data directory that is a file, or has another file in the place of the home, is named in one line."""
    if what == "a file":
        (folder / "data").write_text("x")
    else:
        (folder / "data").mkdir()
        (folder / "data" / "analytics.db").write_text("this is no database, whatever it is called")
    process = record(folder)
    _, err = process.communicate(timeout=90)
    assert (process.returncode, len(err.splitlines())) == (2, 1)
    assert "data" in err
