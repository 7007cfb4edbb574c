"""Decisions by callback."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, Outcome, TokenBucket, Verdict
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import InvalidRequest, StoreError
from sluicegate.limiter.calls import verdict_of
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore
from sluicegate.testing.store_contract import counter_for

COUNTER = counter_for(TokenBucket(3, 3, 60 * US_PER_S), "inline")


class Later:
    """A quota limiter over a store whose answers are held."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.flaky = FlakyStore(MemoryStore(self.clock))
        self.store = LaterStore(self.flaky)
        self.limiter = Limiter.from_quota("3/minute", store=self.store, clock=self.clock, **options)


@pytest.fixture
def in_process() -> Limiter:
    return Limiter.from_quota("3/minute", clock=ManualClock())


def test_limiters_say_whether_they_wait(in_process: Limiter) -> None:
    """``waits`` is True for a store that answers later, False for one in this process or with blocking calls only."""
    assert Later().limiter.waits
    assert not in_process.waits
    assert not Limiter.from_quota("1/s", store=FlakyStore(MemoryStore(ManualClock()))).waits


def test_in_process_it_is_done_at_once(in_process: Limiter) -> None:
    """With a store of this process the callback is called before ``submit`` returns, without an event loop."""
    told: list[Any] = []
    in_process.submit("k", told.append, 2)
    in_process.submit("k", told.append, peek=True)
    in_process.submit_counter(COUNTER, "s", 2, told.append, receipt=True)
    assert [(d.allowed, d.remaining) for d in told] == [(True, 1), (True, 1), (True, 1)]
    assert in_process.refund(told[2]) == 1
    in_process.submit_single((COUNTER, "s", 3), lambda *single: told.append(single))
    admitted, state, now_us, degraded = told[3]
    assert (admitted, degraded) == (True, False)
    assert verdict_of((COUNTER, "s", 3), (admitted, state), now_us).remaining == 0
    assert in_process.stats.allowed == 3


async def test_answers_come_in_any_order() -> None:
    """Each callback gets its own answer once, whatever the order of the answers."""
    later = Later()
    later.store.hold()
    told: list[tuple[int, bool]] = []

    def note(number: int, decision: Decision) -> None:
        told.append((number, decision.allowed))

    for number in range(5):
        later.limiter.submit("k", partial(note, number))
    assert told == []
    assert later.store.release(2, newest_first=True) == 2
    assert told == [(4, False), (3, False)]
    later.store.release()
    assert sorted(told) == [(0, True), (1, True), (2, True), (3, False), (4, False)]
    assert later.limiter.stats.decisions == {("", "allowed"): 3, ("quota", "denied"): 2}


@pytest.mark.parametrize("facts, cost", [("", 1), (None, 1), ("k", 0), ("k", True), ("k", 10**18)])
async def test_what_cannot_be_decided_is_said_at_once(facts: Any, cost: Any) -> None:
    """InvalidRequest is raised by the call; the callback is never called and the store never asked."""
    later = Later()
    told: list[Decision] = []
    with pytest.raises(InvalidRequest):
        later.limiter.submit(facts, told.append, cost)
    with pytest.raises(InvalidRequest, match="cost"):
        later.limiter.submit_counter(COUNTER, "s", 0, told.append)
    await asyncio.sleep(0)
    assert (told, later.store.submitted) == ([], 0)


async def test_requests_without_charges_are_done_at_once() -> None:
    """Where no rule applies, or the limiter is off, the store is not asked."""
    clock = ManualClock()
    store = LaterStore(MemoryStore(clock))
    rules = load_rules("version: 1\nrules: [{name: a, match: {path: /x}, quota: 1/hour}]", "r")
    limiter = Limiter.from_rules(rules, store, clock)
    told: list[Decision] = []
    limiter.submit(Facts(path="/y"), told.append)
    limiter.enabled = False
    limiter.submit(Facts(path="/x"), told.append)
    limiter.submit_counter(COUNTER, "s", 9, told.append)
    assert [d.allowed for d in told] == [True] * 3
    assert (store.submitted, limiter.stats.unmatched, limiter.stats.bypassed) == (0, 1, 2)


