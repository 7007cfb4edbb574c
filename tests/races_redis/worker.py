"""One of the processes that race. Reads orders, one JSON object a line, and answers each with one.

``open``: limiters by ``rules`` on the store ``url``, one for each of ``numbers``, every one with a connection of its own; ``skew_us`` is how wrong the
clock of this process is, and ``near`` whether they answer from leases and from what they remember. ``round``: at the monotonic time ``at_s`` every limiter makes ``calls`` checks; the answer has one row per check:
``[number, user, path, allowed, degraded, began_us, ended_us]``, the last two by the machine's monotonic clock.

``threads``: each limiter checks in a thread, one call after the other. Else all checks of all limiters are under way at once on one event loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sluicegate.clock import SystemClock
from sluicegate.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.near import NearSettings

Row = list[Any]


class WrongClock(SystemClock):
    """A wall clock that is off by a fixed time."""

    __slots__ = ("_skew_us",)

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us

    def now_us(self) -> int:
        return super().now_us() + self._skew_us


class Racer:
    """The limiters of this process."""

    def __init__(self, *, threads: bool) -> None:
        self._limiters: dict[int, Limiter] = {}
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(16) if threads else None

    def open(self, order: dict[str, Any]) -> object:
        self.close()
        ruleset = load_rules(order["rules"].encode(), "rules.yaml")
        clock = WrongClock(order["skew_us"])
        for number in order["numbers"]:
            near = NearSettings() if order["near"] else None
            self._limiters[number] = Limiter.from_rules(ruleset, order["url"], clock, near=near)
        # Every connection is made before the first round.
        warm = {"calls": 1, "users": ["warm"], "paths": ["/warm"], "at_s": 0.0}
        return len(self.round(warm, peek=True))

    def round(self, order: dict[str, Any], *, peek: bool = False) -> list[Row]:
        users, paths, at_s = order["users"], order["paths"], order["at_s"]
        plans = {
            number: [
                Facts(path=paths[(number + call) % len(paths)], user=users[number % len(users)])
                for call in range(order["calls"])
            ]
            for number in self._limiters
        }
        if self._pool is None:
            return self._loop.run_until_complete(self._round_of_tasks(plans, at_s, peek=peek))
        ready = threading.Barrier(len(plans))
        rounds = [self._pool.submit(self._round_of_thread, n, plan, at_s, ready, peek) for n, plan in plans.items()]
        return [row for found in rounds for row in found.result(60)]

    def _round_of_thread(
        self, number: int, plan: list[Facts], at_s: float, ready: threading.Barrier, peek: bool
    ) -> list[Row]:
        limiter, rows = self._limiters[number], []
        ready.wait(60)
        wait_until(at_s)
        for facts in plan:
            began_us = time.monotonic_ns() // 1_000
            decision = limiter.check(facts, peek=peek)
            rows.append(row(number, facts, decision, began_us))
        return rows

    async def _round_of_tasks(self, plans: dict[int, list[Facts]], at_s: float, *, peek: bool) -> list[Row]:
        async def one(number: int, facts: Facts) -> Row:
            began_us = time.monotonic_ns() // 1_000
            decision = await self._limiters[number].acheck(facts, peek=peek)
            return row(number, facts, decision, began_us)

        checks = [one(number, facts) for number, plan in plans.items() for facts in plan]
        wait_until(at_s)
        return await asyncio.gather(*checks)

    def close(self) -> None:
        for limiter in self._limiters.values():
            self._loop.run_until_complete(limiter.aclose())
        self._limiters.clear()


def row(number: int, facts: Facts, decision: Any, began_us: int) -> Row:
    ended_us = time.monotonic_ns() // 1_000
    return [number, facts.user, facts.path, decision.allowed, decision.degraded, began_us, ended_us]


def wait_until(at_s: float) -> None:
    """Return at the moment, or at once where it is past."""
    while (left_s := at_s - time.monotonic()) > 0:
        threading.Event().wait(left_s)


def main() -> None:
    racer = Racer(threads=sys.argv[1] == "threads")
    for line in sys.stdin:
        order = json.loads(line)
        answer: object
        if order["do"] == "open":
            answer = racer.open(order)
        elif order["do"] == "round":
            answer = racer.round(order)
        else:
            racer.close()
            answer = None
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


main()
