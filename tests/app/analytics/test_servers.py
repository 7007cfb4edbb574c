"""Real servers: what they told of their decisions is what they decided."""

from __future__ import annotations

import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.model import Span

WAIT_S = 60.0
# Each batch over a connection of its own, so that every worker gets some.
CLOSE = {"Connection": "close"}
EVER = Span(0, 2**52)
DECIDED = ("sluicegate_allowed_total", "sluicegate_refused_total")
RULES = """\
version: 1
rules:
  - name: login
    match: {methods: [POST], path: /login}
    per: [ip]
    quota: 5/minute
"""


def until(met: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)


class Server:
    """``sluicegate serve`` on a free port."""

    def __init__(self, folder: Path, *arguments: str, file_bytes_max: int | None = None) -> None:
        (folder / "rules.yaml").write_text(RULES)
        self.home = EmbeddedHome(folder / "data" / "analytics.db")
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}

        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluicegate", "serve", "--api", "127.0.0.1:0", "--rules", "rules.yaml",
                 "--data", "data", "--log-format", "json", *arguments],
                stdout=out, stderr=err, cwd=folder, env=environment,
            )  # fmt: skip
        if file_bytes_max is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
        self.client = httpx.Client(timeout=60)
        until(lambda: "\nrules " in self.out.read_text() or self.process.poll() is not None, "its listeners")
        found = re.search(r"^api +(\S+)", self.out.read_text(), re.MULTILINE)
        assert found is not None, self.err.read_text()
        self.url = found[1]

    def decide(self, times: int, client: int = 0) -> list[bool]:
        """Checks of one client, in batches, one after the other."""
        allowed: list[bool] = []
        for start in range(0, times, 50):
            facts = {"method": "POST", "path": "/login", "ip": f"192.0.2.{client}"}
            checks = [{"facts": facts}] * min(50, times - start)
            answer = self.client.post(f"{self.url}/v1/check/batch?timeout_ms=5000", json=checks, headers=CLOSE)
            assert answer.status_code == 200, answer.text
            allowed += [each["allowed"] for each in answer.json()]
        return allowed

    def metric(self, *names: str) -> int:
        """The sum of metrics, over their labels."""
        text = self.client.get(f"{self.url}/metrics").text
        lines = [line for line in text.splitlines() if line.startswith(names)]
        return int(sum(float(line.rpartition(" ")[2]) for line in lines))

    def told(self) -> int:
        """Decisions that are in the home."""
        return sum(row.decisions for row in self.home.requests(EVER))

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT_S)

    def end(self) -> None:
        self.client.close()
        self.home.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers in one folder, and ends them."""
    started: list[Server] = []

    def start(*arguments: str, **more: Any) -> Server:
        started.append(Server(tmp_path, *arguments, **more))
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "4"])
def test_every_decision_is_told(serve: Callable[..., Server], workers: str) -> None:
    """After a SIGTERM under load the home has exactly as many decisions as were answered, by the same outcomes."""
    server = serve("--workers", workers)
    answers = [allowed for client in range(1, 25) for allowed in server.decide(20, client)]
    assert server.stop() == 0, server.err.read_text()
    rows = server.home.requests(EVER, by=("outcome",))
    assert {row.outcome: row.decisions for row in rows} == {"allowed": sum(answers), "denied": answers.count(False)}
    assert sum(row.times for row in server.home.offenders(EVER, rule="", limit=100).rows) == answers.count(False)


@pytest.mark.slow
def test_what_the_metrics_say_is_told(serve: Callable[..., Server]) -> None:
    """Decisions by ``/metrics`` and decisions in the home are the same, after a restart in the same home too."""
    total = 0
    for _ in range(2):
        server = serve()
        server.decide(120)
        until(lambda: server.metric("sluicegate_analytics_decisions_recorded_total") == 120, "the last second")  # noqa: B023
        total += server.metric(*DECIDED)
        assert server.told() == total
        assert server.stop() == 0
    assert (server.told(), total) == (240, 240)


@pytest.mark.slow
def test_a_process_that_is_killed(serve: Callable[..., Server]) -> None:
    """What was told before a SIGKILL is there and whole, and nothing is there that was not decided."""
    server = serve()
    server.decide(100)
    until(lambda: server.metric("sluicegate_analytics_decisions_recorded_total") == 100, "the first second")
    server.decide(30, client=2)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(WAIT_S)
    assert 100 <= server.told() <= 130
    connection = sqlite3.connect(server.home.path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    again = serve()
    again.decide(10, client=3)
    assert again.stop() == 0
    assert 110 <= again.told() <= 140


@pytest.mark.slow
def test_a_full_disk_changes_no_answer(serve: Callable[..., Server]) -> None:
    """Where no file can grow, requests are decided as ever, and the log says once that nothing is kept."""
    server = serve(file_bytes_max=16_384)
    assert server.decide(20) == [True] * 5 + [False] * 15
    until(lambda: server.metric("sluicegate_analytics_sink_errors_total") >= 2, "a second that is not kept")
    assert server.decide(20, client=2) == [True] * 5 + [False] * 15
    assert server.stop() == 0
    assert server.err.read_text().count('"analytics_failing"') == 1


@pytest.mark.slow
def test_a_locked_home_changes_no_answer(serve: Callable[..., Server]) -> None:
    """While another process holds the file requests are decided; when it lets go all of them are told."""
    server = serve()
    server.decide(10)
    until(lambda: server.metric("sluicegate_analytics_decisions_recorded_total") == 10, "the first second")
    other = sqlite3.connect(server.home.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert server.decide(20, client=2) == [True] * 5 + [False] * 15
    until(lambda: server.metric("sluicegate_analytics_sink_errors_total") >= 1, "a second that is not kept")
    assert server.decide(20, client=3) == [True] * 5 + [False] * 15
    assert server.told() == 10
    other.execute("ROLLBACK")
    other.close()
    until(lambda: server.told() == 50, "what waited")
    assert server.stop() == 0


@pytest.mark.slow
def test_a_file_of_something_else(serve: Callable[..., Server], tmp_path: Path) -> None:
    """A file that is no home of ours is left as it is; requests are decided, and what is not kept is counted."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "analytics.db").write_bytes(b"my diary " * 500)
    server = serve()
    assert server.decide(20) == [True] * 5 + [False] * 15
    until(lambda: server.metric('sluicegate_analytics_dropped_total{kind="decisions"}') == 20, "what is dropped")
    assert server.stop() == 0
    assert (tmp_path / "data" / "analytics.db").read_bytes() == b"my diary " * 500
    assert server.err.read_text().count('"analytics_failing"') == 1
