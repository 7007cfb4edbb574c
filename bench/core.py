"""One counter, and a whole decision, beside `limits` and `throttled-py`: same machine, same keys, one run.

Each contender gets the same 10,000 keys in turn and a limit nobody reaches. The rounds of all contenders alternate, so that a
machine that slows down slows all of them down, and the median of each is reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import cycle

from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from throttled import RateLimiterType, Throttled, rate_limiter
from throttled.store import MemoryStore as ThrottledStore

from sluicegate import Facts, Limiter, load_rules

KEYS = [f"user:{number}" for number in range(10_000)]
CALLS = 50_000
ROUNDS = 7


def fifty_rules() -> str:
    """A rule file of 50 rules, three of which match a login of a known user."""
    lines = ["version: 1", "rules:"]
    lines += ["  - {name: everything, scope: global, quota: 1000000000/second}"]
    lines += ["  - {name: login, match: {methods: [POST], path: /login}, per: [ip], quota: 1000000/minute}"]
    lines += ["  - {name: user, per: [user], quota: 1000000/minute}"]
    lines += [
        f"  - {{name: r{n}, match: {{path: /api/v1/thing{n}/*}}, per: [ip], quota: 100/minute}}" for n in range(47)
    ]
    return "\n".join(lines) + "\n"


def contenders() -> dict[str, Callable[[], object]]:
    """Name -> one call."""
    made: dict[str, Callable[[], object]] = {}
    for algorithm in ("fixed_window", "token_bucket"):
        limiter = Limiter.from_quota("1000000/minute", algorithm=algorithm)
        hit, keys = limiter.hit, cycle(KEYS)
        made[f"sluicegate hit, {algorithm}"] = lambda hit=hit, keys=keys: hit(next(keys))
    checker, check_keys = Limiter.from_quota("1000000/minute", algorithm="fixed_window"), cycle(KEYS)
    made["sluicegate check, fixed_window"] = lambda: checker.check(next(check_keys))

    by_rules = Limiter.from_rules(load_rules(fifty_rules(), "bench"))
    facts = cycle([Facts(method="POST", path="/login", ip="203.0.113.9", user=key) for key in KEYS])
    assert len(by_rules.check(next(facts)).results) == 3
    made["sluicegate check(facts), 3 rules of 50"] = lambda: by_rules.check(next(facts))

    window, item, limits_keys = FixedWindowRateLimiter(MemoryStorage()), parse("1000000/minute"), cycle(KEYS)
    made["limits hit, fixed window"] = lambda: window.hit(item, next(limits_keys))

    quota = rate_limiter.per_min(1_000_000)
    throttle = Throttled(using=RateLimiterType.FIXED_WINDOW.value, quota=quota, store=ThrottledStore(), timeout=-1)
    throttled_keys = cycle(KEYS)
    made["throttled-py limit, fixed window"] = lambda: throttle.limit(next(throttled_keys))
    return made


def measure(made: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds per call: the median of rounds that alternate between all contenders."""
    rounds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, call in made.items():
            begun = time.perf_counter()
            for _ in range(CALLS):
                call()
            rounds[name].append((time.perf_counter() - begun) / CALLS * 1e6)
    return {name: statistics.median(times) for name, times in rounds.items()}


def main() -> None:
    """Measure and print."""
    times = measure(contenders())
    reference = times["limits hit, fixed window"]
    print(f"{'':40} {'us/call':>8} {'limits hit = 1':>15}")
    for name, time_us in times.items():
        print(f"{name:40} {time_us:8.3f} {reference / time_us:14.1f}x")
    print(
        f"one counter:      {reference / times['sluicegate hit, fixed_window']:.1f} times as fast as limits (goal: 5)"
    )
    print(
        f"3 rules of 50:    {reference / times['sluicegate check(facts), 3 rules of 50']:.2f} times as fast as one limits hit (goal: 1)"
    )


if __name__ == "__main__":
    main()
