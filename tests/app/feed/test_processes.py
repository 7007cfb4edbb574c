"""Servers as they are started: their rules come from a rules service, or from what it said last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from real_servers import free_port_now

pytestmark = pytest.mark.slow

ADMIN = "a-token-of-the-admin-here"
RULE = {"name": "api", "per": ["user"], "quota": "5/minute"}


class Process:
    """``python -m sluicegate ARGUMENTS``, its output and a client."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        directory.mkdir(exist_ok=True)
        self.out, self.err = directory / "out.txt", directory / "err.txt"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "sluicegate", *arguments], stdout=out, stderr=err, cwd=directory, env=kept
            )
        self.client = httpx.Client(timeout=60, trust_env=False)

    def ready(self, line: str) -> str:
        """The URL of a line that it prints when it is ready."""
        until = time.monotonic() + 60
        while True:
            for each in self.out.read_text().splitlines():
                if each.startswith(f"{line} "):
                    return each.split()[1]
            assert self.popen.poll() is None, self.err.read_text()
            assert time.monotonic() < until, "it is not ready"
            time.sleep(0.02)

    def end(self) -> None:
        self.client.close()
        self.popen.kill()
        self.popen.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(name: str, *arguments: str) -> Process:
        made.append(Process(tmp_path / name, *arguments))
        return made[-1]

    yield start
    for process in made:
        process.end()


class Service:
    """A rules service in a process, on a port of its own."""

    def __init__(self, start: Callable[..., Process]) -> None:
        self._start = start
        self.port = free_port_now()
        self.url = f"http://127.0.0.1:{self.port}"
        self.begin()
        head = {"Authorization": f"Bearer {ADMIN}"}
        self.client = httpx.Client(base_url=self.url, headers=head, timeout=60, trust_env=False)
        answer = self.client.post("/v1/tokens", json={"name": "nodes", "role": "node"})
        assert answer.status_code == 201, answer.text
        self.token = answer.json()["text"]

    def begin(self) -> None:
        listen = ("--control", f"127.0.0.1:{self.port}", "--data", "kept", "--admin-token", ADMIN)
        self.process = self._start("control", "control", *listen)
        self.process.ready("control")

    def put(self, quota: str) -> None:
        rules = {"version": 1, "rules": [RULE | {"quota": quota}]}
        before = self.client.get("/v1/ruleset")
        known = {"If-None-Match": "*"} if before.status_code == 404 else {"If-Match": before.headers["etag"]}
        answer = self.client.put("/v1/ruleset", json=rules, headers=known)
        assert answer.status_code < 300, answer.text

    def nodes(self) -> dict[str, int]:
        """The version that each node says it decides by."""
        rows = self.client.get("/v1/nodes").json()["nodes"]
        return {row["report"]["node"]: row["report"]["applied"]["ruleset"] for row in rows}


@pytest.fixture
def service(start: Callable[..., Process]) -> Iterator[Service]:
    made = Service(start)
    yield made
    made.client.close()


