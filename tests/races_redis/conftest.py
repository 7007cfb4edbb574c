"""Eight processes that race, started once for all tests of this folder, and the servers they race on."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

PROCESSES = 8
CONNECTIONS = 50
AHEAD_S = 0.004
"""How long before a round its start is announced: the processes must have read it by then."""


class Check(NamedTuple):
    """One check of a round. Times are of the machine's monotonic clock."""

    process: int
    connection: int
    user: str
    path: str
    allowed: bool
    degraded: bool
    began_us: int
    ended_us: int


class Round(NamedTuple):
    """All checks of a round."""

    checks: list[Check]

    @property
    def admitted(self) -> int:
        return sum(check.allowed for check in self.checks)

    @property
    def degraded(self) -> int:
        return sum(check.degraded for check in self.checks)

    def admitted_by(self, field: str) -> Counter[str]:
        """Admitted checks by user or by path; those with none are there too."""
        found: Counter[str] = Counter({getattr(check, field): 0 for check in self.checks})
        found.update(getattr(check, field) for check in self.checks if check.allowed)
        return found

    def together(self) -> tuple[int, int]:
        """The most (connections, processes) that had a check under way at one moment."""
        events = sorted(
            chain(
                ((check.began_us, 1, check) for check in self.checks),
                ((check.ended_us, 0, check) for check in self.checks),
            )
        )
        connections: Counter[int] = Counter()
        processes: Counter[int] = Counter()
        most = (0, 0)
        for _, begins, check in events:
            for counter, name in ((connections, check.connection), (processes, check.process)):
                counter[name] += 1 if begins else -1
                if not counter[name]:
                    del counter[name]
            most = max(most[0], len(connections)), max(most[1], len(processes))
        return most


class Racers:
    """The processes. Half of them check in threads, half on an event loop."""

    def __init__(self) -> None:
        program = str(Path(__file__).with_name("worker.py"))
        self._processes = [
            subprocess.Popen(
                [sys.executable, program, "threads" if number % 2 else "tasks"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for number in range(PROCESSES)
        ]  # fmt: skip

    def open(self, url: str, rules: str, *, skews_us: Sequence[int] = (0,), near: bool = False) -> None:
        """Make ``CONNECTIONS`` limiters, each with a connection; process i has the clock error ``skews_us[i % len]``.

        ``near``: they answer from leases and from what they remember; else each check is a call of the store.
        """
        numbers = iter(range(CONNECTIONS))
        orders = []
        for process in range(PROCESSES):
            share = CONNECTIONS // PROCESSES + (process < CONNECTIONS % PROCESSES)
            own = list(islice(numbers, share))
            skew_us = skews_us[process % len(skews_us)]
            orders.append({"do": "open", "url": url, "rules": rules, "numbers": own, "skew_us": skew_us, "near": near})
        assert sum(self._ask(orders)) == CONNECTIONS

    def round(self, users: Sequence[str], paths: Sequence[str], calls: int) -> Round:
        """Every connection makes ``calls`` checks, and all begin at one moment."""
        order = {"do": "round", "users": users, "paths": paths, "calls": calls, "at_s": time.monotonic() + AHEAD_S}
        answers = self._ask([order] * PROCESSES)
        found = Round([Check(process, *row) for process, rows in enumerate(answers) for row in rows])
        assert len(found.checks) == CONNECTIONS * calls
        return found

    def leave(self) -> None:
        """Close all connections."""
        self._ask([{"do": "close"}] * PROCESSES)

    def stop(self) -> None:
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            process.stdout.close()

    def _ask(self, orders: Sequence[dict[str, Any]]) -> list[Any]:
        for process, order in zip(self._processes, orders, strict=True):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self._processes]


@pytest.fixture(scope="session")
def _processes() -> Iterator[Racers]:
    found = Racers()
    yield found
    found.stop()


@pytest.fixture
def racers(_processes: Racers) -> Iterator[Racers]:
    """The processes, without connections before and after."""
    yield _processes
    _processes.leave()


class Raced(NamedTuple):
    """Where a race takes place. ``url`` has a deadline so generous that no check is decided without the store."""

    url: str
    cluster: bool

    @property
    def connections(self) -> int:
        """How many connections the (first) server has."""
        port = int(self.url.split("?")[0].split(",")[0].rpartition(":")[2])
        with contextlib.closing(redis.Redis(port=port)) as client:
            return len(client.client_list(_type="normal"))


@pytest.fixture
def raced(request, servers, clusters, require_program) -> Raced:
    """The server or the cluster of three masters that a test names, empty."""
    kind, _, cluster = request.param.partition("-")
    found = (clusters if cluster else servers).empty(kind, require_program)
    return Raced(found.url.replace("timeout_ms=5000", "timeout_ms=20000"), bool(cluster))


@pytest.fixture(params=["redis", "valkey"])
def server(request, servers, require_program):
    """Each server, empty."""
    return servers.empty(request.param, require_program)
