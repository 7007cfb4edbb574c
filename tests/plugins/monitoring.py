"""A real Prometheus that scrapes real servers of sluicegate. Loaded by the root ``conftest.py``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

WAIT_S = 60.0


class Monitoring:
    """Processes that run until the fixture ends, and what Prometheus says of them."""

    def __init__(self, folder: Path, require_program: Callable[[str], str]) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self._require = require_program
        self.url = ""

    def serve(self, *arguments: str) -> str:
        """Start a server; the address of its API once it is ready."""
        port = free_port()
        log = (self.folder / f"server{port}.txt").open("wb")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        command = [sys.executable, "-m", "sluicegate", "serve", "--api", f"127.0.0.1:{port}", *arguments]
        with log:
            self.processes.append(
                subprocess.Popen(command, cwd=self.folder, env=inherited, stdout=log, stderr=subprocess.STDOUT)
            )
        self.until(lambda: answers(f"http://127.0.0.1:{port}/readyz"))
        return f"127.0.0.1:{port}"

    def watch(self, *targets: str, rules: Path | None = None) -> None:
        """Start Prometheus, which scrapes the targets each second, and judges by these alert rules."""
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "sluicegate", "static_configs": [{"targets": list(targets)}]}],
            "rule_files": [] if rules is None else [str(rules)],
        }
        file = self.folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [self._require("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={self.folder / 'tsdb'}"]
        with (self.folder / "prometheus.txt").open("wb") as log:
            self.processes.append(
                subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
            )
        self.until(lambda: answers(f"{self.url}/-/ready"))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus answers; fails where it does not understand."""
        reply = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30).json()
        assert reply["status"] == "success", (expression, reply)
        found: list[dict[str, Any]] = reply["data"]["result"]
        return found

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {row["metric"]["alertname"] for row in self.query('ALERTS{alertstate="firing"}')}

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for it, a minute at most."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, [path.read_text()[-2000:] for path in self.folder.glob("*.txt")]
            time.sleep(0.2)

    def end(self) -> None:
        """End what was started."""
        for process in self.processes:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that the system gives."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Whether there is a 200."""
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def monitoring(tmp_path: Path, require_program: Callable[[str], str]) -> Iterator[Monitoring]:
    """Nothing runs yet."""
    require_program("prometheus")
    running = Monitoring(tmp_path, require_program)
    yield running
    running.end()
