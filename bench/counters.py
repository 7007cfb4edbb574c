"""One counter in memory, per hit, beside `limits` and `throttled-py`: same keys, same limit, one process.

Each contender is asked about 10,000 keys in turn, then 10,000 times about one key; once with a limit nobody reaches
(passes) and once with one hit a day (refusals). ``hit`` answers yes or no, as the peers' does; ``check`` gives a decision, and
"described" reads ``remaining`` and ``retry_after_us`` of it as well. throttled-py describes every answer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from _report import Figure, number, of_ratios, table, tell
from _rounds import Pass, one_pass, rounds_us
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from throttled import RateLimiterType, Throttled, rate_limiter
from throttled.store import MemoryStore as ThrottledStore

from sluicegate import Limiter

CALLS = 10_000
ROUNDS = 11
HIT_GOAL = 5.0
KEYS = {
    "10,000 keys": [f"user:{number}" for number in range(CALLS)],
    "one key": ["user:8123"] * CALLS,
}
QUOTAS = {"passes": "1000000/minute", "refusals": "1/day"}
ALGORITHMS = ("fixed_window", "token_bucket")


def described(check: Callable[[str], Any]) -> Callable[[str], object]:
    """A check whose numbers are read."""

    def call(key: str) -> object:
        decision = check(key)
        return decision.remaining, decision.retry_after_us

    return call


def contenders(quota: str, keys: list[str]) -> dict[str, Pass]:
    """Name -> one pass over the keys; every contender has counters of its own."""
    made: dict[str, Pass] = {}
    for algorithm in ALGORITHMS:
        limiters = [Limiter.from_quota(quota, algorithm=algorithm) for _ in range(3)]
        for name, call in (
            ("hit", limiters[0].hit),
            ("check", limiters[1].check),
            ("check, described", described(limiters[2].check)),
        ):
            made[f"sluicegate {name}, {algorithm}"] = partial(one_pass, call, keys)

    made["limits hit, fixed_window"] = partial(
        pass_of_limits, FixedWindowRateLimiter(MemoryStorage()).hit, parse(quota), keys
    )
    count, _, unit = quota.partition("/")
    per = {"minute": rate_limiter.per_min, "day": rate_limiter.per_day}[unit]
    for kind in (RateLimiterType.FIXED_WINDOW, RateLimiterType.TOKEN_BUCKET):
        # Its store keeps 1,024 keys by default; it gets room for all of them.
        store = ThrottledStore(options={"MAX_SIZE": 2 * CALLS})
        throttle = Throttled(using=kind.value, quota=per(int(count)), store=store, timeout=-1)
        made[f"throttled-py limit, {kind.value}"] = partial(one_pass, throttle.limit, keys)
    return made


def pass_of_limits(hit: Callable[[Any, str], object], item: object, keys: list[str]) -> int:
    """``one_pass`` for ``limits``, whose ``hit`` takes the limit first."""
    for key in keys:
        hit(item, key)
    return len(keys)


def main() -> None:
    """Measure, print, tell the figures."""
    rows = [("microseconds per call", *(f"{path}, {keys}" for path in QUOTAS for keys in KEYS))]
    columns = {
        (path, name): rounds_us(contenders(quota, keys), ROUNDS)
        for path, quota in QUOTAS.items()
        for name, keys in KEYS.items()
    }
    for contender in next(iter(columns.values())):
        rows.append((contender, *(number(statistics.median(times[contender])) for times in columns.values())))
    print(table(rows))

    figures: list[Figure] = []
    for (path, keys), times in columns.items():
        where = f"{path}, {keys}"
        limits = times["limits hit, fixed_window"]
        for algorithm in ALGORITHMS:
            goal = HIT_GOAL if path == "passes" else None
            ours = times[f"sluicegate hit, {algorithm}"]
            figures.append(of_ratios(f"hit, {algorithm}: limits takes ({where})", limits, ours, goal))
        for algorithm in ALGORITHMS:
            peer = times[f"throttled-py limit, {algorithm}"]
            ours = times[f"sluicegate check, described, {algorithm}"]
            figures.append(of_ratios(f"described check, {algorithm}: throttled-py takes ({where})", peer, ours))
    tell(figures)


if __name__ == "__main__":
    main()
