"""One counter, and a whole decision, beside `limits` and `throttled-py`: same machine, same keys, one run.

Each contender gets the same 10,000 keys in turn and a limit nobody reaches. The rounds of all contenders alternate, so that a
machine that slows down slows all of them down, and the median of each is reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from throttled import RateLimiterType, Throttled, rate_limiter
from throttled.store import MemoryStore as ThrottledStore

from sluicegate import Facts, Limiter, load_rules

KEYS = [f"user:{number}" for number in range(10_000)]
ROUNDS = 31


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


def contenders() -> dict[str, Callable[[], int]]:
    """Name -> one pass: a call for each key, in a plain loop that adds as little as a loop can. Returns the number of calls."""
    made: dict[str, Callable[[], int]] = {}
    for algorithm in ("fixed_window", "token_bucket"):
        hit = Limiter.from_quota("1000000/minute", algorithm=algorithm).hit
        made[f"sluicegate hit, {algorithm}"] = partial(one_pass, hit, KEYS)
    check = Limiter.from_quota("1000000/minute", algorithm="fixed_window").check
    made["sluicegate check, fixed_window"] = partial(one_pass, check, KEYS)

    by_rules = Limiter.from_rules(load_rules(fifty_rules(), "bench"))
    facts = [Facts(method="POST", path="/login", ip="203.0.113.9", user=key) for key in KEYS]
    assert len(by_rules.check(facts[0]).results) == 3
    made["sluicegate check(facts), 3 rules of 50"] = partial(one_pass, by_rules.check, facts)

    window = FixedWindowRateLimiter(MemoryStorage())
    made["limits hit, fixed window"] = partial(one_pass_of_limits, window.hit, parse("1000000/minute"), KEYS)

    quota = rate_limiter.per_min(1_000_000)
    throttle = Throttled(using=RateLimiterType.FIXED_WINDOW.value, quota=quota, store=ThrottledStore(), timeout=-1)
    made["throttled-py limit, fixed window"] = partial(one_pass, throttle.limit, KEYS)
    return made


def one_pass(call: Callable[[Any], object], arguments: list[Any]) -> int:
    """Call once with each argument."""
    for argument in arguments:
        call(argument)
    return len(arguments)


def one_pass_of_limits(hit: Callable[[Any, str], object], item: object, keys: list[str]) -> int:
    """The same for ``limits``, whose ``hit`` takes the limit first."""
    for key in keys:
        hit(item, key)
    return len(keys)


def measure(made: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Microseconds per call: the median of rounds that alternate between all contenders."""
    rounds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, work in made.items():
            begun = time.perf_counter()
            calls = work()
            rounds[name].append((time.perf_counter() - begun) / calls * 1e6)
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
