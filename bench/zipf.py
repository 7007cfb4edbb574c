"""The share of checks that are answered with no charge sent to the store: a million clients by Zipf's law, eight processes, the example tiers.

Measured: eight real processes with a near store each, one Redis, all on this machine, at the rate it bears; the counters of clients above their limit
are used up before. Beside it the fleet model for the same processes, rate and way to the server, with the costs of a file of ``bench/calibrate.py`` or those
shipped: how far is the model off? And the model at a million checks a second. A step of leases counts as one charge per counter.

One hot key: a counter that all processes share, asked as fast as they can.

    python bench/zipf.py [--rate 400] [--seconds 6] [--calibration FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from bisect import bisect
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import redis
import uvloop
from _report import Figure, number, table, tell
from _servers import cores, redis_server

from sluicegate import Facts, Limiter
from sluicegate.rules.load import load_rules
from sluicegate.simulation import Calibration, FleetPlan, load_calibration, shipped_calibration, simulate
from sluicegate.simulation.report import FleetReport

PROCESSES = 8
CLIENTS = 1_000_000
EXPONENT = 1.1
WARM_UP_S = 4.0
HOT_S = 3.0
SHARE = "answered with no charge sent to the store, %"
GOAL_PERCENT = 80.0
HOT_GOAL_PERCENT = 99.9
HOT_RULES = "version: 1\nrules:\n  - {name: hot, scope: global, quota: 10000000/second}\n"
RULES = """
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - {name: floor, scope: global, quota: 1000000/second}
  - {name: search, match: {path: /search}, scope: endpoint, quota: 1000000/second}
  - {name: tiers, per: [user], quota: {free: 100/minute, paid: 1000/minute}}
