"""README's chapter on a fleet: its commands are run as they stand, on free ports, and what it shows is what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

README = Path(__file__).resolve().parents[3] / "README.md"
TITLE = "Change a limit on a running fleet"
SERVERS = ("sluicegate control", "sluicegate up")
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")
PORTS = ("8080", "8081", "8082", "8090", "9080", "9081")
WAIT_S = 60.0


def blocks() -> list[str]:
    """The console blocks of the chapter."""
    chapter = README.read_text().partition(f"\n## {TITLE}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```console\n(.*?)^```", chapter, re.M | re.S)
    assert len(found) == 6
    return found


def steps(block: str) -> list[tuple[str, str]]:
    """Each command of a block, and what it is said to print."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


class Shells:
    """Shells in one directory, with this installation in place of the activated one, and other ports than the text's."""

    def __init__(self, directory: Path, ports: dict[str, str]) -> None:
        self._directory = directory
        self._ports = ports
        self._servers: list[subprocess.Popen[bytes]] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        self._environment = clean | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(self, block: str) -> Iterator[tuple[str, str, str]]:
        """Run a block: of each command that ends, its text, what it prints, and what the text says it does."""
        environment = dict(self._environment)
        for command, said in steps(block):
            if command.startswith(". "):
                continue
            given = self._here(command)
            if command.startswith("export "):
                environment |= dict(word.split("=", 1) for word in given.removeprefix("export ").split())
                if "SLUICEGATE_SERVER" in environment:
                    # The later commands are of this shell.
                    self._environment = environment
            elif command.startswith(SERVERS):
                self._serve(given, environment)
            else:
                done = subprocess.run(
                    ["bash", "-c", given],
                    cwd=self._directory,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                assert done.returncode == 0, (given, done.stdout, done.stderr)
                yield command, done.stdout, said

    def _here(self, command: str) -> str:
        for stands, is_here in self._ports.items():
            command = command.replace(stands, is_here)
        return command

    def _serve(self, command: str, environment: dict[str, str]) -> None:
        # What the text leaves to its default, on a free port; Envoy's listener is not part of it.
        for name, port in (("--control", "8090"), ("--gateway", "8080"), ("--api", "8081")):
            if name not in command.split() and (name == "--control") == command.startswith("sluicegate control"):
                command += f" {name} {self._here(f'127.0.0.1:{port}')}"
        command += "" if command.startswith("sluicegate control") else " --grpc off"
        number = len(self._servers)
        out = self._directory / f"server{number}.out"
        with out.open("wb") as file:
            self._servers.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command}"], cwd=self._directory, env=environment, stdout=file, stderr=file
                )
            )
        deadline = time.monotonic() + WAIT_S
        while not re.search(r"^(control|rules) +\S", out.read_text(), re.M):
            assert self._servers[-1].poll() is None, out.read_text()
            assert time.monotonic() < deadline, out.read_text()
            time.sleep(0.05)

    def end(self) -> None:
        for server in reversed(self._servers):
            server.kill()
            server.wait()


@pytest.fixture
def shells(
    tmp_path: Path, start_redis: Callable[..., Any], new_database: Callable[[], str], free_port: Callable[[], int]
) -> Iterator[Shells]:
    """Shells beside a Redis and a PostgreSQL, in a directory that holds the rules of a first start."""
    parts = urlsplit(new_database())
    ports = {f"127.0.0.1:{port}": f"127.0.0.1:{free_port()}" for port in PORTS}
    ports["127.0.0.1:6379"] = f"127.0.0.1:{start_redis().port}"
    ports["127.0.0.1:5432/postgres"] = f"127.0.0.1:{parts.port}{parts.path}"
    data = tmp_path / ".sluicegate"
    data.mkdir()
    (data / "rules.yaml").write_bytes((Path(README.parent) / "src/sluicegate/app/defaults.yaml").read_bytes())
    shells = Shells(tmp_path, ports)
    yield shells
    shells.end()


def test_a_limit_is_changed_on_a_running_fleet(shells: Shells) -> None:
    """Two gateways take one change within a second, and its rollback; the audit trail names them, and is whole."""
    for block in blocks():
        for command, out, said in shells.run(block):
            if said:
                assert TIME.sub("WHEN", out) == TIME.sub("WHEN", said), command