async def test_options_by_callback() -> None:
    """Peeks charge nothing; receipts give back; dicts are facts."""
    later = Later()
    told: list[Decision] = []
    limiter = later.limiter
    limiter.submit("k", told.append, 0, peek=True)
    limiter.submit("k", told.append, 2, receipt=True)
    limiter.submit_counter(COUNTER, "s", 0, told.append, peek=True)
    limiter.submit_counter(COUNTER, "s", 3, told.append, receipt=True)
    await asyncio.sleep(0)
    assert [d.remaining for d in told] == [3, 1, 3, 0]
    assert [d.decision_id is not None for d in told] == [False, True, False, True]
    assert await limiter.arefund(told[1]) == 1
    assert (await limiter.apeek("k")).remaining == 3
    assert limiter.stats.peeks == 3


@pytest.mark.parametrize("form", ["submit", "special", "single"])
async def test_an_exception_of_a_callback_harms_nobody_else(form: str) -> None:
    """It goes to the loop's exception handler; the answers after it reach their callers."""
    later = Later()
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    told: list[bool] = []

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    if form == "single":
        later.limiter.submit_single((COUNTER, "s", 1), fail)
        later.limiter.submit_single((COUNTER, "s", 1), lambda admitted, *_: told.append(admitted))
    else:
        later.limiter.submit("k", fail, peek=form == "special")
        later.limiter.submit("k", lambda decision: told.append(decision.allowed))
    await asyncio.sleep(0)
    assert told == [True]
    assert [str(report["exception"]) for report in reports] == ["no"]


async def test_singles_later() -> None:
    """``submit_single`` tells admitted, state and time of the store, and counts like ``decide_counters``."""
    later = Later()
    told: list[tuple[Any, ...]] = []
    for cost in (2, 2, 4):
        later.limiter.submit_single((COUNTER, "s", cost), lambda *single: told.append(single))
    await asyncio.sleep(0)
    verdicts = [
        verdict_of((COUNTER, "s", cost), (admitted, state), now_us)
        for cost, (admitted, state, now_us, _) in zip((2, 2, 4), told, strict=True)
    ]
    assert [v.outcome for v in verdicts] == [Outcome.ALLOWED, Outcome.DENIED, Outcome.NEVER_FITS]
    assert not any(degraded for *_, degraded in told)
    assert later.limiter.stats.decisions == {
        ("", "allowed"): 1,
        ("inline", "denied"): 1,
        ("inline", "never_fits"): 1,
    }


async def test_singles_without_the_store() -> None:
    """A single that the store failed is decided here and brings its Verdict, by this node's share. P51"""
    later = Later(nodes=2)
    later.flaky.down = True
    counter = counter_for(FixedWindow(4, 60 * US_PER_S), "inline")
    told: list[tuple[Any, ...]] = []
    for _ in range(3):
        later.limiter.submit_single((counter, "s", 1), lambda *single: told.append(single))
        await asyncio.sleep(0)
    assert [(admitted, degraded) for admitted, _, _, degraded in told] == [(True, True), (True, True), (False, True)]
    assert told[2][1] == Verdict(Outcome.DENIED, 0, 30 * US_PER_S, 30 * US_PER_S)
    later.flaky.down = False
    later.limiter.submit_single((counter, "s", 1), lambda *single: told.append(single))
    await asyncio.sleep(0)
    later.limiter.submit_single((counter, "s", 1), lambda *single: told.append(single))
    assert [told[3][0], told[4][0]] == [False, False]
    later.clock.advance(60 * US_PER_S)
    later.limiter.submit_single((counter, "s", 1), lambda *single: told.append(single))
    await asyncio.sleep(0)
    assert (told[5][0], told[5][3]) == (True, False)
    stats = later.limiter.stats
    assert (stats.degraded, stats.degraded_local, stats.handover_refused, stats.settled) == (5, 3, 2, 1)


async def test_a_reply_that_is_lost_on_its_way() -> None:
    """An answer that turns into an error is decided by policy, once."""
    later = Later(on_store_failure="closed")
    later.store.hold()
    told: list[Decision] = []
    later.limiter.submit("k", told.append)
    later.store.release(error=StoreError("cut"))
    assert [(d.allowed, d.refusal) for d in told] == [(False, "store")]


async def test_rules_may_change_while_an_answer_is_under_way() -> None:
    """A request is decided wholly by the rules that were in force when it was submitted."""
    later = Later(on_store_failure="closed")
    later.store.hold()
    told: list[Decision] = []
    later.limiter.submit("k", told.append)
    later.limiter.apply("1/hour")
    later.limiter.submit("k", told.append)
    later.store.release()
    assert [(d.version, d.limit) for d in told] == [(1, 3), (2, 1)]
