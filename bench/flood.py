"""What a client that floods costs Redis: calls a second, at any rate of checks, on one process and on four.

The client has used up its limit and goes on asking at a steady pace, spread over the processes. Calls are those that Redis counts (``INFO
commandstats``: ``EVALSHA``, which decides, leases and gives back). Without the deny cache each check is one; the last row of each table shows it at the
fastest pace.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from typing import Any

import redis
from _report import Figure, number, table, tell
from _servers import cores, redis_server

from sluicegate import Facts, Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.near import NearSettings

WARM_UP_S = 2.0
MEASURE_S = 6.0
QUOTAS = {"free": "100/minute", "paid": "1000/minute"}
RATES: tuple[int | None, ...] = (10, 100, 1_000, 10_000, None)
"""Checks a second over all processes; None: as fast as they can."""
PROCESSES = (1, 4)
FACTS = Facts(method="GET", path="/", user="mallory")


def limiter_of(url: str, quota: str, *, near: bool) -> Limiter:
    """A limiter of one rule per user."""
    rules = load_rules(f"version: 1\nrules:\n  - {{name: api, per: [user], quota: {quota}}}\n", "rules.yaml")
    return Limiter.from_rules(rules, url, near=NearSettings() if near else None)


def flood(order: dict[str, Any]) -> None:
    """One of the processes: check at a pace for a while, from the moment that is ordered."""
    limiter = limiter_of(order["url"], order["quota"], near=order["near"])
    limiter.check(FACTS, peek=True)
    print("ready", flush=True)
    begin_s = float(sys.stdin.readline())
    end_s = begin_s + WARM_UP_S + MEASURE_S
    rate = order["rate"]
    due_s, checks, admitted = begin_s, 0, 0
    while (now_s := time.monotonic()) < end_s:
        if rate is not None:
            if now_s < due_s:
                time.sleep(due_s - now_s)
                continue
            due_s += 1 / rate
        admitted += limiter.check(FACTS).allowed
        checks += 1
    print(json.dumps([checks, admitted]), flush=True)
    limiter.close()


def calls_of(client: redis.Redis) -> int:
    """Scripts called so far."""
    found = client.info("commandstats")
    return int(found.get("cmdstat_evalsha", {}).get("calls", 0))


def run(port: int, quota: str, processes: int, rate: int | None, *, near: bool = True) -> tuple[float, float, float]:
    """(checks, admitted, calls) a second."""
    url = f"redis://127.0.0.1:{port}?timeout_ms=1000"
    client = redis.Redis(port=port)
    client.flushall()
    order = {"url": url, "quota": quota, "near": near, "rate": None if rate is None else rate / processes}
    command = [sys.executable, __file__, json.dumps(order)]
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(processes)
        ]
        for node in nodes:
            assert node.stdout is not None
            assert node.stdout.readline() == "ready\n"
        with contextlib.closing(limiter_of(url, quota, near=False)) as drain:
            drain.check(FACTS, int(quota.partition("/")[0]))
        begin_s = time.monotonic() + 0.2
        for node in nodes:
            assert node.stdin is not None
            node.stdin.write(f"{begin_s}\n")
            node.stdin.flush()
        time.sleep(max(begin_s + WARM_UP_S - time.monotonic(), 0))
        before, before_s = calls_of(client), time.monotonic()
        time.sleep(max(begin_s + WARM_UP_S + MEASURE_S - 0.1 - time.monotonic(), 0))
        calls, took_s = calls_of(client) - before, time.monotonic() - before_s
        told = [json.loads(node.communicate()[0]) for node in nodes]
    client.close()
    whole_s = WARM_UP_S + MEASURE_S
    return sum(one[0] for one in told) / whole_s, sum(one[1] for one in told) / whole_s, calls / took_s


def measure(port: int) -> list[Figure]:
    """All rates, processes and tiers, as tables and figures."""
    figures = []
    for tier, quota in QUOTAS.items():
        rows: list[tuple[str, ...]] = [("checks a second", "processes", "checked", "admitted", "calls of Redis")]
        for processes in PROCESSES:
            for rate in RATES:
                found = run(port, quota, processes, rate)
                asked = "all that fit" if rate is None else number(rate)
                rows.append((asked, str(processes), *(f"{value:,.1f}" for value in found)))
                if rate is None:
                    name = f"flood, {tier} ({quota}), {processes} processes: calls of Redis a second"
                    figures.append(Figure(name, found[2], "", found[2], found[2]))
        found = run(port, quota, 1, None, near=False)
        rows.append(("all that fit, no cache", "1", *(f"{value:,.1f}" for value in found)))
        print(f"{tier}: {quota}")
        print(table(rows))
    return figures


def main() -> None:
    """Measure, print, tell the figures; with an argument, be one of the processes."""
    if len(sys.argv) > 1:
        flood(json.loads(sys.argv[1]))
        return
    with redis_server(cores()[1]) as port:
        tell(measure(port))


if __name__ == "__main__":
    main()
