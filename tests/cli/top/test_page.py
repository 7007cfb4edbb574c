"""The page about offenders shows what is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from sluicegate.cli.root import run

PAGE = Path(__file__).resolve().parents[3] / "docs" / "analytics" / "offenders.md"


def test_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command of the page prints what stands below it, with the secret that the page was made with."""
    for name in [name for name in os.environ if name.startswith("SLUICEGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    Path("rules.yaml").write_text(next(text for language, text in blocks if language == "yaml"))
    Path("access.log").write_text(next(text for language, text in blocks if language == "text"))
    Path("data").mkdir()
    Path("data/analytics.secret").write_text("0f3c8a51-the-secret-of-this-page\n")
    shown = [each for language, text in blocks if language == "console" for each in _commands(text)]
    assert len(shown) == 5
    for command, output in shown:
        if command.startswith("sluicegate "):
            assert run(shlex.split(command)[1:]) == 0
            assert capsys.readouterr().out == output
        else:
            made = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
            assert made.stdout == output


def _commands(block: str) -> list[tuple[str, str]]:
    """The commands of a block, each with what stands below it."""
    return [(command, output) for command, _, output in (each.partition("\n") for each in block.split("$ ")[1:])]
