"""Real server processes: started on free ports, stopped by their fixture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

START_TIMEOUT_S = 60.0

RULES = """\
version: 1
rules:
  - name: login
    match: {methods: [POST], path: /login}
    per: [ip]
    quota: 5/minute
"""


class Server:
    """One running server: what it printed, and a client for each of its listeners."""

    def __init__(self, arguments: tuple[str, ...], directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.out = directory / "out.txt"
        self.err = directory / "err.txt"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        # The rules service of ``up`` is started where a test is about it.
        inherited["SLUICEGATE_CONTROL"] = "off"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluicegate", *arguments],
                stdout=out,
                stderr=err,
                cwd=directory,
                env=inherited | environment,
            )
        self.client = httpx.Client(timeout=60)

    def wait_until_ready(self) -> None:
        """Return when every listener is open; fail with what it said when it ends instead."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while "\nrules " not in f"\n{self.out.read_text()}":
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.02)

    def url(self, name: str) -> str:
        """The URL printed for a listener."""
        for line in self.out.read_text().splitlines():
            if line.startswith(f"{name} "):
                return line.split()[1]
        raise AssertionError(f"no line for {name!r} in {self.out.read_text()!r}")

    def events(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self.err.read_text().splitlines() if line.startswith("{")]

    def stop(self, *, timeout_s: float = 15) -> int:
        """Send SIGTERM, and give the exit status."""
        self.process.terminate()
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """Whatever state it is in, it is gone afterwards."""
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server with these arguments and wait until it is ready (``ready=False``: do not wait)."""
    servers: list[Server] = []

    def start(*arguments: str, ready: bool = True, **environment: str) -> Server:
        directory = tmp_path / f"server{len(servers)}"
        directory.mkdir()
        server = Server(arguments, directory, environment)
        servers.append(server)
        if ready:
            server.wait_until_ready()
        return server

    yield start
    for server in servers:
        server.end()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A rule file: five logins a minute per address."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path
