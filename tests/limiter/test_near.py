"""Limiters that answer in their process: what they count, what they do in an outage, and what they pass on."""

from __future__ import annotations

import asyncio
import os

import pytest

from sluicegate.algorithms.verdict import LocalVerdict, Outcome
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter import Limiter
from sluicegate.limiter.calls import decisions_of, verdict_of
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry, SubjectEntry
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.near import NearSettings, NearStore
from sluicegate.testing import FlakyStore, LaterStore, LeasingStore

RULES = """
version: 1
tiers: {names: [free, paid], default: free}
rules:
  - {name: floor, scope: global, quota: 1000000/day}
  - {name: watch, per: [user], quota: 2/hour, mode: shadow}
  - {name: api, per: [user], quota: {free: 3/hour, paid: 6/hour}}
"""


def still(limiter: Limiter) -> Limiter:
    """The limiter, whose leases are kept by ``near.step``, not by a thread."""
    if limiter.near is not None:
        limiter.near._keep = False
    return limiter


class Stand:
    """A clock, a store that grants leases, and a limiter in front of it."""

    def __init__(self, rules: str = RULES, **options: object) -> None:
        self.clock = ManualClock()
        self.store = LeasingStore(MemoryStore(self.clock))
        self.limiter = still(Limiter.from_rules(load_rules(rules, "rules"), self.store, self.clock, **options))

    @property
    def near(self) -> NearStore:
        near = self.limiter.near
        assert near is not None
        return near

    def supply(self, facts: Facts = Facts(path="/", user="first")) -> None:  # noqa: B008
        """Ask by a client without limits of its own until leases have come."""
        for _ in range(500):
            if self.near.stats.leased:
                return
            self.limiter.check(facts)
            self.clock.advance(20_000)
            self.near.step()
        raise AssertionError("no lease was granted")


FLOOR = "version: 1\nrules:\n  - {name: floor, scope: global, quota: 1000000/day}\n"


def facts(user: str = "ann", **more: str) -> Facts:
    return Facts(path="/", user=user, **more)


def test_which_stores_get_one() -> None:
    """One that grants leases and takes time does, unless it is switched off; the store is still what was given."""
    stand = Stand()
    assert stand.limiter.store is stand.store
    assert stand.near.store is stand.store
    assert Stand(near=None).limiter.near is None
    for store in (MemoryStore(ManualClock()), LaterStore(MemoryStore(ManualClock()))):
        limiter = Limiter.from_rules(load_rules(RULES, "rules"), store, ManualClock())
        assert limiter.near is None
    given = NearStore(stand.store, NearSettings(), stand.clock, keep=False)
    limiter = Limiter.from_rules(load_rules(RULES, "rules"), given, stand.clock)
    assert limiter.near is limiter.store is given


def test_local_refusals_count_as_the_stores() -> None:
    """Refusals by rule and outcome, shadow refusals and offenders are the same with and without a near store."""
    counts = []
    for near in (NearSettings(), None):
        stand = Stand(near=near)
        for _ in range(7):
            stand.limiter.check(facts())
            stand.clock.advance(1_000)
        stand.limiter.check(facts(), 9)
        stats = stand.limiter.stats
        counts.append((stats.allowed, stats.refused, [told[:3] for told in stats.offenders.take()]))
        assert stats.shadow_refused["watch"] >= 2
    assert counts[0][0] == counts[1][0] == 3
    assert counts[0][1] == counts[1][1] == {("api", Outcome.DENIED): 4, ("api", Outcome.NEVER_FITS): 1}


def test_local_refusals_are_penalized() -> None:
    """A client is blocked after as many refusals as the rule says, though most of them never reach the store."""
    rules = """
version: 1
rules:
  - {name: api, per: [user], quota: 1/hour, penalty: {after: 5 refusals/1m, block: 10m}}
"""
    stand = Stand(rules)
    for _ in range(6):
        stand.limiter.check(facts())
    decision = stand.limiter.check(facts())
    assert decision.listed is not None
    assert stand.near.stats.denied == 5


def test_listed_clients_do_not_reach_the_near_store() -> None:
    """Whoever is on a list is decided before any lease, refusal or store."""
    stand = Stand()
    stand.limiter.lists.put(ListEntry("block", "user", "bad"))
    stand.limiter.lists.put(ListEntry("allow", "user", "good"))
    assert not stand.limiter.check(facts("bad"))
    assert stand.limiter.check(facts("good"))
    stats = stand.near.stats
    assert (stats.asked, stats.leased, stats.denied, stats.never) == (0, 0, 0, 0)


def test_a_local_refusal_is_described_as_one() -> None:
    """Rule, wait and outcome are those of the refusing rule; rules that nobody asked refuse nobody; it is no degraded decision."""
    stand = Stand()
    for _ in range(4):
        stand.limiter.check(facts())
    decision = stand.limiter.check(facts())
    assert (decision.allowed, decision.rule, decision.outcome) == (False, "api", Outcome.DENIED)
    assert decision.retry_after_us == 1_200 * US_PER_S
    assert not decision.degraded
    assert decision.refusal == "rate"
    assert decision.to_dict()["rules"]
    assert [result.outcome for result in decision.results if result.rule == "floor"] == [Outcome.UNDECIDED]


