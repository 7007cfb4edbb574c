"""Lets faults happen to a store while a limiter or a server is under load, several at a time, and keeps the reports.

``SLUICEGATE_FAULT_SECONDS`` says how long each fault lasts; where it is given, a table of the reports is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from fault_report import HEADING, PATHS, RULES, Report, Row, Size, Tick
from real_servers import BINARIES
from store_faults import FAULTS, Fault, Place

from sluicegate.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

ASKED = os.environ.get("SLUICEGATE_FAULT_SECONDS", "")
SECONDS = float(ASKED or 3)
BEFORE_S, AFTER_S = 0.7, 2.6
RATE, SERVER_RATE = 500, 300
AT_ONCE = 4
BY_NAME = {fault.name: fault for fault in FAULTS}
REPORTS: dict[str, Report] = {}


class Scene(NamedTuple):
    """Who is under load, and where what happens. ``name``: of the fault, after ``server-`` where it happens to a server's store."""

    name: str
    folder: Path
    kind: str
    loop: str

    @property
    def server(self) -> bool:
        return self.name.startswith("server-")

    @property
    def fault(self) -> Fault:
        return BY_NAME[self.name.removeprefix("server-")]


def happen(scene: Scene, program: Callable[[str], str]) -> Report:
    """Let one fault happen."""
    fault = scene.fault
    place = Place(scene.folder, scene.kind, program, SECONDS if fault.seconds is None else fault.seconds)
    try:
        play = fault.play(place)
        url = str(next(play))
        arguments = [sys.executable, str(Path(__file__).with_name("load.py"))]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                moments = conduct(scene, url, play, place.seconds, process)
            finally:
                process.kill()
        found = json.loads((scene.folder / "result").read_text())
        return Report(
            scene.name,
            scene.loop,
            *moments,
            [Row(*row) for row in found["checks"]],
            [Row(*row) for row in found["calls"]],
            [Tick(*row) for row in found["ticks"]],
            [Size(*row) for row in found["sizes"]],
            charges(url),
        )
    finally:
        place.close()


def conduct(
    scene: Scene, url: str, play: Iterator[str | None], seconds: float, process: subprocess.Popen[str]
) -> tuple[int, int, int, int, int, int]:
    """Load, fault, fault in full, its last moment, end of the fault, end of the load: when each was."""
    settings = {
        "url": url,
        "rules": RULES,
        "paths": PATHS,
        "rate": SERVER_RATE if scene.server else RATE,
        "seconds_max": seconds + 30,
        "loop": scene.loop,
        "names": scene.fault.names,
        "server": scene.server,
        "result": str(scene.folder / "result"),
    }
    say(process, json.dumps(settings))
    hear(process, "ready")
    say(process, "go")
    began_us = now_us()
    time.sleep(BEFORE_S)
    # Between the two it comes about.
    fault_us = now_us()
    next(play)
    set_us = now_us()
    time.sleep(seconds)
    healing_us = now_us()
    next(play)
    say(process, "heal")
    healed_us = now_us()
    time.sleep(AFTER_S)
    say(process, "stop")
    ended_us = now_us()
    hear(process, "done")
    return began_us, fault_us, set_us, healing_us, healed_us, ended_us


def charges(url: str) -> dict[tuple[str, str], int]:
    """What stands in the counters, by rule and user."""
    url = re.sub(r"timeout_ms=\d+", "timeout_ms=5000", url.replace("redis.test", "127.0.0.1"))
    found = {}
    with Limiter.from_rules(load_rules(RULES.encode(), "rules.yaml"), url) as limiter:
        for user in ("async", "sync"):
            decision = limiter.peek(Facts(path="/all", user=user))
            assert not decision.degraded
            for result in decision.results:
                found[result.rule, user] = result.limit - result.remaining
    return found


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == line + "\n"


def now_us() -> int:
    return time.monotonic_ns() // 1_000


class Happenings:
    """The faults that the chosen tests are about, a few at a time. They begin when the first test asks."""

    def __init__(self, names: list[str], folder: Callable[[str], Path], pool: ThreadPoolExecutor) -> None:
        self._names, self._folder, self._pool = names, folder, pool
        self._futures: dict[str, Future[Report]] = {}

    def report(self, name: str, program: Callable[[str], str]) -> Report:
        if not self._futures:
            for number, chosen in enumerate(self._names):
                kind = ("redis", "valkey")[number % 2]
                scene = Scene(chosen, self._folder("fault"), kind, ("asyncio", "uvloop")[number // 2 % 2])
                if scene.fault.names:
                    # The lookup of names is replaced in Python, which uvloop does not use.
                    scene = scene._replace(loop="asyncio")
                self._futures[chosen] = self._pool.submit(happen, scene, program)
        return self._futures[name].result()


@pytest.fixture(scope="session")
def _happenings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Happenings]:
    chosen = [getattr(item, "callspec", None) for item in request.session.items]
    # Each once, in the order of the tests.
    names = dict.fromkeys(spec.params["report"] for spec in chosen if spec is not None and "report" in spec.params)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield Happenings(list(names), tmp_path_factory.mktemp, pool)


@pytest.fixture
def report(request: pytest.FixtureRequest, _happenings: Happenings, require_program: Callable[[str], str]) -> Report:
    """The report of the fault that the test is about."""
    for binary in (*BINARIES.values(), "redis-cli"):
        require_program(binary)
    found = REPORTS[request.param] = _happenings.report(request.param, lambda binary: str(shutil.which(binary)))
    return found


@pytest.fixture
def fault(report: Report) -> Fault:
    """What the fault may do."""
    return BY_NAME[report.name.removeprefix("server-")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured, where a long run was asked for."""
    if REPORTS and ASKED:
        terminalreporter.write_line(HEADING)
        for found in REPORTS.values():
            terminalreporter.write_line(found.line())
