"""One viral client with nine tenths of all traffic, on a cluster of eight masters: the calls that each master gets.

The same rule four times: asked each time (`exact`, without a near store), leased while hot (`auto`, the default of rules per client), split
while hot (`split`), and admitted by chance while hot (`estimated`). Calls are those that the masters count (`INFO commandstats`: scripts, which decide,
lease and report), in a few seconds after the client was found to be hot. One process asks as fast as it can; the limit admits all of it.
"""

from __future__ import annotations

import os
import random
import time

import redis
from _report import Figure, number, table, tell
from _servers import cores, redis_cluster

from sluicegate import Facts, Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.near import NearSettings

MASTERS = 8
GOAL = 2.0
WARM_UP_S = 3.0
MEASURE_S = 4.0
OTHERS = 20_000
PRECISIONS = ("exact", "auto", "split", "estimated")


def calls_of(ports: list[int]) -> list[int]:
    """The scripts that each master has run so far."""
    found = []
    for port in ports:
        with redis.Redis(port=port) as client:
            stats = client.info("commandstats")
        found.append(sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval")))
    return found


def load(limiter: Limiter, seconds: float, source: random.Random) -> int:
    """Check as fast as it goes for so long; how often."""
    viral = Facts(method="GET", path="/", user="viral")
    end_s, checks = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        for _ in range(50):
            user = (
                viral if source.random() < 0.9 else Facts(method="GET", path="/", user=f"u{source.randrange(OTHERS)}")
            )
            assert limiter.check(user).allowed
        checks += 50
    return checks


def run(ports: list[int], precision: str) -> tuple[float, list[float]]:
    """(checks a second, calls a second of each master)."""
    for port in ports:
        with redis.Redis(port=port) as client:
            client.flushall()
    text = f"version: 1\nrules:\n  - {{name: api, per: [user], quota: 1000000/second, precision: {precision}}}\n"
    near = None if precision == "exact" else NearSettings()
    limiter = Limiter.from_rules(
        load_rules(text, "rules.yaml"), f"redis+cluster://127.0.0.1:{ports[0]}?timeout_ms=5000&keys=plain", near=near
    )
    source = random.Random(8)
    load(limiter, WARM_UP_S, source)
    before, begun_s = calls_of(ports), time.monotonic()
    checks = load(limiter, MEASURE_S, source)
    made, took_s = calls_of(ports), time.monotonic() - begun_s
    limiter.close()
    return checks / took_s, [(after - sooner) / took_s for after, sooner in zip(made, before, strict=True)]


def main() -> None:
    """Measure, print, tell the figures."""
    ours, theirs = cores()
    if ours is not None:
        os.sched_setaffinity(0, {ours})
    with redis_cluster(MASTERS, theirs) as ports:
        found = {precision: run(ports, precision) for precision in PRECISIONS}
    rows = [("calls a second", *PRECISIONS)]
    rows += [
        (f"master {place + 1}", *(number(found[precision][1][place]) for precision in PRECISIONS))
        for place in range(MASTERS)
    ]
    rows.append(("all masters", *(number(sum(found[precision][1])) for precision in PRECISIONS)))
    rows.append(("checks a second", *(number(found[precision][0]) for precision in PRECISIONS)))
    print(table(rows))
    figures = []
    for precision in PRECISIONS:
        calls = found[precision][1]
        ratio = max(calls) * MASTERS / sum(calls)
        goal = None if precision == "exact" else GOAL
        figures.append(
            Figure(f"busiest master over the mean, {precision}", ratio, "x", ratio, ratio, goal, at_most=True)
        )
    tell(figures)


if __name__ == "__main__":
    main()
