"""Checks that are answered from leases, beside `limits` and `throttled-py` on the same Redis: one client process, calls one after the other.

A ``check`` of one rule, and of three rules together, whose counters are leased: what the process holds is spent without asking Redis. The peers
ask it each time. The client has one core and Redis the other, where there are two. Times are those of the clock on the wall, the keeper's own calls
of Redis among them; contenders alternate, every other round backwards, and ratios are taken within a round. A run in which more than
one check in a hundred asked Redis is no measurement of leases, and ends.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from _report import Figure, number, of_ratios, table, tell
from _servers import cores, redis_server
from limits import parse
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter
from throttled import RateLimiterType, Throttled, rate_limiter
from throttled.store import RedisStore as ThrottledRedis

from sluicegate import Facts, Limiter
from sluicegate.limiter.decision import Decision
from sluicegate.rules.load import load_rules

ROUNDS = 7
OUR_CALLS = 40_000
PEER_CALLS = 1_000
WARM_UP_S = 1.5
ONE_RULE = """
version: 1
rules:
  - {name: everything, scope: global, quota: 10000000/second}
"""
THREE_RULES = """
version: 1
rules:
  - {name: everything, scope: global, quota: 10000000/second}
  - {name: endpoint, match: {path: /api/v1/shorten}, per: [endpoint], quota: 10000000/second}
  - {name: tenant, per: [tenant], quota: 10000000/second, precision: leased}
"""
FACTS = Facts(method="POST", path="/api/v1/shorten", tenant="acme", user="user:1")


def per_call_us(call: Callable[[], object], calls: int) -> float:
    """Microseconds per call."""
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls * 1e6


def warm(limiter: Limiter) -> None:
    """Ask until leases are as large as the load wants them."""
    end = time.monotonic() + WARM_UP_S
    while time.monotonic() < end:
        limiter.check(FACTS)


def described(limiter: Limiter) -> tuple[int | None, int | None]:
    """A check whose numbers are read."""
    decision: Decision = limiter.check(FACTS)
    return decision.remaining, decision.reset_after_us


def peers(port: int) -> dict[str, Callable[[], object]]:
    """What the others do for one limit: a call of Redis each time."""
    url = f"redis://127.0.0.1:{port}"
    limits = FixedWindowRateLimiter(RedisStorage(url))
    item = parse("100000000/minute")
    throttle = Throttled(
        using=RateLimiterType.TOKEN_BUCKET.value,
        quota=rate_limiter.per_min(100_000_000),
        store=ThrottledRedis(server=url),
        timeout=-1,
    )
    return {
        "limits hit": lambda: limits.hit(item, "user:1"),
        "throttled-py token_bucket": lambda: throttle.limit("user:1"),
    }


def timed(one: Limiter, three: Limiter, others: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Microseconds per call of every contender, round by round. Ends the program where too many checks asked Redis."""
    ours: list[tuple[str, Callable[[], object], Limiter]] = [
        ("leased check, 1 rule", lambda: one.check(FACTS), one),
        ("leased check, 1 rule, described", lambda: described(one), one),
        ("leased check, 3 rules", lambda: three.check(FACTS), three),
    ]
    times: dict[str, list[float]] = {}
    asked = decided = 0

    def run_ours() -> None:
        nonlocal asked, decided
        for name, call, limiter in ours:
            # The load was elsewhere meanwhile, so leases have gone back.
            warm(limiter)
            before = asked_of(limiter)
            times.setdefault(name, []).append(per_call_us(call, OUR_CALLS))
            asked += asked_of(limiter) - before
            decided += OUR_CALLS

    def run_others() -> None:
        for name, call in others.items():
            times.setdefault(name, []).append(per_call_us(call, OUR_CALLS if "memory" in name else PEER_CALLS))

    for round_number in range(ROUNDS):
        for part in (run_ours, run_others) if round_number % 2 else (run_others, run_ours):
            part()
    print(f"of {decided} leased checks {asked} asked Redis")
    if asked * 100 > decided:
        raise SystemExit("too many checks asked Redis")
    return times


def measure(port: int) -> list[Figure]:
    """Every contender, and what is to be told of them."""
    url = f"redis://127.0.0.1:{port}?timeout_ms=5000"
    one, three = (
        Limiter.from_rules(load_rules(rules, "bench"), store=url, namespace=name)
        for name, rules in (("one", ONE_RULE), ("three", THREE_RULES))
    )
    memory = Limiter.from_rules(load_rules(ONE_RULE, "bench"))
    times = timed(one, three, {**peers(port), "check in memory, 1 rule": lambda: memory.check(FACTS)})
    print(
        table(
            [
                ("microseconds per call, one after the other", ""),
                *((name, number(statistics.median(found))) for name, found in times.items()),
            ]
        )
    )
    for limiter in (one, three, memory):
        limiter.close()
    limits, throttled = times["limits hit"], times["throttled-py token_bucket"]
    single, composed = times["leased check, 1 rule"], times["leased check, 3 rules"]
    return [
        of_ratios("leased check, 1 rule: limits on Redis takes", limits, single, 20.0),
        of_ratios("leased check, 1 rule: throttled-py on Redis takes", throttled, single, 20.0),
        of_ratios("leased check, 3 rules: one hit of limits on Redis takes", limits, composed, 10.0),
        of_ratios("leased check, 3 rules: one of throttled-py on Redis takes", throttled, composed, 10.0),
        of_ratios("leased check, 1 rule: the same in memory takes", times["check in memory, 1 rule"], single),
    ]


def asked_of(limiter: Limiter) -> int:
    """How many checks asked the store so far."""
    assert limiter.near is not None
    return limiter.near.stats.asked


def main() -> None:
    """Measure, print, tell the figures."""
    client, server = cores()
    if client is not None:
        os.sched_setaffinity(0, {client})
    with redis_server(server) as port:
        tell(measure(port))


if __name__ == "__main__":
    main()
