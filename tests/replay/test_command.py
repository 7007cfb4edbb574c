"""``sluicegate replay`` as a process: what it prints, what it reads, how it ends."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.cli.root import run as run_command

Line = Callable[..., str]
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "replay.md"
RULES = "version: 1\nrules:\n  - {name: two, per: [ip], quota: 2/minute, algorithm: fixed_window}\n"
COMMAND = [sys.executable, "-m", "sluicegate", "replay"]


def environment() -> dict[str, str]:
    """That of this process, without settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}


@pytest.fixture
def files(tmp_path: Path, line: Line) -> Path:
    """A directory with ``rules.yaml`` and ``access.log``, five requests of which three are refused."""
    (tmp_path / "rules.yaml").write_text(RULES)
    lines = [line(0), line(2), line(1), line(3), "junk", line(59.5)]
    (tmp_path / "access.log").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def run(files: Path) -> Run:
    """Run the command there."""

    def call(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments], input=given, capture_output=True, cwd=files, env=environment(), timeout=60
        )

    return call


def test_text(run: Run) -> None:
    """Without ``--json`` people read it; nothing is on standard error when that is no terminal; exit status 0."""
    ran = run("--rules", "rules.yaml", "access.log")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert re.search(r"refused +3 +60\.0 %", ran.stdout.decode())
    assert "access.log:5: it does not begin with client, identity and user: 'junk'" in ran.stdout.decode()


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_as_json(run: Run, tmp_path: Path, packed: bool) -> None:
    """``-`` reads standard input, plain or gzip; ``--json`` prints one object and nothing else."""
    data = (tmp_path / "access.log").read_bytes()
    ran = run("--rules", "rules.yaml", "--json", "-", given=gzip.compress(data) if packed else data)
    assert (ran.returncode, ran.stderr) == (0, b"")
    document = json.loads(ran.stdout)
    assert (document["requests"], document["bad_lines"], document["refused"]) == (5, 1, 3)
    assert document["bad"][0]["log"] == "standard input"


def test_against_as_json(run: Run, tmp_path: Path) -> None:
    """``--against`` compares, and names the other file."""
    (tmp_path / "old.yaml").write_text(RULES.replace("2/minute", "4/minute"))
    ran = run("--rules", "rules.yaml", "--against", "old.yaml", "--json", "access.log")
    against = json.loads(ran.stdout)["against"]
    assert (against["source"], against["refused"], against["newly_refused"]) == ("old.yaml", 1, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rules", "rules.yaml", "absent.log"), ("absent.log", "No such file")),
        (("--rules", "rules.yaml", "."), ("cannot read .", "directory")),
        (("--rules", "absent.yaml", "access.log"), ("absent.yaml", "No such file")),
        (("--rules", "rules.yaml", "--against", "absent.yaml", "access.log"), ("absent.yaml",)),
        (("--rules", "rules.yaml", "--format", "xml", "access.log"), ("--format", "xml", "combined")),
        (("--rules", "rules.yaml", "--window", "soon", "access.log"), ("--window", "soon")),
        (("--rules", "rules.yaml", "--map", "a=b", "access.log"), ("--map", "a=b")),
        (("--rules", "rules.yaml"), ("LOG",)),
        (("access.log",), ("--rules",)),
        (("--rules", "rules.yaml", "rules.yaml"), ("no valid line in rules.yaml", "3 bad")),
        (("--rules", "rules.yaml", "-"), ("no valid line in -", "0 bad")),
    ],
)
def test_bad_usage_is_one_line(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    """What cannot be done is said in one line with the value; nothing is printed else; exit status 2."""
    monkeypatch.chdir(files)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert run_command(["replay", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_all_problems_of_a_rule_file(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad rule file has all its problems printed; exit status 2."""
    monkeypatch.chdir(files)
    (files / "bad.yaml").write_text(
        "version: 1\nrules:\n  - {name: a, quota: 5/fortnight}\n  - {name: b, quotas: 1/second}\n"
    )
    assert run_command(["replay", "--rules", "bad.yaml", "access.log"]) == 2
    err = capsys.readouterr().err
    assert "fortnight" in err
    assert "quotas" in err


def test_damaged_log(run: Run, tmp_path: Path) -> None:
    """Half a gzip file is no log: one line, exit status 2."""
    (tmp_path / "half.gz").write_bytes(gzip.compress((tmp_path / "access.log").read_bytes())[:60])
    ran = run("--rules", "rules.yaml", "half.gz")
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"half.gz: damaged gzip data" in ran.stderr


def test_progress_on_a_terminal_only(run: Run, tmp_path: Path) -> None:
    """Where standard error is a terminal a bar is drawn there; standard output stays the report."""
    controller, terminal = pty.openpty()
    try:
        ran = subprocess.run(
            [*COMMAND, "--rules", "rules.yaml", "--json", "access.log"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=terminal,
            cwd=tmp_path,
            env=environment() | {"TERM": "xterm", "COLUMNS": "100"},
            timeout=60,
        )
        drawn = os.read(controller, 65_536)
    finally:
        os.close(controller)
        os.close(terminal)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["requests"] == 5
    assert b"replay" in drawn


def test_page_shows_what_is_printed(tmp_path: Path) -> None:
    """The files and commands of docs/replay.md give exactly the output it shows."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    yaml = [text for language, text in blocks if language == "yaml"]
    (tmp_path / "rules.yaml").write_text(yaml[0])
    (tmp_path / "tighter.yaml").write_text(yaml[1])
    (tmp_path / "access.log").write_text(next(text for language, text in blocks if language == "text"))
    shown = [text.partition("\n") for language, text in blocks if language == "console"][:2]
    assert [command.split()[:3] for command, _, _ in shown] == [["$", "sluicegate", "replay"]] * 2
    for command, _, output in shown:
        ran = subprocess.run(
            [*COMMAND, *command.split()[3:]],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(),
            timeout=60,
        )
        assert ran.stdout == output
    first = json.loads(
        subprocess.run(
            [*COMMAND, "--rules", "rules.yaml", "--json", "access.log"],
            capture_output=True,
            cwd=tmp_path,
            env=environment(),
            timeout=60,
        ).stdout
    )
    example = json.loads(next(text for language, text in blocks if language == "json"))
    assert {key: first[key] for key in example} == example
