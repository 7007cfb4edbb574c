"""A fault at every call of the store, one after the other. P47 P48"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore
from sluicegate.testing.store_contract import counter_for

RULES = """
version: 1
rules:
  - {name: all, quota: 50/hour, on_store_failure: open}
  - {name: user, per: [user], quota: 9/minute}
  - {name: slow, match: {path: /slow}, quota: 3/hour, algorithm: sliding_log, fallback_start: empty}
  - {name: login, match: {path: /login}, per: [ip], quota: 5/minute, on_store_failure: closed}
  - {name: trial, quota: 1/hour, mode: shadow}
"""
FACTS = [Facts(user="ann", path="/x"), Facts(user="ann", ip="10.0.0.1", path="/login"), Facts(user="bob", path="/slow")]
COUNTER = counter_for(TokenBucket(3, 3, 60 * US_PER_S), "inline")


class Faulty(FlakyStore):
    """Fails its call number ``at`` and as many after it as told."""

    def __init__(self, store: MemoryStore, at: int, times: int, *, lose: bool) -> None:
        super().__init__(store)
        self._faults = range(at, at + times)
        self._lose = lose

    def _before(self) -> None:
        if self.calls in self._faults:
            setattr(self, "lose_next" if self._lose else "fail_next", 1)
        super()._before()


async def session(limiter: Limiter, clock: ManualClock) -> list[Any]:
    """Every call of a limiter, in both kinds; returns all that was said."""
    said: list[Any] = []

    async def may_fail(call: Callable[[], Awaitable[int]]) -> None:
        # To give back and to forget have no policy: their callers are told.
        try:
            said.append(await call())
        except StoreError as error:
            said.append(error)

    async def nothing() -> int:
        return 0

    def tell_single(*single: Any) -> None:
        said.append(single)

    for _ in range(2):
        for facts in FACTS:
            said.append(limiter.check(facts))
            said.append(await limiter.acheck(facts, receipt=True))
            kept = said[-1]
            limiter.submit(facts, said.append)
            limiter.submit(facts, said.append, peek=True)
            await asyncio.sleep(0)
            await may_fail(partial(limiter.arefund, kept) if kept.decision_id else nothing)
        said += limiter.check_many([*FACTS, FACTS[0]])
        said += await limiter.acheck_many([*FACTS, FACTS[0]])
        said += [limiter.check_counter(COUNTER, "s"), limiter.check_counter(COUNTER, "s", 0, peek=True)]
        limiter.submit_counter(COUNTER, "s", 1, said.append, receipt=True)
        limiter.submit_single((COUNTER, "s", 1), tell_single)
        await asyncio.sleep(0)
        said += limiter.decide_counters([(COUNTER, "t", 1)] * 4).singles
        said += (await limiter.adecide_counters([(COUNTER, "t", 1)] * 4)).singles
        said += await limiter.acheck_counters_many([(COUNTER, "u", 1)] * 2)
        await may_fail(lambda: limiter.areset(FACTS[2]))
        clock.advance(7 * US_PER_S)
    return said


async def run(kind: str, at: int, times: int, *, lose: bool) -> tuple[list[Any], Faulty, Limiter]:
    clock = ManualClock()
    store = Faulty(MemoryStore(clock), at, times, lose=lose)
    limiter = Limiter.from_rules(
        load_rules(RULES, "r"), LaterStore(store) if kind == "later" else store, clock, nodes=2
    )
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    said = await session(limiter, clock)
    assert reports == []
    return said, store, limiter


def described(decision: Decision) -> tuple[bool, bool]:
    """Touches all that a decision says, as doors do after they have it."""
    assert decision.to_dict()["allowed"] == decision.allowed
    assert len(decision.results) == len(decision.plan.charges)
    assert repr(decision)
    assert decision.allowed == (decision.refusal is None)
    assert (decision.retry_after_us == 0) == decision.allowed
    return decision.allowed, decision.degraded


@pytest.mark.parametrize("kind", ["plain", "later"])
@pytest.mark.parametrize("lose", [False, True], ids=["fails", "loses"])
@pytest.mark.parametrize("times", [1, 3, 1000])
async def test_a_fault_at_every_call(kind: str, lose: bool, times: int) -> None:
    """Whichever call of the store fails, every question gets a whole answer; only refunds and resets tell of it."""
    whole, store, _ = await run(kind, 10**9, 1, lose=lose)
    assert not any(described(said)[1] for said in whole if isinstance(said, Decision))
    assert store.calls > 40
    for at in range(0, store.calls, 1 if times == 1 else 5):
        said, _, limiter = await run(kind, at, times, lose=lose)
        assert len(said) == len(whole)
        degraded = sum(described(one)[1] for one in said if isinstance(one, Decision))
        stats = limiter.stats
        assert degraded or stats.store_errors or any(isinstance(one, StoreError) for one in said)
        assert stats.degraded + stats.peeks >= degraded
