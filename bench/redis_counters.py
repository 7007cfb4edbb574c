"""Counters in one Redis, asked at every check, beside `limits` and `throttled-py` on the same Redis: same keys, same limits, one client process.

Sequential calls: a ``check`` of ours with three rules that apply to every request beside one ``hit`` of `limits`, beside three of its hits
(what three limits cost there), and beside throttled-py. Concurrent calls: 64 coroutines, each asking again when it is answered, ours beside `limits`' asynchronous storage with redis-py.
The client has one core and Redis the other, where there are two. Times are those of the clock on the wall, because a call is mostly waiting; contenders
alternate, every other round backwards, and ratios are taken within a round.

At half load: single checks at half the rate that one connection reaches, sent by a schedule; the latency of a check counts from
the moment it was due.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

import uvloop
from _report import Figure, number, of_rates, of_ratios, table, tell
from _servers import cores, redis_server
from limits import parse
from limits.aio.storage import RedisStorage as AsyncLimitsRedis
from limits.aio.strategies import FixedWindowRateLimiter as AsyncFixedWindow
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter
from throttled import RateLimiterType, Throttled, rate_limiter
from throttled.store import RedisStore as ThrottledRedis

from sluicegate import Facts, Limiter
from sluicegate.rules.load import load_rules

CALLS = 2_000
ROUNDS = 7
CONCURRENT = 64
QUOTA = "1000000/minute"
KEYS = [f"user:{number}" for number in range(CALLS)]
PASSES_S = 4.0
RULES = """
version: 1
rules:
  - {name: everything, scope: global, quota: 1000000/second}
  - {name: shorten, match: {path: /api/v1/shorten}, per: [endpoint, user], quota: 1000000/minute}
  - {name: api, per: [user], quota: 1000000/minute}
"""


def one_by_one(call: Callable[[str], object]) -> float:
    """Microseconds per call, one after the other."""
    begun = time.perf_counter()
    for key in KEYS:
        call(key)
    return (time.perf_counter() - begun) / CALLS * 1e6


async def side_by_side(call: Callable[[str], Awaitable[object]]) -> float:
    """Microseconds per call of 64 coroutines, each of which asks again when it is answered."""

    async def client(keys: Sequence[str]) -> None:
        for key in keys:
            await call(key)

    begun = time.perf_counter()
    await asyncio.gather(*[client(KEYS[first::CONCURRENT]) for first in range(CONCURRENT)])
    return (time.perf_counter() - begun) / CALLS * 1e6


def in_turns(contenders: Sequence[str], work: Callable[[str], float]) -> dict[str, list[float]]:
    """The times of every contender, round by round, every other round backwards, after one pass to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for name in contenders:
        work(name)
    order = list(contenders)
    for _ in range(ROUNDS):
        for name in order:
            times[name].append(work(name))
        order.reverse()
    return times


def facts_of(key: str) -> Facts:
    """The request of one user."""
    return Facts(method="POST", path="/api/v1/shorten", user=key)


def sequential(port: int) -> list[Figure]:
    """Synchronous calls, one after the other."""
    url = f"redis://127.0.0.1:{port}"
    ruled = Limiter.from_rules(load_rules(RULES, "bench"), store=f"{url}?timeout_ms=5000", near=None)
    quota = {
        name: Limiter.from_quota(QUOTA, name, store=f"{url}?timeout_ms=5000", near=None)
        for name in ("token_bucket", "fixed_window")
    }
    limits = FixedWindowRateLimiter(RedisStorage(url))
    items = [parse(QUOTA) for _ in range(3)]
    throttles = {
        kind: Throttled(
            using=kind.value, quota=rate_limiter.per_min(1_000_000), store=ThrottledRedis(server=url), timeout=-1
        )
        for kind in (RateLimiterType.FIXED_WINDOW, RateLimiterType.TOKEN_BUCKET)
    }
    all_facts = {key: facts_of(key) for key in KEYS}

    def three_hits(key: str) -> bool:
        return all(limits.hit(item, place, key) for place, item in enumerate(items))

    calls: dict[str, Callable[[str], object]] = {
        "sluicegate check, 3 rules": lambda key: ruled.check(all_facts[key]),
        "sluicegate check, token_bucket": quota["token_bucket"].check,
        "sluicegate check, fixed_window": quota["fixed_window"].check,
        "limits hit": lambda key: limits.hit(items[0], key),
        "limits 3 hits": three_hits,
        "throttled-py fixed_window": throttles[RateLimiterType.FIXED_WINDOW].limit,
        "throttled-py token_bucket": throttles[RateLimiterType.TOKEN_BUCKET].limit,
    }
    times = in_turns(list(calls), lambda name: one_by_one(calls[name]))
    print(
        table(
            [
                ("microseconds per call, one after the other", ""),
                *((n, number(statistics.median(t))) for n, t in times.items()),
            ]
        )
    )
    three = times["sluicegate check, 3 rules"]
    for limiter in (ruled, *quota.values()):
        limiter.close()
    return [
        of_ratios("check with 3 rules, sequential: one hit of limits takes", times["limits hit"], three, 1.0),
        of_ratios("check with 3 rules, sequential: three hits of limits take", times["limits 3 hits"], three, 2.5),
        of_ratios(
            "check of a token bucket, sequential: throttled-py takes",
            times["throttled-py token_bucket"],
            times["sluicegate check, token_bucket"],
        ),
        of_ratios(
            "check of a fixed window, sequential: throttled-py takes",
            times["throttled-py fixed_window"],
            times["sluicegate check, fixed_window"],
        ),
    ]


