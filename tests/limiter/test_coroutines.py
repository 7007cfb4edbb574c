"""The coroutine forms of a limiter's calls."""

from __future__ import annotations

import asyncio

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import InvalidRequest, ReceiptUnknown, StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore
from sluicegate.testing.store_contract import counter_for

COUNTER = counter_for(TokenBucket(3, 3, 60 * US_PER_S), "inline")


def limiters(quota: str = "4/minute") -> list[tuple[Limiter, FlakyStore]]:
    """The same limiter over a store that takes time, and over one that does not."""
    made = []
    for later in (True, False):
        clock = ManualClock()
        store = FlakyStore(MemoryStore(clock))
        made.append((Limiter.from_quota(quota, store=LaterStore(store) if later else store, clock=clock), store))
    return made


async def test_every_call_says_the_same() -> None:
    """Checks, batches, peeks, counters, refunds and resets give the same answers with both kinds of store."""
    told = []
    for limiter, _ in limiters():
        first = await limiter.acheck("k", 2, receipt=True)
        told.append(
            [
                (first.allowed, first.remaining),
                [(d.allowed, d.remaining) for d in await limiter.acheck_many(["k", ("k", 2), "other"])],
                (await limiter.apeek("k")).remaining,
                await limiter.arefund(first),
                await limiter.arefund(first),
                (await limiter.apeek("k", 3)).allowed,
                await limiter.areset("k"),
                (await limiter.apeek("k")).remaining,
                [d.remaining for d in await limiter.acheck_counters_many([(COUNTER, "s", 1)] * 4)],
                (await limiter.adecide_counters([(COUNTER, "t", 2)] * 2)).singles,
                (await limiter.adecide_counters([])).singles,
                await limiter.acheck_counters_many([]),
                await limiter.awarm(),
                limiter.stats.decisions,
                limiter.stats.refunds,
            ]
        )
        await limiter.aclose()
    # The time of the two clocks is the same.
    assert told[0][:-1] == told[1][:-1]
    assert told[0][-1] == 1


async def test_errors_are_the_callers() -> None:
    """A batch that cannot be decided charges nothing; receipts that are none say so."""
    for limiter, store in limiters():
        with pytest.raises(InvalidRequest, match=r"requests\[1\].cost"):
            await limiter.acheck_many(["k", ("k", 0)])
        with pytest.raises(ReceiptUnknown):
            await limiter.arefund("nothing", strict=True)
        with pytest.raises(InvalidRequest, match="decision_id"):
            await limiter.arefund(await limiter.acheck("k"))
        assert (await limiter.acheck_many([])) == []
        decision = await limiter.acheck("k", receipt=True)
        store.down = True
        with pytest.raises(StoreError):
            await limiter.arefund(decision)
        with pytest.raises(StoreError):
            await limiter.areset("k")
        assert await limiter.arefund(decision) == 0


async def test_a_switched_off_limiter_asks_nobody() -> None:
    """While ``enabled`` is False every form allows and no store is asked."""
    for limiter, store in limiters():
        limiter.enabled = False
        assert (await limiter.acheck("k", 99)).allowed
        assert [d.allowed for d in await limiter.acheck_many([("k", 99)] * 2)] == [True] * 2
        assert [d.allowed for d in await limiter.acheck_counters_many([(COUNTER, "s", 99)] * 2)] == [True] * 2
        assert (store.calls, limiter.stats.bypassed) == (0, 5)


async def test_a_cancelled_check_harms_nobody() -> None:
    """The charge of a cancelled call may stand; later calls are decided as ever."""
    clock = ManualClock()
    store = LaterStore(MemoryStore(clock))
    limiter = Limiter.from_quota("4/minute", store=store, clock=clock)
    store.hold()
    task = asyncio.create_task(limiter.acheck("k"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.release()
    assert (await limiter.acheck("k")).remaining == 2


async def test_a_store_that_is_absent_is_no_error_at_the_start() -> None:
    """``awarm`` says False where the store is not there, and the limiter decides all the same. T80"""
    clock = ManualClock()
    flaky = FlakyStore(MemoryStore(clock))
    store = LaterStore(flaky)
    store.state, flaky.down = "down", True
    limiter = Limiter.from_quota("4/minute", store=store, clock=clock)
    assert not await limiter.awarm()
    decision = await limiter.acheck("k")
    assert (decision.allowed, decision.degraded) == (True, True)


async def test_a_batch_with_answers_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage a batch is decided in order: what the local counters refuse is not asked, the rest is."""
    for limiter, store in limiters():
        store.down = True
        decisions = await limiter.acheck_many(["a"] * 5 + ["b"])
        assert [d.allowed for d in decisions] == [True] * 4 + [False, True]
        store.down = False
        decisions = await limiter.acheck_many(["a", "b", "c", "a"])
        assert [(d.allowed, d.degraded) for d in decisions] == [
            (False, True),
            (True, False),
            (True, False),
            (False, True),
        ]
        assert (limiter.stats.settled, limiter.stats.handovers) == (2, 1)
        assert (await limiter.apeek("b")).remaining == 2


async def test_a_batch_of_a_hand_over_takes_one_deadline() -> None:
    """What a batch has decided and what it only looks at is asked side by side, and each answer finds its request."""
    clock = ManualClock()
    flaky = FlakyStore(MemoryStore(clock))
    store = LaterStore(flaky)
    limiter = Limiter.from_quota("2/minute", store=store, clock=clock)
    flaky.down = True
    assert [(await limiter.acheck("spent")).allowed for _ in range(2)] == [True] * 2
    flaky.down = False
    store.hold()
    task = asyncio.create_task(limiter.acheck_many(["spent", "fresh", "spent"]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.waiting == 2
    store.release(newest_first=True)
    assert [(decision.allowed, decision.degraded) for decision in await task] == [
        (False, True),
        (True, False),
        (False, True),
    ]


async def test_the_number_of_nodes_comes_from_the_store() -> None:
    """A store that knows how many processes share it has the last word, if it is more than what was configured. P51"""
    clock = ManualClock()
    flaky = FlakyStore(MemoryStore(clock))
    store = LaterStore(flaky)
    limiter = Limiter.from_quota("12/minute", store=store, clock=clock, nodes=2)
    assert limiter.fallback_nodes == 2
    store.nodes = 4
    assert limiter.fallback_nodes == 4
    flaky.down = True
    assert [(await limiter.acheck("k")).allowed for _ in range(4)] == [True] * 3 + [False]
    # The heartbeats have stopped with the store; the nodes have not.
    store.nodes = 1
    assert limiter.fallback_nodes == 4
    assert not (await limiter.acheck("k")).allowed


async def test_facts_by_coroutine() -> None:
    """A limiter with rules takes facts, and dicts with their fields."""
    clock = ManualClock()
    from_rules = Limiter.from_rules(limiters()[0][0].ruleset, LaterStore(MemoryStore(clock)), clock)
    assert (await from_rules.acheck(Facts(attrs={"key": "k"}))).remaining == 3
    assert (await from_rules.acheck({"attrs": {"key": "k"}})).remaining == 2
