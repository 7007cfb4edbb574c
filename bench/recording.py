"""What recording costs a decision, and what it keeps: the same calls with and without a recorder, in turns, in one process.

"recorded": counts of everything, samples, heavy hitters; "followed": chosen clients' demand and watched counters as well, as servers have it. A take is made
every 100,000 decisions, as of a node that decides so many in a second; its time is among the costs. Times are the thread's processor time. A leased check takes its tokens
from an embedded store in front of which nothing is asked. Memory: what the recorder of 5 million decisions of 500,000 clients adds to the process, taken every 100,000.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

from _report import Figure, of_ratios, tell
from _rounds import one_pass, rounds_us
from _servers import redis_server

from sluicegate import Facts, Limiter
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.limiter.recording import Recorder
from sluicegate.rules.load import load_rules

KEYS = 10_000
BATCH = 64
ROUNDS = 30
PER_TAKE = 100_000
COST_GOAL = 1.05
MEMORY_GOAL_MB = 64
MEMORY_DECISIONS = 5_000_000
MEMORY_CLIENTS = 500_000
ONE_RULE = "version: 1\nrules:\n  - {name: ip, per: [ip], quota: 100000000/second}\n"
THREE_RULES = """
version: 1
rules:
  - {name: all, quota: 100000000/second}
  - {name: ip, per: [ip], quota: 100000000/second}
  - {name: key, per: [api_key], quota: 100000000/second}
"""
LEASED = "version: 1\nrules:\n  - {name: all, quota: 10000000/second, precision: leased}\n"
FACTS = [Facts(method="GET", path="/x", ip=f"10.0.{n // 250}.{n % 250}", api_key=f"k{n}") for n in range(KEYS)]
NAMES = [f"user:{n}" for n in range(KEYS)]
KINDS = ("not recorded", "recorded", "followed")


def recorder_of(limiter: Limiter, kind: str) -> Recorder | None:
    """A recorder of this kind, attached."""
    if kind == KINDS[0]:
        return None
    recorder = Recorder(SystemClock(), name_of=str, follow=kind == KINDS[2])
    limiter.record(recorder)
    return recorder


def passes(
    make: Callable[[], Limiter],
    call_of: Callable[[Limiter], Callable[[Any], object]],
    arguments: Sequence[Any],
    each: int,
) -> dict[str, Callable[[], int]]:
    """One pass over the arguments for each kind; every one has a limiter of its own, and takes when it is time."""
    made: dict[str, Callable[[], int]] = {}
    for kind in KINDS:
        limiter = make()
        recorder = recorder_of(limiter, kind)
        call = call_of(limiter)
        state = [0]

        def work(
            call: Callable[[Any], object] = call, recorder: Recorder | None = recorder, state: list[int] = state
        ) -> int:
            done = one_pass(call, arguments) * each
            state[0] += done
            if state[0] >= PER_TAKE:
                if recorder is not None:
                    now_us = time.time_ns() // 1_000
                    recorder.take(now_us - US_PER_S, now_us)
                state[0] = 0
            return done

        made[kind] = work
    return made


def compared(
    name: str,
    make: Callable[[], Limiter],
    call_of: Callable[[Limiter], Callable[[Any], object]],
    arguments: Sequence[Any],
    each: int = 1,
) -> list[Figure]:
    """How many times as long a decision takes."""
    contenders = passes(make, call_of, arguments, each)
    for work in contenders.values():
        for _ in range(2 * PER_TAKE // (len(arguments) * each) + 1):
            work()
    times = rounds_us(contenders, ROUNDS)
    # Sums of ten rounds, so that each has a take.
    sums = {kind: [sum(found[at : at + 10]) for at in range(0, ROUNDS, 10)] for kind, found in times.items()}
    return [
        of_ratios(f"{name}, recorded: beside not recorded", sums[KINDS[1]], sums[KINDS[0]], COST_GOAL, at_most=True),
        of_ratios(f"{name}, followed: beside not recorded", sums[KINDS[2]], sums[KINDS[0]]),
    ]


def memory_mb(kind: str, decisions: int) -> float:
    """Megabytes that a process grew by while so many decisions were made; keys are short-lived, as those of requests are."""
    limiter = Limiter.from_rules(load_rules(ONE_RULE, "bench"))
    recorder = recorder_of(limiter, kind)
    facts = [Facts(method="GET", path="/x", ip=f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}") for n in range(MEMORY_CLIENTS)]
    for one in facts:
        limiter.check(one)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(decisions):
        # A step that is prime to the number of clients: all of them, in no order.
        limiter.check(facts[number * 7_919 % MEMORY_CLIENTS])
        if recorder is not None and number % PER_TAKE == PER_TAKE - 1:
            now_us = time.time_ns() // 1_000
            recorder.take(now_us - US_PER_S, now_us)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Measure, print, tell the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=MEMORY_DECISIONS, help="of the measurement of memory")
    given = parser.parse_args()
    grown = memory_mb(KINDS[2], given.decisions)
    batches = [FACTS[at : at + BATCH] for at in range(0, KEYS - BATCH, BATCH)]
    figures = [
        Figure("memory of a recorder with clients followed", grown, "MB", grown, grown, MEMORY_GOAL_MB, at_most=True),
        *compared("hit", lambda: Limiter.from_quota("100000000/minute"), lambda one: one.hit, NAMES),
        *compared("check, a quota", lambda: Limiter.from_quota("100000000/minute"), lambda one: one.check, NAMES),
        *compared("check, 1 rule", lambda: Limiter.from_rules(load_rules(ONE_RULE, "b")), lambda one: one.check, FACTS),
        *compared(
            "check, 3 rules", lambda: Limiter.from_rules(load_rules(THREE_RULES, "b")), lambda one: one.check, FACTS
        ),
        *compared(
            "check_many of 64",
            lambda: Limiter.from_rules(load_rules(ONE_RULE, "b")),
            lambda one: one.check_many,
            batches,
            BATCH,
        ),
        *compared(
            "refusal, 1 rule",
            lambda: Limiter.from_rules(load_rules(ONE_RULE.replace("100000000/second", "1/hour"), "b")),
            lambda one: one.check,
            FACTS,
        ),
    ]
    with redis_server(None) as port:
        url = f"redis://127.0.0.1:{port}?timeout_ms=5000"
        number = iter(range(9))
        figures += compared(
            "leased check",
            lambda: Limiter.from_rules(load_rules(LEASED, "b"), store=url, namespace=f"n{next(number)}"),
            lambda one: one.check,
            FACTS,
        )
    tell(figures)


if __name__ == "__main__":
    main()
