"""How long after a change was kept the last of 20 nodes decides by it, and whether nodes keep up with 100 changes in a minute.

A rules service with 200 rules runs in this process, on SQLite for the polls and Redis and on PostgreSQL for its own way; 20 nodes run in four
processes, each with its own limiter, poll and reports. One change is one PATCH of one rule. The time is taken from when its transaction was kept to
when the last node has put it in service; of each way there are 50 changes, some tenths of a second apart. For Redis and PostgreSQL the nodes do not
poll, so that nothing but the message can tell them. All 20 nodes compile the 200 rules on the processors of one machine: a fleet has more.

Without ``redis-server`` the way by Redis is left out, and that by PostgreSQL without ``BENCH_POSTGRESQL``, the URL of an empty database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from _report import Figure, tell

from sluicegate.app.feed.settings import FeedSettings
from sluicegate.app.feed.start import Feed
from sluicegate.clock import SystemClock
from sluicegate.control.http.app import build_app
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.model import ABSENT, Actor, Role
from sluicegate.control.push import RedisPublisher
from sluicegate.control.server import ControlServer
from sluicegate.control.service import RulesService
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.model import RuleSet
from sluicegate.rules.watched import RulesState

PROCESSES, NODES_EACH = 4, 5
NODES = PROCESSES * NODES_EACH
RULES = 200
CHANGES = 50
BURST = 100
LISTENING = 0
PAUSE_S = 0.1
GOAL_MS = 1_000.0
TOKEN = "a-token-of-the-nodes"
EDITOR = Actor("bench", "local", role=Role.EDITOR)


async def nodes(url: str, push: str, polls: str, directory: str) -> None:
    """One process of nodes: says which version each has put in service, and when."""
    made = []
    for number in range(NODES_EACH):
        limiter = Limiter.from_rules(RuleSet((), version=0))
        state = RulesState()
        name = f"{os.getpid()}-{number}"
        settings = FeedSettings(url=url, token=TOKEN, push=push, node=name)
        data = Path(directory) / name
        feed = Feed(settings, limiter, SystemClock(), state=state, data=data, files=data, store="memory://")
        tell_of(limiter)
        if polls == "no":
            feed.node._poll = asyncio.Event().wait  # type: ignore[method-assign,assignment]
            feed.node._report = asyncio.Event().wait  # type: ignore[method-assign,assignment]
        await feed.begin()
        made.append(feed)
    running = asyncio.gather(*(feed.node.run() for feed in made))
    while not all(feed.node.hints is None or feed.node.hints.connected for feed in made):
        await asyncio.sleep(0.01)
    for _ in made:
        print(LISTENING, time.monotonic(), flush=True)
    await running


def tell_of(limiter: Limiter) -> None:
    """Print what is put in service, after it is."""
    apply = limiter.apply

    def and_tell(rules: RuleSet | str) -> None:
        apply(rules)
        sys.stdout.write(f"{limiter.version} {time.monotonic()}\n")
        sys.stdout.flush()

    limiter.apply = and_tell  # type: ignore[method-assign]


class Fleet:
    """The processes of nodes, and what they have said: by version, when each node had it."""

    def __init__(self) -> None:
        self.live: dict[int, list[float]] = {}
        self._processes: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []

    async def start(self, url: str, push: str, polls: str, directory: str) -> None:
        for _ in range(PROCESSES):
            command = [sys.executable, __file__, "nodes", url, push, polls, directory]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            self._processes.append(process)
            self._readers.append(asyncio.create_task(self._read(process)))
        await self.have(LISTENING, 60)

    async def have(self, version: int, timeout_s: float = 30) -> float:
        """When the last node had this version."""
        async with asyncio.timeout(timeout_s):
            while len(self.live.get(version, ())) < NODES:
                await asyncio.sleep(0.002)
        return max(self.live[version])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None, "it is a pipe"
        async for line in process.stdout:
            version, at = line.split()
            self.live.setdefault(int(version), []).append(float(at))

    async def stop(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving(url: str, publisher: RedisPublisher | None) -> AsyncIterator[tuple[RulesService, str]]:
    """A rules service with its rules, and where it listens."""
    service = await RulesService.open(url, SystemClock(), publisher=publisher)
    rules = [
        {"name": f"r{n}", "match": {"path": f"/api/{n}/**"}, "per": ["user"], "quota": "60/minute"}
        for n in range(RULES)
    ]
    await service.rulesets.put_ruleset(EDITOR, {"version": 1, "rules": rules}, expect=ABSENT)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = ControlServer(build_app(service, ApiSettings(node_token=TOKEN), SystemClock()), sock)
    await server.start()
    try:
        yield service, f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await server.close(1)
        await service.close()


async def latencies(service: RulesService, fleet: Fleet) -> list[float]:
    """Milliseconds from a change to the last node, change by change."""
    kept: list[float] = []
    service.hub.observers.append(lambda _revisions: kept.append(time.monotonic()))
    found = []
    for number in range(CHANGES):
        kept.clear()
        version = number + 2
        changed: dict[str, Any] = {"quota": f"{61 + number}/minute"}
        await service.rulesets.patch_rule(EDITOR, f"r{number % RULES}", changed, expect=await expected(service, number))
        last = await fleet.have(version)
        found.append((last - kept[0]) * 1_000)
        await asyncio.sleep(PAUSE_S)
    return found


async def expected(service: RulesService, number: int) -> int:
    """The version at which the rule was changed last."""
    current = await service.rulesets.current()
    assert current is not None, "it has rules"
    return current.rule(f"r{number % RULES}")[1]


async def burst(service: RulesService, fleet: Fleet) -> tuple[float, int]:
    """100 changes in a minute, made whether or not the nodes follow: how long after the last one all have it, and versions no node has missed."""
    began = time.monotonic()
    first = (await service.revisions()).ruleset
    for number in range(BURST):
        await service.rulesets.patch_rule(
            EDITOR, f"r{number % RULES}", {"quota": f"{500 + number}/minute"}, expect=await expected(service, number)
        )
        await asyncio.sleep(max(0.0, began + (number + 1) * 60 / BURST - time.monotonic()))
    last = first + BURST
    kept = time.monotonic() - 60 / BURST
    live = await fleet.have(last)
    seen = sum(len(fleet.live.get(version, ())) == NODES for version in range(first + 1, last + 1))
    return (live - kept) * 1_000, seen


async def measure(
    way: str, url: str, push: str, *, polls: str, publisher: RedisPublisher | None = None
) -> list[Figure]:
    """One way of telling."""
    fleet = Fleet()
    with tempfile.TemporaryDirectory() as directory:
        async with serving(url, publisher) as (service, address):
            try:
                await fleet.start(address, push, polls, directory)
                found = sorted(await latencies(service, fleet))
                figures = figures_of(way, found)
                if way == "poll":
                    late_ms, seen = await burst(service, fleet)
                    figures.append(
                        Figure(
                            "100 changes in a minute, all of 20 nodes, after the last",
                            late_ms,
                            "ms",
                            late_ms,
                            late_ms,
                            GOAL_MS,
                            at_most=True,
                        )
                    )
                    figures.append(
                        Figure("100 changes in a minute, versions that all nodes served", seen, "", seen, seen)
                    )
            finally:
                await fleet.stop()
    return figures


def figures_of(way: str, found: list[float]) -> list[Figure]:
    """Median and 99th percentile of one way."""
    p99 = found[min(len(found) - 1, round(0.99 * len(found)) - 1)]
    quarter = len(found) // 4
    return [
        Figure(
            f"change to last of 20 nodes, {way}, median",
            statistics.median(found),
            "ms",
            found[quarter],
            found[-quarter],
        ),
        Figure(f"change to last of 20 nodes, {way}, p99", p99, "ms", found[0], found[-1], GOAL_MS, at_most=True),
    ]


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """A Redis of our own, where there is one."""
    path = directory / "redis.sock"
    process = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    try:
        while not path.exists():
            assert process.poll() is None, "it does not start"
            time.sleep(0.02)
        yield f"redis+unix://{path}"
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """All ways for which there is a server."""
    figures = asyncio.run(measure("poll", f"sqlite:///{tempfile.mkdtemp()}/control.db", "off", polls="yes"))
    if shutil.which("redis-server"):
        with tempfile.TemporaryDirectory() as name, redis_server(Path(name)) as url:

            async def over_redis() -> list[Figure]:
                publisher = RedisPublisher(url, "default")
                try:
                    return await measure("Redis", f"sqlite:///{name}/control.db", url, polls="no", publisher=publisher)
                finally:
                    await publisher.close()

            figures += asyncio.run(over_redis())
    url = os.environ.get("BENCH_POSTGRESQL")
    if url:
        figures += asyncio.run(measure("PostgreSQL", url, url, polls="no"))
    tell(figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["nodes"]:
        asyncio.run(nodes(*sys.argv[2:]))
    else:
        main()
