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


def measure(port: int) -> list[Figure]:
    """Every contender, round by round."""
    url = f"redis://127.0.0.1:{port}"
    one, three = (
        Limiter.from_rules(load_rules(rules, "bench"), store=f"{url}?timeout_ms=5000", namespace=name)
        for name, rules in (("one", ONE_RULE), ("three", THREE_RULES))
    )
    memory = Limiter.from_rules(load_rules(ONE_RULE, "bench"))
    limits = FixedWindowRateLimiter(RedisStorage(url))
    item = parse("100000000/minute")
    throttle = Throttled(
        using=RateLimiterType.TOKEN_BUCKET.value,
        quota=rate_limiter.per_min(100_000_000),
        store=ThrottledRedis(server=url),
        timeout=-1,
    )
    ours = {
        "leased check, 1 rule": lambda: one.check(FACTS),
        "leased check, 1 rule, described": lambda: described(one),
        "leased check, 3 rules": lambda: three.check(FACTS),
        "check in memory, 1 rule": lambda: memory.check(FACTS),
    }
    peers = {
        "limits hit": lambda: limits.hit(item, "user:1"),
        "throttled-py token_bucket": lambda: throttle.limit("user:1"),
    }
    calls: list[tuple[str, Callable[[], object], int]] = [
        *((name, call, OUR_CALLS) for name, call in ours.items()),
        *((name, call, PEER_CALLS) for name, call in peers.items()),
    ]
    times: dict[str, list[float]] = {name: [] for name, _, _ in calls}
    asked = decided = 0
    for round_number in range(ROUNDS + 1):
        for limiter in (one, three):
            warm(limiter)
        for name, call, count in calls if round_number % 2 else reversed(calls):
            if round_number and name.startswith("leased"):
                # The load has been elsewhere meanwhile.
                warm(three if "3" in name else one)
                before = asked_of(three if "3" in name else one)
                times[name].append(per_call_us(call, count))
                asked += asked_of(three if "3" in name else one) - before
                decided += count
            elif round_number:
                times[name].append(per_call_us(call, count))
    print(
        table(
            [
                ("microseconds per call, one after the other", ""),
                *((name, number(statistics.median(found))) for name, found in times.items()),
            ]
        )
    )
    print(f"of {decided} leased checks {asked} asked Redis")
    if asked * 100 > decided:
        raise SystemExit("too many checks asked Redis")
    for limiter in (one, three, memory):
        limiter.close()
    single, composed = times["leased check, 1 rule"], times["leased check, 3 rules"]
    return [
        of_ratios("leased check, 1 rule: limits on Redis takes", times["limits hit"], single, 20.0),
        of_ratios(
            "leased check, 1 rule: throttled-py on Redis takes", times["throttled-py token_bucket"], single, 20.0
        ),
        of_ratios("leased check, 3 rules: one hit of limits on Redis takes", times["limits hit"], composed, 10.0),
        of_ratios(
            "leased check, 3 rules: one of throttled-py on Redis takes",
            times["throttled-py token_bucket"],
            composed,
            10.0,
        ),
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
