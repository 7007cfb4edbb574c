"""Requests per second through the gateway, and the latency it adds, in one run beside the same upstream without it.

    python bench/gateway.py [--seconds 3] [--rounds 2]

The gateway has one core, the upstream and the load generator share the other (where there are two). The upstream is as small as
an asyncio server can be: it answers every request with the same 130 bytes. Three rules match each request: a global floor,
one by address and one by path. Throughput is measured by wrk with 64 connections (without wrk it is not measured); rounds
alternate, and the best of each counts.

Latency is measured at half of the gateway's best rate by a generator in this file: requests are started on a clock, in
small bursts every millisecond as independent clients would, whether or not earlier ones were answered (up to 64 at a time),
and timed until the whole answer is there. "Added" is the difference of the percentiles with and without the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import uvloop
from _report import of_rates, of_ratios, tell

CONNECTIONS = 64
LATENCY_CONNECTIONS = 64
RULES = r"""
version: 1
rules:
  - {name: everything, scope: global, quota: 1000000/second}
  - {name: each, per: [ip], quota: 1000000/second}
  - {name: api, match: {path: "/api/**"}, per: [ip, endpoint], quota: 1000000/second}
  - {name: closed, match: {path: /closed}, quota: 0}
"""
UPSTREAM = """
import asyncio, sys, uvloop
ANSWER = b"HTTP/1.1 200 OK\\r\\nDate: Thu, 01 Jan 2026 00:00:00 GMT\\r\\nContent-Type: application/json\\r\\nContent-Length: 27\\r\\n\\r\\n" + b'{"hello":"world","id":8123}'
class Upstream(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(ANSWER * data.count(b"\\r\\n\\r\\n"))
async def main():
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""
GATEWAY = """
import asyncio, gc, sys, uvloop
from sluicegate.doors.gateway import Gateway
from sluicegate.doors.listen import Address, open_listener
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
async def main():
    gateway = Gateway(Limiter.from_rules(load_rules(sys.argv[2], "bench")), [sys.argv[1]])
    listener = await open_listener(Address("127.0.0.1", 0), gateway.protocol_factory)
    gc.collect()
    gc.freeze()  # as `sluicegate` does when it has started
    print(listener.address.port, flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""
REQUEST = (
    b"GET /api/things?page=2 HTTP/1.1\r\nHost: api.example\r\nUser-Agent: bench/1\r\nAccept: application/json\r\n"
    b"Accept-Encoding: gzip\r\nX-Request-Id: 7f3c\r\n\r\n"
)


def pinned(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "-c", str(core)]


@contextlib.contextmanager
def server(code: str, core: int | None, *args: str) -> Iterator[int]:
    """Run one of the servers on its core; gives its port."""
    command = [*pinned(core), sys.executable, "-c", code, *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(10)


def wrk(port: int, path: str, seconds: int, core: int | None) -> float:
    """Requests per second; broken sockets end the run."""
    head = ["User-Agent: bench/1", "Accept: application/json", "Accept-Encoding: gzip", "X-Request-Id: 7f3c"]
    headers = [word for line in head for word in ("-H", line)]
    command = [
        *pinned(core),
        "wrk",
        "-t1",
        f"-c{CONNECTIONS}",
        f"-d{seconds}s",
        *headers,
        f"http://127.0.0.1:{port}{path}",
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Socket errors" in out:
        raise SystemExit(out)
    found = re.search(r"Requests/sec:\s+([\d.]+)", out)
    assert found is not None
    return float(found[1])


class Client(asyncio.Protocol):
    """One connection of the latency generator: a request at a time, timed from its write to the end of its answer."""

    def __init__(self, idle: list[Client], times_ns: list[int]) -> None:
        self.idle, self.times_ns = idle, times_ns
        self.answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.idle.append(self)

    def start(self) -> None:
        self.began_ns = time.perf_counter_ns()
        self.transport.write(REQUEST)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.answer += data
        if self.answer.endswith(b"}"):
            self.times_ns.append(time.perf_counter_ns() - self.began_ns)
            assert self.answer.startswith(b"HTTP/1.1 200"), self.answer
            self.answer = b""
            self.idle.append(self)


async def latencies(port: int, rate: float, seconds: float) -> tuple[list[float], float]:
    """Sorted latencies in ms at ``rate`` requests a second, and the share of starts that found no free connection."""
    loop = asyncio.get_running_loop()
    idle: list[Client] = []
    times_ns: list[int] = []
    for _ in range(LATENCY_CONNECTIONS):
        await loop.create_connection(lambda: Client(idle, times_ns), "127.0.0.1", port)
    began_s = loop.time()
    due, started, missed = 0, 0, 0
    while (elapsed_s := loop.time() - began_s) < seconds:
        target = int(elapsed_s * rate)
        for _ in range(target - due):
            if idle:
                idle.pop(0).start()
                started += 1
            else:
                missed += 1
        due = target
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.2)
    return sorted(ns / 1e6 for ns in times_ns), missed / max(1, due)


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def measure_latency(name: str, port: int, rate: float, seconds: float) -> tuple[float, float]:
    values, missed = uvloop.run(latencies(port, rate, seconds))
    p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
    print(f"{name:<26}p50 {p50:6.3f} ms   p99 {p99:6.3f} ms   ({len(values):,} answers, {missed:.1%} not started)")
    return p50, p99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    pin = len(cores) > 1 and shutil.which("taskset") is not None
    gateway_core, other_core = (cores[0], cores[1]) if pin else (None, None)
    rates: dict[str, list[float]] = {}
    with (
        server(UPSTREAM, other_core) as direct,
        server(GATEWAY, gateway_core, f"http://127.0.0.1:{direct}", RULES) as port,
    ):
        if shutil.which("wrk") is None:
            print("wrk is not installed: no throughput; latency at 2,000 requests/s")
        else:
            for _ in range(options.rounds):
                for name, to, path in (
                    ("upstream alone", direct, "/api/things"),
                    ("through the gateway", port, "/api/things"),
                ):
                    rates.setdefault(name, []).append(wrk(to, path, options.seconds, other_core))
            for name, each in rates.items():
                print(f"{name:<26}{max(each):>10,.0f} requests/s")
            print(
                f"{'refused by the gateway':<26}{wrk_refused(port, options.seconds, other_core):>10,.0f} answers/s (429)"
            )
        proxied = rates.get("through the gateway", [])
        rate = max(proxied, default=4_000.0) / 2
        print(f"at {rate:,.0f} requests/s:")
        if other_core is not None:
            os.sched_setaffinity(0, {other_core})
        without = measure_latency("upstream alone", direct, rate, options.seconds)
        through = measure_latency("through the gateway", port, rate, options.seconds)
        p50, p99 = through[0] - without[0], through[1] - without[1]
        print(f"{'added':<26}p50 {p50:6.3f} ms   p99 {p99:6.3f} ms")
    figures = [
        of_rates("added at half load: p50, ms", [p50], ""),
        of_rates("added at half load: p99, ms", [p99], "", 2.0, at_most=True),
    ]
    if proxied:
        figures.insert(0, of_rates("proxied requests per second", proxied, "", 10_000))
        figures.append(of_ratios("upstream alone: times the requests", rates["upstream alone"], proxied))
    tell(figures)


def wrk_refused(port: int, seconds: int, core: int | None) -> float:
    return wrk(port, "/closed", seconds, core)


if __name__ == "__main__":
    main()
