"""Checks per second of ``/v1/check`` with counters in Redis, beside the same server with counters in memory.

    python bench/http_redis.py [--seconds 3] [--rounds 4]

One worker on one core; Redis and the load (wrk, 128 connections) share the other. Three kinds of request: an inline token bucket
of one of 10,000 keys, and facts that three rules match, answered with all of their results; both ask Redis each time. And facts that
match three rules whose counters are shared by all, and leased, so that Redis is hardly asked. Rounds alternate between the stores.

Printed: checks a second, those per second of the server's processor time, and their ratio to memory. The wall figures need a
machine that has nothing else to do: three programs share two cores. ``together`` says how many checks ride in one call of the script
on average. Answers that were decided without the store would be no answers: one of them ends the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from _report import Figure, of_rates, of_ratios, tell
from _servers import cores, pinned, redis_server
from http_check import KEYS, LUA, PLENTY, bodies, cpu_s

CONNECTIONS = 128
WARM_UP_S = 2
"""Leases begin a second after the first answer of a server."""

RULES = """
version: 1
rules:
  - {name: floor, quota: 5000000/second}
  - {name: api, match: {path: /api/**}, per: [ip], quota: 1000000/second}
  - {name: shorten, match: {methods: [POST], path: /api/v1/shorten}, per: [user], quota: 1000000/second}
"""

LEASED = """
version: 1
rules:
  - {name: floor, quota: 50000000/second}
  - {name: api, match: {path: /api/**}, per: [endpoint], quota: 10000000/second}
  - {name: shorten, match: {methods: [POST], path: /api/v1/shorten}, per: [endpoint], quota: 10000000/second}
"""

SERVER = """
import asyncio, gc, json, sys, uvloop
from sluicegate.clock import SystemClock
from sluicegate.doors.http.door import HttpDoor
from sluicegate.doors.listen import Address, open_listener
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.near import NEAR
async def main():
    clock = SystemClock()
    near = NEAR if sys.argv[3] == "leased" else None
    limiter = Limiter.from_rules(load_rules(sys.argv[2], "rules"), sys.argv[1], clock=clock, near=near)
    if not await limiter.awarm():
        raise SystemExit("the store is not there")
    def counts():
        stats = limiter.store.stats.as_dict() | {"degraded": limiter.stats.degraded}
        if limiter.near is not None:
            stats |= limiter.near.stats.as_dict()
        return "application/json", json.dumps(stats).encode()
    door = HttpDoor(limiter, clock=clock, ready=lambda: (True, {}), metrics=counts)
    listener = await open_listener(Address.parse("127.0.0.1:0"), door.protocol_factory)
    gc.collect()
    gc.freeze()  # as `sluicegate` does when it has started
    print(listener.address.port, flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


def facts() -> list[str]:
    """Every user once, each from one of 200 addresses."""
    return [
        json.dumps(
            {
                "facts": {
                    "method": "POST",
                    "path": "/api/v1/shorten",
                    "user": f"user{i * 7919 % KEYS}",
                    "ip": f"203.0.113.{i % 200}",
                }
            },
            separators=(",", ":"),
        )
        for i in range(KEYS)
    ]


@contextlib.contextmanager
def server(store: str, kind: str, core: int | None) -> Iterator[tuple[int, int]]:
    """Run the server on its core; gives its port and process."""
    rules = LEASED if kind == "leased" else RULES
    command = [*pinned(core), sys.executable, "-c", SERVER, store, rules, kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"a server did not start: {store}")
        yield int(line), process.pid
    finally:
        process.terminate()
        process.wait(10)


def load(port: int, lines: list[str], seconds: int, core: int | None, folder: Path) -> float:
    """Requests per second by wrk. Answers other than 200, and broken sockets, end the run."""
    (folder / "bodies.txt").write_text("\n".join(lines) + "\n")
    (folder / "load.lua").write_text(LUA % (folder / "bodies.txt", "/v1/check", "false"))
    command = [
        *pinned(core),
        "wrk",
        "-t1",
        "--timeout",
        "10s",
        f"-c{CONNECTIONS}",
        f"-d{seconds}s",
        "-s",
        str(folder / "load.lua"),
    ]
    out = subprocess.run([*command, f"http://127.0.0.1:{port}"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", out)
    if "Socket errors" in out or "Non-2xx" in out or found is None:
        raise SystemExit(out)
    return float(found[1])


def counted(port: int) -> dict[str, int]:
    """What the server counts."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        counts: dict[str, int] = json.load(answer)
        return counts


def measure(
    store: str, kind: str, lines: list[str], seconds: int, at: tuple[int | None, int | None]
) -> tuple[float, float, float]:
    """Checks per second, those per second of processor time, and how many ride together (0 in memory)."""
    with tempfile.TemporaryDirectory() as folder, server(store, kind, at[0]) as (port, pid):
        load(port, lines, WARM_UP_S, at[1], Path(folder))
        before = counted(port)
        used_s = cpu_s(pid)
        rate = load(port, lines, seconds, at[1], Path(folder))
        used_s = cpu_s(pid) - used_s
        counts = counted(port)
    if counts["degraded"]:
        raise SystemExit(f"{counts['degraded']} checks were decided without the store: {counts}")
    if counts.get("asked", 0) - before.get("asked", 0) > 0.01 * counts.get("leased", 0):
        raise SystemExit(f"too many checks asked the store: {counts}")
    together = counts["batched"] / counts["batches"] if counts.get("batches") else 0.0
    return rate, rate * seconds / used_s, together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", help="inline, three rules or leased")
    options = parser.parse_args()
    at = cores()
    kinds = {"inline": bodies(PLENTY, 1), "three rules": facts(), "leased": facts()}
    if options.only:
        kinds = {options.only: kinds[options.only]}
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    with redis_server(at[1]) as port:
        stores = {"memory": "memory://", "Redis": f"redis://127.0.0.1:{port}?timeout_ms=5000"}
        for round_number in range(options.rounds):
            order = list(stores.items())
            for kind, lines in kinds.items():
                for name, url in order if round_number % 2 else reversed(order):
                    found.setdefault((kind, name), []).append(measure(url, kind, lines, options.seconds, at))
    print(f"load: wrk, {CONNECTIONS} connections; pinned: {at[0] is not None}")
    figures: list[Figure] = []
    for kind in kinds:
        memory, shared = found[kind, "memory"], found[kind, "Redis"]
        for name, each in (("memory", memory), ("Redis", shared)):
            rate, per_cpu, together = (max(values) for values in zip(*each, strict=True))
            print(f"{kind:<12} {name:<8}{rate:>10,.0f} checks/s{per_cpu:>10,.0f} per CPU s{together:>8.1f} together")
        goal = 40_000 if kind == "inline" else None
        half = {"inline": 0.5, "leased": 0.9}.get(kind)
        figures += [
            of_rates(f"/v1/check, {kind}, in Redis: checks per CPU second", [one[1] for one in shared], "", goal),
            of_rates(f"/v1/check, {kind}, in Redis: checks per second", [one[0] for one in shared], "", goal),
            of_ratios(
                f"/v1/check, {kind}: times memory, per CPU second",
                [one[1] for one in shared],
                [one[1] for one in memory],
                half,
            ),
            of_ratios(
                f"/v1/check, {kind}: times memory, per second",
                [one[0] for one in shared],
                [one[0] for one in memory],
                half,
            ),
        ]
    tell(figures)


if __name__ == "__main__":
    main()
