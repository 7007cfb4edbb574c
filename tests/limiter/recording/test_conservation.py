"""Every decision is told exactly once, whatever the call, the answer and the moment of the take."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.events import ALLOWED, SHADOW_DENIED, UNDECIDED, Dropped, decode, encode
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.recording import Recorder, Taken
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry
from sluicegate.rules.load import load_rules
from sluicegate.stores.base import Counter as StoreCounter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore

RULES = """
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - {name: all, match: {path: /all}, quota: 40/minute, on_store_failure: closed}
  - {name: ip, match: {path: /ip}, per: [ip], quota: {free: 5/minute, paid: 9/minute}, on_store_failure: local}
  - {name: two, match: {path: /ip}, per: [user], quota: "3/second; 7/minute", on_store_failure: open}
  - {name: dear, match: {path: /dear}, per: [ip], cost: 3, quota: 20/minute}
  - {name: trial, match: {methods: [GET]}, per: [ip], quota: 2/minute, mode: shadow}
  - {name: must, match: {path: /must}, per: [api_key], on_missing: deny, quota: 5/minute}
"""
PLAIN = StoreCounter("policy", TokenBucket(5, 5, 60 * US_PER_S), counter_prefix("default", "p", "token_bucket", "-"))


class Site:
    """A limiter with lists and a store that fails when told to, and what was decided by it."""

    def __init__(self, *, follow: bool) -> None:
        self.clock = ManualClock()
        self.store = FlakyStore(MemoryStore(self.clock))
        self.version = 1
        self.limiter = Limiter.from_rules(self.rules(), LaterStore(self.store), self.clock)
        self.recorder = Recorder(self.clock, name_of=lambda subject: subject, follow=follow)
        self.limiter.record(self.recorder)
        self.limiter.lists.put(ListEntry("block", "ip", "10.0.0.9"))
        self.limiter.lists.put(ListEntry("allow", "ip", "10.0.0.8"))
        self.requests: Counter[tuple[str, bool]] = Counter()
        self.tokens = 0
        self.rule_rows: Counter[tuple[str, str, str, int]] = Counter()
        self.told: list[Taken] = []

    def rules(self) -> Any:
        return load_rules(RULES, "rules.yaml", self.version)

    def decided(self, decision: Decision, cost: int) -> None:
        """Count a decision as a naive reader of it does."""
        if not self.limiter.enabled:
            outcome = "bypassed"
        elif decision.allowed and decision.listed is None and not decision.results:
            outcome = "unmatched"
        else:
            outcome = decision.outcome.value
        self.requests[outcome, decision.degraded] += 1
        self.tokens += cost
        rules: dict[str, set[str]] = {}
        for result in () if decision.listed is not None else decision.results:
            said = result.outcome.value
            if said in ("denied", "never_fits") and result.shadow:
                said = SHADOW_DENIED
            rules.setdefault(result.rule.partition("#")[0], set()).add(said)
        for rule, said_by_parts in rules.items():
            order = (ALLOWED, SHADOW_DENIED, UNDECIDED, "denied", "never_fits")
            worst = max(said_by_parts, key=order.index)
            self.rule_rows[rule, worst, decision.plan.tier or "", decision.version] += 1

    def take(self) -> None:
        now_us = self.clock.now_us()
        self.told.append(self.recorder.take(now_us - US_PER_S, now_us))

    def check(self) -> None:
        self.take()
        found: Counter[tuple[str, bool]] = Counter()
        rows: Counter[tuple[str, str, str, int]] = Counter()
        tokens = 0
        for taken in self.told:
            batch = taken.batch("n", "n/1/0", Dropped())
            assert decode(encode(batch)) == batch
            for row in batch.requests:
                found[row.outcome, row.degraded] += row.decisions
                tokens += row.tokens
            for rule in batch.rules:
                rows[rule.rule, rule.outcome, rule.tier, rule.version] += rule.decisions
        assert found == self.requests
        assert tokens == self.tokens
        assert rows == self.rule_rows


FACTS = st.builds(
    Facts,
    method=st.sampled_from(["GET", "POST"]),
    path=st.sampled_from(["/all", "/ip", "/dear", "/must", "/nothing", "/ip?x=1"]),
    ip=st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.8", "10.0.0.9"]),
    user=st.sampled_from([None, "u1"]),
    api_key=st.sampled_from([None, "k1"]),
    tier=st.sampled_from([None, "free", "paid"]),
)
COST = st.sampled_from([1, 1, 1, 2, 30])
STEP = st.one_of(
    st.tuples(st.sampled_from(["check", "peek", "submit", "acheck", "receipt"]), FACTS, COST),
    st.tuples(st.sampled_from(["check_many", "acheck_many"]), st.lists(st.tuples(FACTS, COST), max_size=5)),
    st.tuples(st.just("counters"), st.integers(1, 4), COST),
    st.tuples(st.sampled_from(["fail", "heal", "switch", "apply", "take", "wait"])),
)


async def run(site: Site, history: list[Any]) -> None:
    limiter = site.limiter
    for word, *arguments in history:
        if word == "fail":
            site.store.down = True
        elif word == "heal":
            site.store.down = False
        elif word == "switch":
            limiter.enabled = not limiter.enabled
        elif word == "apply":
            site.version += 1
            limiter.apply(site.rules())
        elif word == "take":
            site.take()
        elif word == "wait":
            site.clock.advance(7 * US_PER_S)
        elif word == "counters":
            charges = [(PLAIN, f"c{number}", arguments[1]) for number in range(arguments[0])]
            for decision in await limiter.acheck_counters_many(charges):
                site.decided(decision, arguments[1])
        elif word in ("check_many", "acheck_many"):
            decisions = await limiter.acheck_many(arguments[0])
            for decision, (_, cost) in zip(decisions, arguments[0], strict=True):
                site.decided(decision, cost)
        elif word == "submit":
            answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
            limiter.submit(arguments[0], answer.set_result, arguments[1])
            site.decided(await answer, arguments[1])
        elif word == "peek":
            await limiter.apeek(*arguments)
        else:
            site.decided(await limiter.acheck(*arguments, receipt=word == "receipt"), arguments[1])


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=40), st.booleans())
def test_sums_are_the_decisions_made(history: list[Any], follow: bool) -> None:
    """Sums over all RequestCounts are the decisions made and their costs, and RuleCounts are what a reader of the decisions finds."""
    site = Site(follow=follow)
    asyncio.run(run(site, history))
    site.check()


@pytest.mark.parametrize("follow", [False, True])
def test_hits_are_told(follow: bool) -> None:
    """What the fast path lets pass and refuses is told like checks, over takes, other quotas and a pause."""
    clock = ManualClock()
    limiter = Limiter.from_quota("50/minute", store=MemoryStore(clock), clock=clock)
    recorder = Recorder(clock, name_of=str, follow=follow)
    limiter.record(recorder)
    random_ = random.Random(7)
    made: Counter[str] = Counter()
    told: Counter[str] = Counter()
    hit = limiter.hit
    for number in range(3_000):
        if number == 1_500:
            limiter.apply("70/minute")
        limiter.enabled = not 2_000 < number < 2_100
        if number % 400 == 0:
            clock.advance(9 * US_PER_S)
        call = hit if number % 3 else limiter.hit
        allowed = call(f"k{random_.randrange(5)}")
        made["bypassed" if not limiter.enabled else ALLOWED if allowed else "denied"] += 1
        if number % 250 == 0 or number == 2_999:
            taken = recorder.take(0, US_PER_S)
            for row in taken.requests:
                told[row.outcome] += row.decisions
                assert row.tokens == row.decisions
    assert told == made


@pytest.mark.parametrize("follow", [False, True])
def test_takes_in_the_middle_of_traffic_lose_nothing(follow: bool) -> None:
    """While eight threads decide by check, batches and hits, takes and changes of rules neither lose nor double a decision."""
    rules = load_rules(RULES, "rules.yaml")
    limiter = Limiter.from_rules(rules)
    quota = Limiter.from_quota("1000000/second")
    recorders = [Recorder(limiter.clock, name_of=str, follow=follow) for _ in range(2)]
    for one, recorder in zip((limiter, quota), recorders, strict=True):
        one.record(recorder)
    each, rounds = 30, 30
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        random_ = random.Random(seed)
        try:
            for _ in range(rounds):
                facts = [
                    Facts(
                        method="GET", path=random_.choice(["/all", "/ip", "/x"]), ip=f"10.1.0.{random_.randrange(20)}"
                    )
                    for _ in range(each)
                ]
                for one in facts:
                    limiter.check(one)
                limiter.check_many(facts)
                for number in range(each):
                    quota.hit(f"k{number}")
                    quota.check(f"k{number}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    told = [0, 0]
    version = 1
    while alive := [thread for thread in threads if thread.is_alive()]:
        # Threads that decide have their turn between takes.
        alive[0].join(0.001)
        for place, recorder in enumerate(recorders):
            told[place] += sum(row.decisions for row in recorder.take(0, US_PER_S).requests)
        version += 1
        if version % 10 == 0:
            limiter.apply(load_rules(RULES, "rules.yaml", version))
    for thread in threads:
        thread.join()
    for place, recorder in enumerate(recorders):
        told[place] += sum(row.decisions for row in recorder.take(0, US_PER_S).requests)
    assert not failed
    assert told == [8 * rounds * each * 2] * 2
