"""Lets faults happen to a store while a limiter or a server is under load, several at a time, and keeps the reports.

``SLUICEGATE_FAULT_SECONDS`` says how long each fault lasts; where it is given, a table of the reports is printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
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
RECORDINGS_MAX = 3
RECORDING_S_MAX = 100.0
"""A recording takes some seven seconds. Whoever takes so long hangs."""
BY_NAME = {fault.name: fault for fault in FAULTS}
REPORTS: dict[str, Report] = {}
AGAIN: dict[str, int] = {}
"""How often faults were recorded whose first recording was not good enough."""


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
            watch = threading.Timer(RECORDING_S_MAX, process.kill)
            watch.start()
            try:
                moments = conduct(scene, url, play, place.seconds, process)
            finally:
                watch.cancel()
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
    # What ends by itself may have ended before whoever conducts had a turn.
    healing_us = min(now_us(), fault_us + int(seconds * 1e6)) if scene.fault.ends_itself else now_us()
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


class Turns:
    """Who records: several at a time, or one alone, for whom the others wait before they begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._recording = 0
        self._alone = 0

    @contextlib.contextmanager
    def beside_others(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._recording += 1
        try:
            yield
        finally:
            with self._changed:
                self._recording -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._alone += 1
            self._changed.wait_for(lambda: not self._recording)
        try:
            yield
        finally:
            with self._changed:
                self._alone -= 1
                self._changed.notify_all()


class Recordings:
    """What was recorded of one fault: once, and once more by ``again`` whenever a verdict about time needs it."""

    def __init__(self, scene: Scene, first: Report, again: Callable[[], Report]) -> None:
        self.scene = scene
        self.all = [first]
        self._again = again

    @property
    def fault(self) -> Fault:
        """What the fault may do."""
        return self.scene.fault

    def every(self, verdict: Callable[[Report, Fault], None]) -> None:
        """A verdict on what was decided, which must hold in each recording."""
        for report in self.all:
            verdict(report, self.fault)

    def some(self, verdict: Callable[[Report, Fault], None]) -> None:
        """A verdict on how long something took, which must hold in one of at most ``RECORDINGS_MAX``.

        The machine may stop any process for a second, and then every duration is its own: no bound tells the two apart. A defect of the
        product shows in each recording. The second and the third are made while no other is.
        """
        for number in range(RECORDINGS_MAX):
            if number == len(self.all):
                self.all.append(self._again())
                REPORTS[self.scene.name] = self.all[-1]
                AGAIN[self.scene.name] = len(self.all)
            try:
                verdict(self.all[number], self.fault)
            except AssertionError:
                if number + 1 == RECORDINGS_MAX:
                    raise
            else:
                return


class Happenings:
    """The faults that the chosen tests are about, a few at a time. They begin when the first test asks."""

    def __init__(self, names: list[str], folder: Callable[[str], Path], pool: ThreadPoolExecutor) -> None:
        self._names, self._folder, self._pool = names, folder, pool
        self._futures: dict[str, Future[Report]] = {}
        self._scenes: dict[str, Scene] = {}
        self._found: dict[str, Recordings] = {}
        self._turns = Turns()

    def recordings(self, name: str, program: Callable[[str], str]) -> Recordings:
        if not self._futures:
            self._begin(program)
        if name not in self._found:
            scene, first = self._scenes[name], self._futures[name].result(RECORDING_S_MAX)
            self._found[name] = Recordings(scene, first, lambda: self._again(scene, program))
        return self._found[name]

    def _begin(self, program: Callable[[str], str]) -> None:
        for number, chosen in enumerate(self._names):
            kind = ("redis", "valkey")[number % 2]
            scene = Scene(chosen, self._folder("fault"), kind, ("asyncio", "uvloop")[number // 2 % 2])
            if scene.fault.names:
                # The lookup of names is replaced in Python, which uvloop does not use.
                scene = scene._replace(loop="asyncio")
            self._scenes[chosen] = scene
            self._futures[chosen] = self._pool.submit(self._record, scene, program)

    def _record(self, scene: Scene, program: Callable[[str], str]) -> Report:
        with self._turns.beside_others():
            return happen(scene, program)

    def _again(self, scene: Scene, program: Callable[[str], str]) -> Report:
        with self._turns.alone():
            return happen(scene._replace(folder=self._folder("fault")), program)


@pytest.fixture(scope="session")
def _happenings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Happenings]:
    chosen = [getattr(item, "callspec", None) for item in request.session.items]
    # Each once, in the order of the tests.
    names = dict.fromkeys(spec.params["recordings"] for spec in chosen if spec and "recordings" in spec.params)
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield Happenings(list(names), tmp_path_factory.mktemp, pool)
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def recordings(
    request: pytest.FixtureRequest, _happenings: Happenings, require_program: Callable[[str], str]
) -> Recordings:
    """What was recorded of the fault that the test is about."""
    for binary in (*BINARIES.values(), "redis-cli"):
        require_program(binary)
    found = _happenings.recordings(request.param, lambda binary: str(shutil.which(binary)))
    REPORTS.setdefault(request.param, found.all[0])
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which faults were recorded again; and what was measured, where a long run was asked for."""
    for name, times in AGAIN.items():
        terminalreporter.write_line(f"fault recorded again: {name} ({times} recordings)")
    if REPORTS and ASKED:
        terminalreporter.write_line(HEADING)
        for found in REPORTS.values():
            terminalreporter.write_line(found.line())
