"""Calls per second of Envoy's rate limit service: our shell on ngh2 beside the gRPC project's server with the same handlers.

    python bench/envoy_rls.py [--calls 200000] [--rounds 3]

One server on one core; the load (h2load, 8 connections with 16 calls under way on each, one key) and Redis share the other. Each call
is decided by two rules and answered in full: status, limit, remaining, reset, four header fields, metadata. Rounds alternate between the servers.

h2load counts HTTP statuses, and a gRPC error is a 200 too. So the server must say itself that it answered as many calls with OK as h2load
counts, that all were allowed and none was decided without the store; and a witness, a client of its own on 10,000 keys that runs before, during and after the
load, reads every field of each of its answers. One answer that is wrong ends the run.

Printed: calls a second, those per second of the server's processor time, and the ratio to grpcio. The wall figures need a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _report import Figure, of_rates, of_ratios, tell
from _servers import cores, pinned, redis_server
from http_check import cpu_s
from ngh2 import Connection, DataReceived, Role, StreamClosed, TrailersReceived

from sluicegate.doors.grpc.protobuf import delimited, fields

KEYS = 10_000
CONNECTIONS, STREAMS = 8, 16
WARM_UP_CALLS = 2_000
PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
RULES = """
version: 1
rules:
  - {name: floor, quota: 5000000/second}
  - {name: per-key, match: {domain: edge}, per: [descriptor.api_key], quota: 1000000/second}
"""

SERVER = """
import asyncio, gc, json, signal, sys, uvloop
from sluicegate.clock import SystemClock
from sluicegate.doors.grpc.door import GrpcDoor
from sluicegate.doors.listen import Address
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
async def main():
    engine, store, rules = sys.argv[1:]
    clock = SystemClock()
    limiter = Limiter.from_rules(load_rules(rules, "rules"), store, clock=clock)
    if not await limiter.awarm():
        raise SystemExit("the store is not there")
    door = GrpcDoor(limiter, clock=clock, ready=lambda: (True, {}), engine=engine)
    listener = await door.open(Address("127.0.0.1", 0))
    gc.collect()
    gc.freeze()  # as `sluicegate` does when it has started
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(listener.address.port, flush=True)
    await stop.wait()
    stats = limiter.stats
    counts = {"calls": door.stats.calls["ShouldRateLimit"], "allowed": stats.allowed, "degraded": stats.degraded}
    print(json.dumps(counts), flush=True)
    await door.connections.drain(1)