def concurrent(port: int) -> list[Figure]:
    """64 coroutines at a time."""
    url = f"redis://127.0.0.1:{port}"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ruled = Limiter.from_rules(load_rules(RULES, "bench"), store=f"{url}?timeout_ms=5000", near=None)
        quota = Limiter.from_quota(QUOTA, store=f"{url}?timeout_ms=5000", near=None)
        limits = AsyncFixedWindow(AsyncLimitsRedis(f"async+{url}", implementation="redispy"))
        item = parse(QUOTA)
        all_facts = {key: facts_of(key) for key in KEYS}
        calls: dict[str, Callable[[str], Awaitable[object]]] = {
            "sluicegate acheck, token_bucket": quota.acheck,
            "sluicegate acheck, 3 rules": lambda key: ruled.acheck(all_facts[key]),
            "limits hit": lambda key: limits.hit(item, key),
        }
        times = in_turns(list(calls), lambda name: runner.run(side_by_side(calls[name])))
        runner.run(quota.aclose())
        runner.run(ruled.aclose())
    print(
        table(
            [
                (f"microseconds per call, {CONCURRENT} at a time", ""),
                *((n, number(statistics.median(t))) for n, t in times.items()),
            ]
        )
    )
    peer = times["limits hit"]
    return [
        of_ratios(
            "64 concurrent checks of one rule: limits takes", peer, times["sluicegate acheck, token_bucket"], 5.0
        ),
        of_ratios(
            "64 concurrent checks of 3 rules: one hit of limits takes", peer, times["sluicegate acheck, 3 rules"]
        ),
    ]


async def paced(call: Callable[[str], Awaitable[object]], per_s: float, seconds: float) -> list[float]:
    """Latencies in microseconds of calls that are due at even distances, whatever became of those before."""
    # Not the loop's time, which may be a millisecond old.
    now_s = time.perf_counter
    latencies: list[float] = []

    async def one(key: str, due_s: float) -> None:
        await call(key)
        latencies.append((now_s() - due_s) * 1e6)

    begun = now_s()
    tasks: set[asyncio.Task[None]] = set()
    for number_ in range(int(per_s * seconds)):
        due_s = begun + number_ / per_s
        while now_s() < due_s:
            await asyncio.sleep(0)
        task = asyncio.create_task(one(KEYS[number_ % CALLS], due_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return latencies


def half_load(port: int) -> list[Figure]:
    """The latency of a check at half of what this process can do one after the other."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        limiter = Limiter.from_quota(QUOTA, store=f"redis://127.0.0.1:{port}?timeout_ms=5000", near=None)

        async def alone() -> float:
            begun = time.perf_counter()
            for key in KEYS:
                await limiter.acheck(key)
            return CALLS / (time.perf_counter() - begun)

        runner.run(alone())
        per_s = runner.run(alone()) / 2
        # As the servers do when they have started: a collection of all that was imported is no part of a check.
        gc.collect()
        gc.freeze()
        rounds = [sorted(runner.run(paced(limiter.acheck, per_s, PASSES_S))) for _ in range(3)]
        runner.run(limiter.aclose())
    return [
        of_rates(
            f"acheck at half load ({per_s:,.0f}/s in this run): p{share}",
            [found[min(int(len(found) * share / 100), len(found) - 1)] for found in rounds],
            "µs",
        )
        for share in (50, 99, 99.9)
    ]


def main() -> None:
    """Measure, print, tell the figures."""
    client, server = cores()
    if client is not None:
        os.sched_setaffinity(0, {client})
    with redis_server(server) as port:
        tell([*sequential(port), *concurrent(port), *half_load(port)])


if __name__ == "__main__":
    main()