"""


def facts_of(client: int, path: str) -> Facts:
    """A request of this client; every tenth is paid."""
    return Facts(method="GET", path=path, user=f"user:{client}", tier="paid" if client % 10 == 5 else "free")


def drawn(draw: Random, checks: int) -> list[Facts]:
    """So many requests, a fifth of them for the endpoint."""
    sums = list(accumulate([rank**-EXPONENT for rank in range(1, CLIENTS + 1)]))
    return [
        facts_of(1 + bisect(sums, draw.random() * sums[-1]), "/search" if draw.random() < 0.2 else "/")
        for _ in range(checks)
    ]


def state_of(limiter: Limiter) -> dict[str, int]:
    """What a near store has counted."""
    near = limiter.near
    assert near is not None
    return near.stats.as_dict() | {"lease_asks": near.front.leases.counts.asks}


async def paced(limiter: Limiter, requests: list[Facts], per_s: float, latencies: list[float] | None) -> None:
    """Send checks at even distances, whatever became of those before; a latency counts from when the check was due."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(facts: Facts, due_s: float) -> None:
        await limiter.acheck(facts)
        if latencies is not None:
            latencies.append((time.perf_counter() - due_s) * 1e6)

    begun_s = time.perf_counter()
    for place, facts in enumerate(requests):
        due_s = begun_s + place / per_s
        left_s = due_s - time.perf_counter()
        if left_s > 0.001:
            await asyncio.sleep(left_s)
        task = asyncio.create_task(one(facts, due_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


def spread(pipe: Connection, port: int, number_: int, rate: int, seconds: float, used: int) -> None:
    """One process of the fleet: uses up counters, warms up, is watched."""
    limiter = Limiter.from_rules(load_rules(RULES, "zipf"), store=f"redis://127.0.0.1:{port}?timeout_ms=5000")
    draw = Random(number_)
    warm, watched = drawn(draw, int(rate * WARM_UP_S)), drawn(draw, int(rate * seconds))
    pipe.send("ready")
    pipe.recv()
    latencies: list[float] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def used_up() -> None:
            for client in range(1 + number_, used + 1, PROCESSES):
                facts = facts_of(client, "/")
                await limiter.acheck(facts, cost=1_000 if facts.tier == "paid" else 100)

        runner.run(used_up())
        runner.run(paced(limiter, warm, rate, None))
        before, begun_s = state_of(limiter), time.perf_counter()
        runner.run(paced(limiter, watched, rate, latencies))
        seconds = time.perf_counter() - begun_s
        after = state_of(limiter)
        runner.run(limiter.aclose())
    counts = {name: after[name] - before[name] for name in after}
    pipe.send((counts, len(watched), seconds, latencies))


def hot(pipe: Connection, port: int, *_: object) -> None:
    """One process that asks for one counter as fast as it can."""
    limiter = Limiter.from_rules(load_rules(HOT_RULES, "hot"), store=f"redis://127.0.0.1:{port}?timeout_ms=5000")
    facts = Facts(method="GET", path="/", user="anybody")
    pipe.send("ready")
    pipe.recv()
    _ask_for(limiter, facts, WARM_UP_S)
    before, begun_s = state_of(limiter), time.perf_counter()
    checks = _ask_for(limiter, facts, HOT_S)
    seconds, after = time.perf_counter() - begun_s, state_of(limiter)
    limiter.close()
    pipe.send(({name: after[name] - before[name] for name in after}, checks, seconds, []))


def _ask_for(limiter: Limiter, facts: Facts, seconds: float) -> int:
    checks, until_s = 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(100):
            limiter.check(facts)
        checks += 100
    return checks


class Measured:
    """What all processes found together, and the processor time and calls of their Redis meanwhile."""

    def __init__(self, work: Any, port: int, *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        pipes, processes = [], []
        for number_ in range(PROCESSES):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(there, port, number_, *arguments), daemon=True)
            process.start()
            pipes.append(here)
            processes.append(process)
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        found = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join(30)
        self.counts = {name: sum(counts[name] for counts, *_ in found) for name in found[0][0]}
        self.checks = sum(checks for _, checks, *_ in found)
        self.per_s = sum(checks / seconds for _, checks, seconds, _ in found)
        self.latencies = [latency for *_, latencies in found for latency in latencies]

    @property
    def share_percent(self) -> float:
        """Answered with no charge sent."""
        return 100 * (1 - (self.counts["asked"] + self.counts["lease_asks"]) / self.checks)


def modelled(
    costs: Calibration, rate: int, seconds: float, *, affinity: bool = False, loopback: bool = False
) -> FleetReport:
    """The same eight processes in the model; ``loopback``: with this machine's way to the server."""
    way = {"oneway_us": costs.rtt_us / 2, "jitter_us": 10.0, "deadline_us": 5e6, "masters": 1} if loopback else {}
    plan = FleetPlan(gateways=PROCESSES, rate=rate, keys=CLIENTS, seconds=seconds, affinity=affinity, **way)  # type: ignore[arg-type]
    return simulate(plan, costs)


def over(rate: int) -> int:
    """The last client that asks for more than a free client may."""
    whole = sum(rank**-EXPONENT for rank in range(1, CLIENTS + 1))
    return int((PROCESSES * rate / whole / (100 / 60)) ** (1 / EXPONENT))


def beside(real: Measured, same: FleetReport, costs: Calibration) -> list[tuple[str, str, str]]:
    """Rows: what was measured, and what the model says of the same."""
    cuts = statistics.quantiles(real.latencies, n=1000)
    asked = 100 * real.counts["asked"] / real.checks
    every = same.latency_us["all checks"]
    counters = same.counters[0]
    return [
        ("eight processes, one Redis", "measured", "modelled"),
        ("checks per second", number(real.per_s), number(same.checks["checks per second"])),
        (SHARE, number(real.share_percent), number(same.checks[SHARE])),
        ("asked the store, %", number(asked), number(same.checks["asked the store, %"])),
        (
            "lease items per check, %",
            number(100 * real.counts["lease_asks"] / real.checks),
            number(same.checks["lease items per check, %"]),
        ),
        ("latency p50, µs", number(cuts[499]), number(every["p50"])),
        ("latency p90, µs", number(cuts[899]), number(every["p90"])),
        ("latency p99, µs", number(cuts[989]), number(every["p99"])),
        ("global counter decided by leases, %", "", number(counters["passed_by_lease_percent"])),
        ("PING, µs", number(costs.rtt_us), ""),
    ]


def main() -> None:
    """Measure, model, print."""
    parser = argparse.ArgumentParser(description="share of checks answered with no charge sent")
    parser.add_argument("--rate", type=int, default=400, help="checks per second and process (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long (default %(default)s)")
    parser.add_argument("--calibration", type=Path, help="costs by bench/calibrate.py")
    asked = parser.parse_args()
    costs = load_calibration(asked.calibration) if asked.calibration else shipped_calibration()
    with redis_server(cores()[1]) as port:
        real = Measured(spread, port, asked.rate, asked.seconds, over(asked.rate))
        redis.Redis(port=port).flushall()
        viral = Measured(hot, port)
    print(table(beside(real, modelled(costs, asked.rate, asked.seconds, loopback=True), costs)))
    million = 1_000_000 // PROCESSES
    apart, together = (modelled(costs, million, asked.seconds, affinity=affinity) for affinity in (False, True))
    rows = [
        (f"no charge sent, measured at {real.per_s:,.0f} checks/s", real.share_percent, None),
        ("no charge sent, modelled at 1M checks/s, clients at every process", apart.checks[SHARE], GOAL_PERCENT),
        ("no charge sent, modelled at 1M checks/s, a client at one process", together.checks[SHARE], GOAL_PERCENT),
        (
            f"no charge sent, one hot key, measured at {viral.per_s:,.0f} checks/s",
            viral.share_percent,
            HOT_GOAL_PERCENT,
        ),
        ("no charge sent, one hot key, modelled", apart.counters[0]["no_charge_percent"], HOT_GOAL_PERCENT),
    ]
    tell([Figure(name, value, "%", value, value, goal) for name, value, goal in rows])


if __name__ == "__main__":
    main()
