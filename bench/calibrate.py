"""Measures what the fleet model (``sluicegate sim fleet --calibration FILE``) needs of this machine, and writes it as JSON.

The server's costs are all of its processor time (``INFO cpu``): reading the command, the script, writing the reply; calls of one check and of 32, steps of
leases of one counter and of ten, from fifty connections with one call each at a time, as a fleet sends them. From the two sizes come the cost of a call and of what is in it. The process's costs are the
thread's processor time: a check by a global and a client's rule that the deny cache refuses, and what one with a leased global, a leased endpoint and an exact client's rule costs more,
eight at a time. The way to the server and back is a PING on loopback, on the wall, in the median. Of other rounds the first quartile is taken, because other programs only ever add.

    python bench/calibrate.py [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import hiredis
import uvloop
from _report import Figure, tell
from _servers import cores, redis_server
from lease_script import Holders
from redis_script import BATCH, MINUTE_US, Bench, Words, counter_of

from sluicegate import Facts, Limiter
from sluicegate.algorithms import TokenBucket
from sluicegate.rules.load import load_rules
from sluicegate.simulation import Calibration

ROUNDS = 9
CALLS = 1_000
TOGETHER = 8
CONNECTIONS = 50
LEASED_TOGETHER = 10
RULES = """
version: 1
rules:
  - {name: floor, scope: global, quota: 1000000/second}
  - {name: search, match: {path: /search}, scope: endpoint, quota: 1000000/second}
  - {name: tiers, match: {path: /search}, per: [user], quota: 1000000/second}
  - {name: used, match: {path: /used}, per: [user], quota: 1/hour}
"""
SETTLES_S = 1.3


class Fleet:
    """Fifty connections to one server, each with one call in flight."""

    def __init__(self, bench: Bench, port: int) -> None:
        self.bench = bench
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]

    def round_us(self, commands: Sequence[Words]) -> float:
        """The server's processor time per call."""
        packed = [hiredis.pack_command(command) for command in commands]
        before = self.bench.processor_us()
        for first in range(0, len(packed), CONNECTIONS):
            asked = list(zip(self.sockets, packed[first : first + CONNECTIONS], strict=False))
            for connection, command in asked:
                connection.sendall(command)
            for connection, _ in asked:
                _answer(connection)
        return (self.bench.processor_us() - before) / len(packed)

    def close(self) -> None:
        """Close all."""
        for connection in self.sockets:
            connection.close()


def _answer(connection: socket.socket) -> None:
    """One whole reply, which is no error."""
    reader = hiredis.Reader()
    while (reply := reader.gets()) is False:
        reader.feed(connection.recv(65_536))
    if isinstance(reply, Exception):
        raise reply


def quiet(rounds: Sequence[float]) -> float:
    """The first quartile: other programs only ever add."""
    return statistics.quantiles(rounds, n=4)[0]


def exact_us(bench: Bench, fleet: Fleet) -> tuple[float, float]:
    """(microseconds of a call, and of each check in it)."""
    counter = counter_of("calibration", TokenBucket(1_000_000, 1_000_000, MINUTE_US))
    one, many = [
        quiet([fleet.round_us(commands) for _ in range(ROUNDS)])
        for commands in (bench.calls([counter], 1), bench.calls([counter], BATCH))
    ]
    return _parts(one, many, BATCH)


def lease_us(bench: Bench, fleet: Fleet) -> tuple[float, float]:
    """(microseconds of a step of leases, and of each counter in it)."""
    counter = counter_of("calibration", TokenBucket(1_000_000, 1_000_000, MINUTE_US))
    found = []
    for size in (1, LEASED_TOGETHER):
        holders = Holders(bench, counter.spec, size)
        rounds = [fleet.round_us([holders.command() for _ in range(CALLS // size)]) for _ in range(ROUNDS)]
        found.append(quiet(rounds))
    return _parts(found[0], found[1], LEASED_TOGETHER)


def _parts(one: float, many: float, size: int) -> tuple[float, float]:
    each = (many - one) / (size - 1)
    return max(one - each, 0.01), each


def rtt_us(bench: Bench) -> float:
    """Microseconds of a PING, in the median."""
    times = []
    for _ in range(CALLS):
        begun_ns = time.perf_counter_ns()
        bench.client.ping()
        times.append((time.perf_counter_ns() - begun_ns) / 1_000)
    return statistics.median(times)


def _per_call(work: Callable[[], int]) -> float:
    rounds = []
    work()
    for _ in range(ROUNDS):
        begun_ns = time.thread_time_ns()
        calls = work()
        rounds.append((time.thread_time_ns() - begun_ns) / calls / 1_000)
    return quiet(rounds)


async def _settled(limiter: Limiter) -> None:
    """Until the shared counters are leased, and the counters of ``/used`` are used up and known to be."""
    until = time.monotonic() + SETTLES_S
    while time.monotonic() < until:
        await limiter.acheck(Facts(method="GET", path="/search", user="user:0"))
    for number in range(CALLS):
        for _ in range(2):
            await limiter.acheck(Facts(method="GET", path="/used", user=f"user:{number}"))


def process_us(port: int) -> tuple[float, float]:
    """Microseconds of a process: (a check that is refused in it, a check that asks the Redis at ``port``, several at a time)."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        limiter = Limiter.from_rules(
            load_rules(RULES, "calibration"), store=f"redis://127.0.0.1:{port}?timeout_ms=5000"
        )
        runner.run(_settled(limiter))

        async def client(path: str, first: int) -> None:
            for number in range(first, CALLS, TOGETHER):
                await limiter.acheck(Facts(method="GET", path=path, user=f"user:{number}"))

        async def clients(path: str) -> None:
            await asyncio.gather(*[client(path, first) for first in range(TOGETHER)])

        def work(path: str) -> int:
            runner.run(clients(path))
            return CALLS

        local = _per_call(lambda: work("/used"))
        ask = _per_call(lambda: work("/search"))
        runner.run(limiter.aclose())
    return local, max(ask - local, 0.01)


def measured() -> Calibration:
    """All costs of this machine."""
    client, server = cores()
    if client is not None:
        os.sched_setaffinity(0, {client})
    with redis_server(server) as port:
        bench = Bench(port)
        fleet = Fleet(bench, port)
        exact_call, exact_check = exact_us(bench, fleet)
        lease_call, lease_item = lease_us(bench, fleet)
        fleet.close()
        local, ask = process_us(port)
        about = bench.client.info("server")
        return Calibration(
            machine=_machine(),
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            server=f"Redis {about['redis_version']}",
            python=f"CPython {platform.python_version()}",
            local_check_us=local,
            ask_us=ask,
            exact_call_us=exact_call,
            exact_check_us=exact_check,
            lease_call_us=lease_call,
            lease_item_us=lease_item,
            rtt_us=rtt_us(bench),
        )


def _machine() -> str:
    """The processor's name, and how many of it: nothing that tells one machine from another of its kind."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="costs for the fleet model")
    parser.add_argument("--out", type=Path, help="file to write; standard output where absent")
    out: Path | None = parser.parse_args().out
    found = measured()
    numbers = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in ((name, getattr(found, name)) for name in found.__slots__)
    }
    tell([Figure(name, value, "µs", value, value) for name, value in numbers.items() if isinstance(value, float)])
    text = json.dumps(numbers, indent=2) + "\n"
    if out is None:
        print(text)
    else:
        out.write_text(text)


if __name__ == "__main__":
    main()