def wait_for(true: Callable[[], bool], timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until, "it does not become true"
        time.sleep(0.02)


def check(node: Process, user: str = "u") -> dict:
    answer = node.client.post(f"{node.ready('api')}/v1/check?timeout_ms=5000", json={"facts": {"user": user}})
    return answer.json()


@pytest.mark.measured
def test_a_server_of_a_rules_service(start, service):
    """A server started with --control-url decides by the service's rules and says whose, which version, and how it stands; changes are live, also after it was stopped and the service killed."""
    service.put("5/minute")
    node = start(
        "node", "serve", "--api", "127.0.0.1:0", "--control-url", service.url, "--control-token", service.token,
        "--data", "kept", "--node-name", "web1", "--report-interval", "1s",
    )  # fmt: skip
    api = node.ready("api")
    assert (
        f"rules    {service.url} (version 1, 1 rules; a change there is live within a second)" in node.out.read_text()
    )
    assert check(node)["version"] == 1
    ready = node.client.get(f"{api}/readyz").json()
    assert (ready["rules"]["version"], ready["rules"]["source"]) == (1, service.url)
    assert ready["control"]["connected"] is True
    assert ready["control"]["applied"]["ruleset"] == 1
    metrics = node.client.get(f"{api}/metrics").text
    assert "sluicegate_rules_version 1.0" in metrics
    assert "sluicegate_feed_connected 1.0" in metrics

    began = time.monotonic()
    service.put("6/minute")
    wait_for(lambda: check(node)["version"] == 2)
    assert time.monotonic() - began < 5

    node.popen.send_signal(signal.SIGSTOP)
    service.put("7/minute")
    service.process.popen.kill()
    service.process.popen.wait()
    service.begin()
    service.put("8/minute")
    node.popen.send_signal(signal.SIGCONT)
    wait_for(lambda: check(node)["version"] == 4, 40)
    wait_for(lambda: service.nodes() == {"web1": 4})
    assert service.token not in node.err.read_text()
    assert service.token not in node.out.read_text()
    node.popen.terminate()
    assert node.popen.wait(60) == 0


def test_an_end_while_the_start_waits(start, tmp_path):
    """A server that waits for its first rules ends when it is told to."""
    node = start(
        "node", "serve", "--api", "127.0.0.1:0", "--control-url", "http://127.0.0.1:9", "--control-token", "a-token-of-nodes",
        "--data", "kept", "--control-wait", "10m",
    )  # fmt: skip
    wait_for((tmp_path / "node" / "kept" / "feed").exists)
    node.popen.terminate()
    assert node.popen.wait(60) == 0
    assert node.out.read_text() == ""


def test_a_start_without_the_service(start, service):
    """While the service is away a server starts with what it said last, workers too; without that it says what is missing and exits 2, or begins with a file."""
    service.put("5/minute")
    flags = (
        "--api",
        "127.0.0.1:0",
        "--control-url",
        service.url,
        "--control-token",
        service.token,
        "--control-wait",
        "1s",
    )
    first = start("node", "serve", *flags, "--data", "kept")
    assert check(first)["version"] == 1
    service.process.end()
    first.popen.terminate()
    assert first.popen.wait(60) == 0
    again = start("node", "serve", *flags, "--data", "kept")
    assert check(again)["version"] == 1
    assert "started_with_kept_rules" in again.err.read_text()
    ready = again.client.get(f"{again.ready('api')}/readyz").json()
    assert (ready["ready"], ready["control"]["connected"]) == (True, False)
    again.popen.terminate()
    again.popen.wait(60)
    none = start("other", "serve", *flags, "--data", "nothing")
    assert none.popen.wait(60) == 2
    assert "there are no rules to begin with" in none.err.read_text()
    file = start("other", "serve", *flags, "--data", "nothing", "--rules", str(rules_file(none)))
    assert check(file)["rule"] == "mine"
    assert "started_with_first_rules" in file.err.read_text()


def rules_file(process: Process) -> Path:
    path = process.out.parent / "mine.yaml"
    path.write_text("version: 1\nrules:\n  - {name: mine, per: [user], quota: 9/minute}\n")
    return path


def test_workers_of_a_rules_service(start, service):
    """Each of several workers is a node of its own by a name of its own, and all decide by each change."""
    service.put("5/minute")
    node = start(
        "node", "serve", "--workers", "2", "--api", "127.0.0.1:0", "--control-url", service.url, "--control-token", service.token,
        "--node-name", "web1", "--report-interval", "1s", "--data", "kept",
    )  # fmt: skip
    node.ready("api")
    service.put("6/minute")
    wait_for(lambda: service.nodes() == {"web1-1": 2, "web1-2": 2}, 30)
    metrics = node.client.get(f"{node.ready('api')}/metrics").text
    assert 'sluicegate_rules_version{worker="1"} 2.0' in metrics
    assert 'sluicegate_rules_version{worker="2"} 2.0' in metrics