uvloop.run(main())
"""


def message(key: str) -> bytes:
    """A RateLimitRequest with one descriptor, framed for gRPC."""
    entry = delimited(1, b"api_key") + delimited(2, key.encode())
    made = delimited(1, b"edge") + delimited(2, delimited(1, entry))
    return b"\0" + len(made).to_bytes(4, "big") + made


class Server:
    """A server that runs; ``end`` stops it and gives its counts."""

    def __init__(self, engine: str, store: str, core: int | None) -> None:
        command = [*pinned(core), sys.executable, "-c", SERVER, engine, store, RULES]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a server did not start")
        return line

    def end(self) -> dict[str, Any]:
        self.process.terminate()
        counts: dict[str, Any] = json.loads(self._line())
        self.process.wait(20)
        return counts


@contextlib.contextmanager
def server(engine: str, store: str, core: int | None) -> Iterator[Server]:
    """Run a server on its core."""
    running = Server(engine, store, core)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(10)


class Witness:
    """A client that reads every field of its answers. ``calls``: how many it has made and found right."""

    HEAD = tuple(
        (name.encode(), value.encode())
        for name, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "witness"),
            (":path", PATH),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    )

    def __init__(self, port: int) -> None:
        self.calls = 0
        self.fault: str | None = None
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._http2 = Connection(Role.CLIENT)
        self._http2.initiate_connection({})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def start(self) -> None:
        """Ask now and then until ``end``."""
        self.ask()
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self.ask()
        self._socket.close()
        if self.fault is not None:
            raise SystemExit(f"an answer is wrong: {self.fault}")

    def _watch(self) -> None:
        try:
            while not self._stop.wait(0.02):
                self.ask()
        except (OSError, AssertionError, ValueError) as error:
            self.fault = repr(error)

    def ask(self, count: int = 16) -> None:
        """Make calls together and read their answers."""
        http2, bodies, closed = self._http2, {}, set()
        for _ in range(count):
            stream = http2.send_request(self.HEAD)
            http2.send_data(stream, message(f"key{self.calls * 7919 % KEYS}"), end_stream=True)
            bodies[stream] = b""
            self.calls += 1
        self._socket.sendall(http2.data_to_send())
        while len(closed) < count:
            http2.receive_data(self._socket.recv(65536))
            for event in http2.events():
                if isinstance(event, DataReceived):
                    bodies[event.stream_id] += event.data
                elif isinstance(event, TrailersReceived):
                    assert (b"grpc-status", b"0") in event.headers, event.headers
                elif isinstance(event, StreamClosed):
                    closed.add(event.stream_id)
            self._socket.sendall(http2.data_to_send())
        for body in bodies.values():
            assert body[:5] == b"\0" + (len(body) - 5).to_bytes(4, "big")
            check(body[5:])


def check(answer: bytes) -> None:
    """Every field of a RateLimitResponse is what these rules come to."""
    found = list(fields(answer, "answer"))
    assert [number for number, *_ in found] == [1, 2, 3, 3, 3, 3, 6], found
    assert found[0][2] == 1, "OVER_LIMIT"
    status = {number: content or value for number, _, value, content in fields(found[1][3], "status")}
    limit = {number: content or value for number, _, value, content in fields(status[2], "limit")}
    assert (status[1], limit) == (1, {1: 1_000_000, 2: 1, 3: b"per-key"}), (status, limit)
    assert 0 < status[3] < 1_000_000
    told = dict(tuple(content for *_, content in fields(pair[3], "header")) for pair in found[2:6])
    remaining = int(told.pop(b"x-ratelimit-remaining"))
    reset = int(told.pop(b"x-ratelimit-reset"))
    assert (remaining, reset > 0) == (min(status[3], remaining), True)
    assert set(told) == {b"x-ratelimit-limit", b"x-ratelimit-policy"}, told


def load(port: int, calls: tuple[str, ...], core: int | None, body: Path) -> tuple[int, float]:
    """(calls that succeeded, calls per second) by h2load; anything else ends the run."""
    command = [*pinned(core), "h2load", f"-c{CONNECTIONS}", f"-m{STREAMS}", *calls, "-d", str(body)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://127.0.0.1:{port}{PATH}"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    counts = re.search(r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed", out)
    rate = re.search(r"finished in [\d.]+\w+, ([\d.]+) req/s", out)
    if counts is None or rate is None or counts[3] != "0":
        raise SystemExit(out)
    return int(counts[2]), float(rate[1])


def measure(engine: str, store: str, calls: int, at: tuple[int | None, int | None]) -> tuple[float, float]:
    """Calls per second, and per second of the server's processor time."""
    with tempfile.TemporaryDirectory() as folder, server(engine, store, at[0]) as running:
        body = Path(folder) / "message"
        body.write_bytes(message("k"))
        pid = running.process.pid
        warm, _ = load(running.port, (f"-n{WARM_UP_CALLS}",), at[1], body)
        witness = Witness(running.port)
        witness.start()
        before, used_s = witness.calls, cpu_s(pid)
        made, rate = load(running.port, (f"-n{calls}",), at[1], body)
        used_s = cpu_s(pid) - used_s
        beside = witness.calls - before
        witness.end()
        counts = running.end()
    total = warm + made + witness.calls
    if counts != {"calls": {"0": total}, "allowed": total, "degraded": 0}:
        raise SystemExit(f"{total} calls were made, and the server says {counts}")
    return rate, (made + beside) / used_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200_000, help="of each round; grpcio gets a tenth of them")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    at = cores()
    found: dict[str, list[tuple[float, float]]] = {}
    with redis_server(at[1]) as port:
        shared = f"redis://127.0.0.1:{port}?timeout_ms=5000"
        contenders = {
            "ngh2": ("ngh2", "memory://", options.calls),
            "grpcio": ("grpcio", "memory://", options.calls // 10),
            "ngh2, Redis": ("ngh2", shared, options.calls // 2),
        }
        for number in range(options.rounds):
            order = list(contenders.items())
            for name, (engine, store, calls) in order if number % 2 else reversed(order):
                found.setdefault(name, []).append(measure(engine, store, calls, at))
    print(f"load: h2load, {CONNECTIONS} x {STREAMS} calls under way; pinned: {at[0] is not None}")
    for name, rounds in found.items():
        rate, per_cpu = (max(values) for values in zip(*rounds, strict=True))
        print(f"{name:<12}{rate:>10,.0f} calls/s{per_cpu:>10,.0f} per CPU s")
    fast, slow, far = found["ngh2"], found["grpcio"], found["ngh2, Redis"]
    figures: list[Figure] = [
        of_rates("rate limit service: calls per second", [one[0] for one in fast], "", 60_000),
        of_rates("rate limit service: calls per CPU second", [one[1] for one in fast], "", 60_000),
        of_ratios("rate limit service: times grpcio, per second", [a[0] for a in fast], [b[0] for b in slow], 15),
        of_ratios("rate limit service: times grpcio, per CPU second", [a[1] for a in fast], [b[1] for b in slow], 15),
        of_rates("rate limit service, in Redis: calls per second", [one[0] for one in far], "", 25_000),
        of_rates("rate limit service, in Redis: calls per CPU second", [one[1] for one in far], "", 25_000),
    ]
    tell(figures)


if __name__ == "__main__":
    main()
