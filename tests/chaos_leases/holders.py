"""Processes that hold leases and let requests pass, each with a limiter of its own; forked from one that has loaded everything.

Reads orders, one JSON object a line, and answers each with the process id of the holder that it began; before the first it
says ``ready``. A holder asks its limiter from ``begins_s`` to
``ends_s`` (of the machine's monotonic clock), in bursts at ``rate`` checks a second, and writes what it was told to the file ``log`` as it comes,
so that a holder that is killed leaves all but its last burst there. ``log`` + ``.end`` is written when it is through; what went wrong
stands in ``.error``. A forked holder logs beside its parent, under a number.

A row of the log (``ROW``): when the check began and ended by the wall clock, which is the server's clock too; how many were asked and how many admitted; of
which of the ``facts``. A check that never ends because its process is stopped for good admits nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import wrong_holders
from chaos_history import ROW

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.clock import SystemClock
from sluicegate.errors import StoreError
from sluicegate.limiter import Decision, Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.base import LeaseItem
from sluicegate.stores.near import NearSettings
from sluicegate.stores.redis import RedisStore

HOLDERS: list[Holder] = []
"""Who is alive in this process, as long as it runs: a limiter that nobody has any more is not one that ends."""
LASTS_S = 60
"""No holder lives longer, whatever becomes of whoever began it."""

Message = tuple[str, LeaseTerms, list[LeaseItem]]


class DriftingClock(SystemClock):
    """A steady clock that is fast or slow by so many millionths."""

    __slots__ = ("_ppm",)

    def __init__(self, ppm: int) -> None:
        self._ppm = ppm

    def monotonic_us(self) -> int:
        return super().monotonic_us() * (1_000_000 + self._ppm) // 1_000_000


class HarmedStore(RedisStore):
    """A Redis to which messages about leases get lost, late, twice, and long after they were sent; the same for their answers."""

    def __init__(self, url: str, harm: dict[str, float], draw: Random) -> None:
        super().__init__(url)
        self.harm, self.draw = harm, draw
        self.old: list[Message] = []

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        draw, harm = self.draw, self.harm
        if self.old and draw.random() < 0.5:
            # What was sent before arrives now, after all that was said since.
            with contextlib.suppress(StoreError):
                super().lease(*self.old.pop(draw.randrange(len(self.old))))
        message = (holder, terms, list(items))
        if draw.random() < harm["lost"]:
            self.old = [*self.old[-7:], message]
            raise StoreError("the message was lost")
        if draw.random() < harm["late"]:
            threading.Event().wait(draw.uniform(0, 1.5 * terms.ttl_us / 1e6))
        grants = super().lease(*message)
        if draw.random() < harm["doubled"]:
            self.old = [*self.old[-7:], message]
            grants = super().lease(*message)
        if draw.random() < harm["late"]:
            threading.Event().wait(draw.uniform(0, 1.5 * terms.ttl_us / 1e6))
        if draw.random() < harm["lost"]:
            raise StoreError("the answer was lost")
        return grants


class Log:
    """Where a holder writes what it was told."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def add(self, began_us: int, asked: int, admitted: int, which: int) -> None:
        os.write(self._file, ROW.pack(began_us, wall_us(), asked, admitted, which))

    def end(self, **words: object) -> None:
        # In one step: whoever finds it can read it.
        temporary = Path(self.path + ".ending")
        temporary.write_text(json.dumps(words))
        temporary.rename(self.path + ".end")


class Holder:
    """One process of the fleet."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.draw = Random(order["seed"])
        self.log = Log(order["log"])
        self.facts = [Facts(**facts) for facts in order["facts"]]
        self.weights = order["weights"]
        terms = LeaseTerms(ttl_us=order["ttl_us"])
        near = NearSettings(terms=terms, horizon_us=order["horizon_us"], exact_below=order["exact_below"])
        store = HarmedStore(order["url"], order["harm"], self.draw)
        clock = DriftingClock(order["ppm"])
        self.limiter = Limiter.from_rules(rules_of(order["rules"]), store, clock, near=near)
        self.changes = [(at_s, rules_of(text)) for at_s, text in order["changes"]]
        self.forks = list(order["forks"])
        self.applied: list[int] = []
        self.children = self.admitted = 0

    async def run(self) -> None:
        order = self.order
        next_s = order["begins_s"]
        while next_s < order["ends_s"]:
            while (left_s := next_s - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            # Whoever is late does not make up for it.
            count = self.draw.randint(1, 2 * order["burst"] - 1)
            next_s = max(next_s, time.monotonic() - 0.05) + self.draw.uniform(0.2, 1.8) * order["burst"] / order["rate"]
            if self.changes and time.monotonic() >= self.changes[0][0]:
                self.limiter.apply(self.changes.pop(0)[1])
                self.applied.append(wall_us())
            await self.burst(count, self.draw.choices(range(len(self.facts)), self.weights)[0])

    async def burst(self, count: int, which: int) -> None:
        manner, facts = self.order["manner"], self.facts[which]
        if manner == "tasks":
            await asyncio.gather(*[self.acheck(facts, which) for _ in range(count)])
        elif manner == "batches":
            began_us = wall_us()
            self.told(began_us, which, self.limiter.check_many([facts] * count))
        else:
            for _ in range(count):
                began_us = wall_us()
                self.told(began_us, which, [self.limiter.check(facts)])

    async def acheck(self, facts: Facts, which: int) -> None:
        began_us = wall_us()
        self.told(began_us, which, [await self.limiter.acheck(facts)])

    def told(self, began_us: int, which: int, decisions: Sequence[Decision]) -> None:
        admitted = sum(decision.allowed for decision in decisions)
        self.admitted += admitted
        self.log.add(began_us, len(decisions), admitted, which)
        assert not any(decision.allowed and decision.degraded for decision in decisions), "admitted without the store"

    def live(self) -> None:
        """The whole life, with the forks: each child goes on as its parent does."""
        ends_s = self.order["ends_s"]
        for fork_s in [*self.forks, ends_s]:
            self.order["ends_s"] = min(fork_s, ends_s)
            asyncio.run(self.run())
            self.order["begins_s"] = self.order["ends_s"]
            if fork_s >= ends_s:
                break
            self.children += 1
            path = f"{self.log.path}-{self.children}"
            if os.fork() == 0:
                self.log, self.children, self.admitted = Log(path), 0, 0
                self.draw.seed(path)
        self.end()

    def end(self) -> None:
        near = self.limiter.near
        assert near is not None
        if self.order["end"] == "close":
            self.limiter.close()
        counts = near.front.leases.counts
        self.log.end(
            applied=self.applied,
            admitted=self.admitted,
            leased=near.stats.leased,
            asks=counts.asks,
            failed=counts.failed,
            written_off=counts.written_off,
        )


def rules_of(text: str) -> Any:
    return load_rules(text.encode(), "rules.yaml")


def wall_us() -> int:
    return time.time_ns() // 1_000


def live(order: dict[str, Any]) -> None:
    signal.alarm(LASTS_S)
    wrong_holders.become(order["wrong"])
    holder = Holder(order)
    HOLDERS.append(holder)
    try:
        holder.live()
    except BaseException:
        Path(holder.log.path + ".error").write_text(traceback.format_exc())


def main() -> None:
    # Nobody waits for holders here: whoever ordered them watches them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            # Ends as any program does, with what is done at the end of one.
            live(order)
            return
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
