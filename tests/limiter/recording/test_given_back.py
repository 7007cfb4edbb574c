"""Whatever gives tokens back to a watched counter is told, whoever calls it and however."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.events import ASK, GIVEN_BACK, RESET, Admission
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.recording import Recorder
from sluicegate.limiter.recording.following import digest_of
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore

RULES = "{version: 1, rules: [{name: ip, per: [ip], quota: 40/minute}]}"
WATCHED = next(f"10.0.{n >> 8}.{n & 255}" for n in range(65_536) if digest_of(f"ip:10.0.{n >> 8}.{n & 255}") >> 22 == 0)


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FlakyStore(MemoryStore(self.clock))
        self.limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml", 1), LaterStore(self.store), self.clock)
        self.recorder = Recorder(self.clock, name_of=str, follow=True)
        self.limiter.record(self.recorder)
        self.facts = {"ip": WATCHED}

    def told(self) -> list[Admission]:
        now_us = self.clock.now_us()
        return [each for each in self.recorder.take(now_us, now_us).admissions if each.kind != ASK]


Call = Callable[[Limiter, dict[str, object]], Coroutine[Any, Any, object]]


async def _refund(limiter: Limiter, facts: dict[str, object]) -> object:
    return limiter.refund(limiter.check(facts, 3, receipt=True))


async def _arefund(limiter: Limiter, facts: dict[str, object]) -> object:
    return await limiter.arefund(await limiter.acheck(facts, 3, receipt=True))


async def _receipts(limiter: Limiter, facts: dict[str, object]) -> object:
    return limiter.refund_receipts(limiter.check(facts, 3).receipts())


async def _areceipts(limiter: Limiter, facts: dict[str, object]) -> object:
    return await limiter.arefund_receipts((await limiter.acheck(facts, 3)).receipts())


async def _taken_back(limiter: Limiter, facts: dict[str, object]) -> object:
    limiter.take_back(limiter.check(facts, 3))
    await asyncio.sleep(0)
    return None


async def _grant(limiter: Limiter, facts: dict[str, object]) -> object:
    limiter.check(facts, 3)
    return limiter.grant(facts, 30)


async def _agrant(limiter: Limiter, facts: dict[str, object]) -> object:
    limiter.check(facts, 3)
    return await limiter.agrant(facts, 30)


async def _give_back(limiter: Limiter, facts: dict[str, object]) -> object:
    return limiter.give_back([(charge[0], charge[1], 3) for charge in limiter.check(facts, 5).plan.charges])


async def _agive_back(limiter: Limiter, facts: dict[str, object]) -> object:
    return await limiter.agive_back([(charge[0], charge[1], 3) for charge in limiter.check(facts, 5).plan.charges])


@pytest.mark.parametrize(
    "call",
    [_refund, _arefund, _receipts, _areceipts, _taken_back, _grant, _agrant, _give_back, _agive_back],
    ids=lambda call: call.__name__,
)
def test_tokens_given_back_are_told(call: Call) -> None:
    """Each way to give back three tokens tells of three, once, with the counter and its numbers."""
    site = Site()
    asyncio.run(call(site.limiter, site.facts))  # type: ignore[arg-type]
    (told,) = site.told()
    assert (told.kind, told.cost, told.allowed, told.capacity) == (GIVEN_BACK, 3, False, 40)
    assert (told.rule, told.subject) == ("ip", f"ip:{WATCHED}")
    assert site.told() == []


def test_a_reset_and_a_change_elsewhere_are_told() -> None:
    """A reset names its counters; that somebody else changed some names none, and is told even where nobody asks anything."""
    site = Site()
    site.limiter.check(site.facts)
    site.limiter.reset(site.facts)
    asyncio.run(site.limiter.areset(site.facts))
    site.limiter.forget(site.facts)
    assert [(each.kind, each.subject) for each in site.told()] == [(RESET, f"ip:{WATCHED}")] * 3
    site.limiter.forget()
    (any_counter,) = site.told()
    assert (any_counter.kind, any_counter.rule, any_counter.subject) == (RESET, "", "")


def test_a_grant_that_failed_may_have_been_made() -> None:
    """Where the store does not answer all the tokens asked for are told: nothing says that they were not given."""
    site = Site()
    site.limiter.check(site.facts, 3)
    site.store.down = True
    with pytest.raises(StoreError):
        site.limiter.grant(site.facts, 30)
    assert [(each.kind, each.cost) for each in site.told()] == [(GIVEN_BACK, 30)]


def test_counters_that_are_not_watched_tell_nothing() -> None:
    """Of other clients nothing is told, and nobody who does not follow tells anything."""
    site = Site()
    other = next(f"10.0.0.{n}" for n in range(256) if digest_of(f"ip:10.0.0.{n}") >> 22)
    site.limiter.refund(site.limiter.check({"ip": other}, receipt=True))
    site.limiter.reset({"ip": other})
    assert site.told() == []
    plain = Recorder(site.clock, name_of=str)
    site.limiter.record(plain)
    site.limiter.reset(site.facts)
    site.limiter.forget()
    assert plain.take(0, 0).admissions == []
