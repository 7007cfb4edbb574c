"""Calls per second of Envoy's rate limit service: our shell on ngh2 beside the gRPC project's server with the same handlers.

    python bench/envoy_rls.py [--calls 200000] [--rounds 3]

One server on one core; the load (h2load, 8 connections with 16 calls under way on each, one key) and Redis share the other. Each call
is decided by two rules and answered in full: status, limit, remaining, reset, four header fields, metadata. Rounds alternate between the servers.

h2load counts HTTP statuses, and a gRPC error is a 200 too. So the server must say itself that it answered as many calls with OK as h2load
counts, that all were allowed and none was decided without the store. A witness, a client of its own that runs before, during and after the load, reads every
field of each of its answers. And the load is made once more, as many calls by as many connections, by a client that reads every answer and every status
(``_rls_client.py``): it is slower than the server, so its rate is no figure. One answer that is wrong ends the run.

Printed: calls a second, those per second of the server's processor time, and the ratio to grpcio. The wall figures need a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _report import Figure, of_rates, of_ratios, tell
from _rls_client import CONNECTIONS, PATH, RULES, STREAMS, Session, framed, one
from _servers import cores, pinned, redis_server
from http_check import cpu_s

WARM_UP_CALLS = 2_000

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
    """A client beside the load that reads every field of its answers, and one wrong answer ends the run. ``made``: its calls by kind."""

    def __init__(self, port: int) -> None:
        self._session = Session(port)
        self.made = self._session.made
        self._fault: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def start(self) -> None:
        """Ask now and then until ``end``."""
        self._session.ask()
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._session.ask()
        self._session.socket.close()
        faults = [*self._session.faults, *([] if self._fault is None else [self._fault])]
        if faults:
            raise SystemExit(f"an answer is wrong: {faults[0]}")

    def _watch(self) -> None:
        try:
            while not self._stop.wait(0.02):
                self._session.ask()
        except OSError as error:
            self._fault = repr(error)


def checked(port: int, calls: int, core: int | None) -> Counter[str]:
    """Calls by kind, of a load like that of h2load in which every answer is read; one that is wrong ends the run."""
    command = [*pinned(core), sys.executable, str(Path(__file__).with_name("_rls_client.py")), str(port), str(calls)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if told["wrong"]:
        raise SystemExit(f"{told['wrong']} of {calls} answers are wrong: {told['first']}")
    return Counter(told["made"])


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


def measure(engine: str, store: str, calls: int, at: tuple[int | None, int | None]) -> tuple[float, float, int]:
    """Calls per second, those per second of the server's processor time, and how many answers were read and found right."""
    with tempfile.TemporaryDirectory() as folder, server(engine, store, at[0]) as running:
        body = Path(folder) / "message"
        body.write_bytes(framed(one(0)))
        pid = running.process.pid
        warm, _ = load(running.port, (f"-n{WARM_UP_CALLS}",), at[1], body)
        witness = Witness(running.port)
        witness.start()
        before, used_s = witness.made.total(), cpu_s(pid)
        made, rate = load(running.port, (f"-n{calls}",), at[1], body)
        used_s = cpu_s(pid) - used_s
        beside = witness.made.total() - before
        witness.end()
        read = witness.made + checked(running.port, calls, at[1])
        counts = running.end()
    decided = warm + made + read.total() - read["broken"]
    if counts != {"calls": {"0": decided, "3": read["broken"]}, "allowed": decided, "degraded": 0}:
        raise SystemExit(f"{decided} calls were made and {read['broken']} that are none, and the server says {counts}")
    return rate, (made + beside) / used_s, read.total()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200_000, help="of each round; grpcio gets a tenth of them")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    at = cores()
    found: dict[str, list[tuple[float, float, int]]] = {}
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
        rate, per_cpu, _ = (max(values) for values in zip(*rounds, strict=True))
        read = sum(each[2] for each in rounds)
        print(f"{name:<12}{rate:>10,.0f} calls/s{per_cpu:>10,.0f} per CPU s; {read:,} answers read in full, 0 wrong")
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