def test_a_raised_limit_ends_remembered_refusals_at_once() -> None:
    """By other rules, by another tier and by an override the client passes with its next request."""
    stand = Stand()
    for _ in range(4):
        stand.limiter.check(facts())
    assert stand.limiter.check(facts(tier="paid"))
    assert not stand.limiter.check(facts())
    stand.limiter.subjects.put(SubjectEntry("user:ann", factor_numerator=10))
    assert stand.limiter.check(facts())
    stand.limiter.apply(load_rules(RULES.replace("3/hour", "900/hour"), "rules"))
    assert stand.limiter.check(facts("bob"))


@pytest.mark.parametrize("how", ["reset", "grant", "forget", "refund"])
def test_operators_end_remembered_refusals(how: str) -> None:
    """After a reset, a grant, a refund or ``forget`` the store is asked again."""
    stand = Stand()
    made = [stand.limiter.check(facts(), receipt=True) for _ in range(3)]
    assert not stand.limiter.check(facts())
    asked = stand.near.stats.asked
    if how == "reset":
        stand.limiter.reset(facts())
    elif how == "grant":
        stand.limiter.grant(facts(), 1)
    elif how == "refund":
        assert stand.limiter.refund(made[0]) == 3
    else:
        stand.limiter.forget(facts())
    assert stand.limiter.check(facts()).allowed is (how != "forget")
    assert stand.near.stats.asked == asked + 1


def test_singles_of_leases_are_no_degraded_ones() -> None:
    """The lean calls tell a verdict where this process decided, and make whole decisions of it that are not degraded."""
    stand = Stand(FLOOR)
    stand.supply()
    (counter,) = stand.limiter.engine.compiled[0].counters[None]
    charges = [(counter, "*", 1)]
    singles = stand.limiter.decide_counters(charges)
    assert not singles.degraded
    assert type(singles.singles[0][1]) is LocalVerdict
    assert verdict_of(charges[0], singles.singles[0], singles.now_us).outcome is Outcome.ALLOWED
    (decision,) = decisions_of(charges, singles)
    assert (decision.allowed, decision.degraded, decision.rule) == (True, False, "floor")
    told: list = []

    async def submitted() -> None:
        stand.limiter.submit_single(charges[0], lambda *answer: told.append(answer))

    asyncio.run(submitted())
    assert told[0][0]
    assert type(told[0][1]) is LocalVerdict
    assert told[0][3] is False


# ---------------------------------------------------------------------- the store is away


def test_answers_from_leases_say_nothing_of_the_store() -> None:
    """While the store is away a request that leases decide does not end the outage."""
    stand = Stand(FLOOR + "  - {name: api, match: {path: /api}, per: [user], quota: 5/hour}\n")
    stand.supply()
    stand.store.flaky.down = True
    assert stand.limiter.check(Facts(path="/api", user="ann")).degraded
    assert stand.limiter.failing_since_us is not None
    decision = stand.limiter.check(facts())
    assert (decision.allowed, decision.degraded) == (True, False)
    assert stand.limiter.failing_since_us is not None
    stand.store.flaky.down = False
    stand.limiter.check(Facts(path="/api", user="bob"))
    assert stand.limiter.failing_since_us is None


def test_after_an_outage_a_counter_is_asked_for_before_leases_decide() -> None:
    """A counter that was charged here in the outage goes to the store itself until that has answered, which is then told what it is owed."""
    stand = Stand(FLOOR)
    stand.supply()
    limiter, store = stand.limiter, stand.store
    store.flaky.down = True
    stand.clock.advance(2 * US_PER_S)
    for _ in range(50):
        assert limiter.check(facts()).degraded
    store.flaky.down = False
    # A lease comes before any request does.
    for _ in range(5):
        stand.near.step()
        stand.clock.advance(50_000)
    asked = stand.near.stats.leased
    before = store.memory.stats.decisions
    assert limiter.check(facts())
    assert stand.near.stats.leased == asked
    assert store.memory.stats.decisions > before
    assert limiter.stats.settled == 1
    used = limiter.peek(facts())
    assert used.limit is not None
    assert used.remaining is not None
    assert used.limit - used.remaining >= 50


