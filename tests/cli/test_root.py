"""What every command does alike: help, slips, missing extras, exit status."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.cli import serve

Run = Callable[..., Any]


def test_version(sluicegate: Run) -> None:
    """``--version`` names program and version."""
    assert sluicegate("--version") == (0, "sluicegate 0.1.0\n", "")


def test_help_lists_the_commands(sluicegate: Run) -> None:
    """``--help`` lists every command and succeeds; nothing at all shows the same and does not."""
    helped = sluicegate("--help")
    assert helped.status == 0
    for name in ("up", "serve", "gateway", "rules", "check", "explain", "replay"):
        assert f"\n  {name} " in helped.out
    assert sluicegate().status == 2


@pytest.mark.parametrize("command", ["up", "serve", "gateway", "check", "explain"])
def test_help_shows_variable_and_default(sluicegate: Run, command: str) -> None:
    """A command's help names the environment variable of each flag, and its default where it has one."""
    text = " ".join(sluicegate(command, "--help").out.split())
    assert "[env var: SLUICEGATE_RULES" in text
    if command in ("up", "gateway"):
        assert "env var: SLUICEGATE_GATEWAY; default: 127.0.0.1:8080" in text


@pytest.mark.parametrize("name", ["doctor"])
def test_later_command_says_so(sluicegate: Run, name: str) -> None:
    """A command whose name is reserved for a later version says that it is not in this one."""
    ran = sluicegate(name, "anything")
    assert ran == (2, "", f"sluicegate: the command {name!r} is not in this version; see 'sluicegate --help'\n")


def test_slip_gets_a_suggestion(sluicegate: Run) -> None:
    """A misspelt command is one line with the nearest one."""
    ran = sluicegate("serv")
    assert ran == (2, "", "sluicegate: no such command 'serv' (did you mean 'serve'?); see 'sluicegate --help'\n")


def test_unknown_flag_is_one_line(sluicegate: Run) -> None:
    """A flag that is none is named, with the command's help as the place to look."""
    ran = sluicegate("serve", "--rulse", "x")
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert "--rulse" in ran.err
    assert "sluicegate serve --help" in ran.err


def test_missing_extra_is_named() -> None:
    """With the core alone the command says which extra to install, and exits 2."""
    program = "import sys; sys.modules['click'] = None; from sluicegate.cli import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "sluicegate: the command line needs the extra 'server': pip install 'sluicegate[server]'"
    )


def test_a_fault_in_our_own_modules_is_not_called_a_missing_extra() -> None:
    """Only a missing module of the extra is reported as such; another one that is missing is a fault and shown."""
    program = "import sys; sys.modules['yaml'] = None; from sluicegate.cli import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "sluicegate[server]" not in done.stderr


@pytest.mark.slow
def test_reader_that_goes_away_is_no_error(rules: Any) -> None:
    """A pipe that is closed early (``| head -1``) ends the command without a traceback."""
    line = f"{sys.executable} -m sluicegate rules bounds {rules} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize("command", [["rules", "bounds"], ["--help"]])
def test_a_full_disk_is_one_line(rules: Path, command: list[str]) -> None:
    """Output that cannot be written is exit status 2 and one line, whichever command prints it."""
    arguments = command if command == ["--help"] else [*command, str(rules)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sluicegate", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "sluicegate: cannot write the output: No space left on device\n"


def test_a_system_without_means_is_said_in_one_line(sluicegate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor or process left is the machine's state and no fault of ours, so there is no traceback."""

    def exhausted(_settings: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(serve, "run", exhausted)
    failed = sluicegate("serve")
    assert (failed.status, failed.out, failed.err) == (2, "", "sluicegate: cannot go on: Too many open files\n")