def test_an_outage_with_leases_admits_no_more_than_the_store_and_the_share() -> None:
    """Three nodes with leases, an outage and its end: in all at most what the store and the local shares allow together."""
    rules = "version: 1\nrules:\n  - {name: floor, scope: global, quota: 900/hour}\n"
    clock = ManualClock()
    memory = MemoryStore(clock)
    stores = [LeasingStore(memory) for _ in range(3)]
    for store in stores:
        store.nodes = 3
    limiters = [still(Limiter.from_rules(load_rules(rules, "r"), store, clock, nodes=3)) for store in stores]
    admitted = 0

    def turn(rounds: int) -> int:
        count = 0
        for _ in range(rounds):
            for limiter in limiters:
                for _ in range(20):
                    count += limiter.check(facts()).allowed
                assert limiter.near is not None
                limiter.near.step()
            clock.advance(20_000)
        return count

    admitted += turn(30)
    for store in stores:
        store.flaky.down = True
    admitted += turn(60)
    for store in stores:
        store.flaky.down = False
    admitted += turn(120)
    elapsed_s = 210 * 20_000 / US_PER_S
    # The store's own limit, one capacity in local shares as they begin full, and what came back in the time by both.
    assert admitted <= 2 * (900 + 900 / 3_600 * elapsed_s) + 6
    assert admitted > 900


# ---------------------------------------------------------------------- yes or no, and a fork


def test_hit_answers_from_leases_and_from_refusals() -> None:
    """A hot key of a quota limiter is hit without the store, a refused one refused without it, and both are counted."""
    clock = ManualClock()
    store = LeasingStore(MemoryStore(clock))
    limiter = still(Limiter.from_quota("100000/hour", store=store, clock=clock))
    near = limiter.near
    assert near is not None
    for _ in range(400):
        for _ in range(5):
            assert limiter.hit("hot")
        clock.advance(20_000)
        near.step()
    assert near.stats.leased > 1_000
    asked = near.stats.asked
    assert limiter.hit("hot")
    assert near.stats.asked == asked
    small = still(Limiter.from_quota("2/hour", store=store, clock=clock, name="small"))
    assert [small.hit("a") for _ in range(5)] == [True, True, False, False, False]
    assert small.near is not None
    assert small.near.stats.denied == 3
    assert small.stats.refused == {("small", Outcome.DENIED): 3}
    held = small.hit
    small.apply("100/hour")
    assert held("a")
    with pytest.raises(ValueError, match="key"):
        small.hit(7)  # type: ignore[arg-type]


def test_hit_goes_the_long_way_in_an_outage() -> None:
    """While the store is away, and until its counters are handed back, the local counters have their say."""
    clock = ManualClock()
    store = LeasingStore(MemoryStore(clock))
    limiter = still(Limiter.from_quota("2/hour", store=store, clock=clock))
    assert [limiter.hit("a") for _ in range(3)] == [True, True, False]
    store.flaky.down = True
    clock.advance(2 * US_PER_S)
    assert [limiter.hit("b") for _ in range(4)] == [True, True, False, False]
    assert limiter.stats.degraded == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_spends_nothing_of_its_parents_leases() -> None:
    """The child is another holder: it begins without tokens and asks the store; the parent goes on as before."""
    stand = Stand(FLOOR)
    stand.supply()
    holder = stand.near.front.leases.holder
    leased = stand.near.stats.leased
    child = os.fork()
    if child == 0:
        status = 1
        try:
            other = stand.near.front.leases
            asked = stand.near.stats.asked
            allowed = stand.limiter.check(facts()).allowed
            status = 0 if allowed and other.holder != holder and stand.near.stats.asked == asked + 1 else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert stand.near.front.leases.holder == holder
    assert stand.limiter.check(facts())
    assert stand.near.stats.leased == leased + 1


def test_closing_gives_leases_back_and_closes_the_store() -> None:
    """After ``close`` nothing is out, and every decision finds the store closed."""
    stand = Stand(FLOOR)
    stand.supply()
    flaky = FlakyStore(stand.store.memory)
    (counter,) = stand.limiter.engine.compiled[0].counters[None]
    before = flaky.decide_one([(counter, "*", 0)], peek=True).verdicts()[0].remaining
    stand.near._keeper.give_back()
    after = flaky.decide_one([(counter, "*", 0)], peek=True).verdicts()[0].remaining
    assert after > before
    stand.limiter.close()
    assert stand.limiter.check(facts()).degraded


@pytest.mark.parametrize("by", ["thread", "coroutine", "batch"])
def test_after_an_outage_a_split_counter_is_asked_by_its_parts(by: str) -> None:
    """Its whole is asked with its gate, which is shut while others use the parts: the two never admit together."""
    stand = Stand("version: 1\nrules: [{name: r, per: [user], quota: 640/64s, precision: split}]\n")
    limiter, near = stand.limiter, stand.near
    ((split, subject, _),) = limiter.engine.plan(facts()).charges
    other = NearStore(stand.store, NearSettings(), stand.clock, keep=False)
    assert other.hot.promote(split, subject, other.now_us())
    other.hot.work()
    while other.decide_one([(split, subject, 10)]).admitted:
        pass
    stand.store.flaky.down = True
    assert limiter.check(facts()).degraded
    stand.store.flaky.down = False
    checks = {
        "thread": lambda: limiter.check(facts(), 200),
        "coroutine": lambda: asyncio.run(limiter.acheck(facts(), 200)),
        "batch": lambda: limiter.check_many([(facts(), 200)])[0],
    }
    assert not checks[by]().allowed
    assert near.hot.splits.using(split.prefix + subject, near.now_us()) is not None
