"""Several sets of charges in one request: planned together, decided all or none; and charges given back without a receipt."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import FixedWindow, TokenBucket
from sluicegate.algorithms.verdict import Outcome
from sluicegate.bounds import COST_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import InvalidRequest, StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.base import Counter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore

RULES = """
version: 1
rules:
  - {name: mine, match: {domain: d}, per: [descriptor.k], quota: 5/minute}
  - {name: floor, quota: 100/minute}
  - {name: all, match: {domain: d}, quota: 50/minute}
"""


def limiter(rules: str = RULES) -> Limiter:
    """A limiter on a clock that stands still."""
    return Limiter.from_rules(load_rules(rules, "rules.yaml"), clock=ManualClock())


def about(k: str) -> Facts:
    """One set's facts."""
    return Facts(domain="d", descriptors={"k": k})


def charged(planned: object) -> list[tuple[str, str, int]]:
    """(counter, subject, cost) of each charge of a plan."""
    return [(counter.name, subject, cost) for counter, subject, cost in planned.plan.charges]


def test_sets_are_charged_in_order_of_evaluation() -> None:
    """All charges of a request stand in the order of the rules; each set knows its places; a shared counter is charged once with the sum."""
    planned = limiter().planner.plan([(about("a"), 1), (about("b"), 2)], about("a"), 7)
    assert charged(planned) == [
        ("floor", "*", 7),
        ("all", "*", 3),
        ("mine", "descriptor.k:a", 1),
        ("mine", "descriptor.k:b", 2),
    ]
    assert planned.places == ((1, 2), (1, 3))
    assert planned.refused == (False, False)


def test_rules_without_a_domain_see_the_whole_only() -> None:
    """Without a whole they charge nothing; a charge of no rule comes last."""
    own = Counter("own", TokenBucket(1, 1, 1_000_000), "own:")
    planned = limiter().planner.plan([(about("a"), 1), (own, "x", 4)])
    assert charged(planned) == [("all", "*", 1), ("mine", "descriptor.k:a", 1), ("own", "x", 4)]
    assert planned.places == ((0, 1), (2,))


def test_a_sum_has_a_bound() -> None:
    """Costs that are too large, each or together, are refused as any cost is."""
    planner = limiter().planner
    for sets in ([(about("a"), COST_MAX + 1)], [(about("a"), COST_MAX), (about("a"), 1)], [(about("a"), 0)]):
        with pytest.raises(InvalidRequest) as caught:
            planner.plan(sets)
        assert caught.value.field == "cost"


DENY = """
version: 1
rules:
  - {name: whole, per: {first_of: [descriptor.user], on_missing: deny}, quota: 5/minute}
  - {name: part, match: {domain: d}, per: {first_of: [descriptor.k], on_missing: deny}, quota: 5/minute}
"""


def test_what_is_missing_refuses_its_own_part() -> None:
    """A dimension missing in a set refuses that set; one missing in the whole refuses the request and no set; nothing is charged."""
    found = limiter(DENY)
    whole = Facts(domain="d", descriptors={"user": "u", "k": "a"})
    fine = found.planner.plan([(about("a"), 1)], whole)
    assert (len(fine.plan.charges), fine.refused, fine.plan.refused) == (2, (False,), False)
    part = found.planner.plan([(about("a"), 1), (Facts(domain="d"), 1)], whole)
    assert (part.plan.charges, part.refused, part.plan.refused) == ([], (False, True), True)
    request = found.planner.plan([(about("a"), 1)], about("a"))
    assert (request.plan.charges, request.refused, request.plan.refused) == ([], (False,), True)
    assert not found.check_plan(request.plan).allowed


def test_plans_are_decided_as_requests_are() -> None:
    """``check_plan`` charges all or none, counts, peeks without charging, and passes everything while the limiter is off."""
    found = limiter()
    plan = found.planner.plan([(about("a"), 3), (about("b"), 1)], about("a")).plan
    assert found.check_plan(plan).allowed
    assert found.check_plan(plan, peek=True).outcome is Outcome.DENIED
    refused = found.check_plan(plan)
    assert (refused.allowed, refused.rule) == (False, "mine")
    assert (found.stats.allowed, found.stats.peeks, found.stats.refused["mine", Outcome.DENIED]) == (1, 1, 1)
    assert found.check_plan(found.planner.plan([(about("b"), 4)]).plan).allowed
    found.enabled = False
    assert found.check_plan(plan).allowed


async def test_plans_by_callback() -> None:
    """``submit_plan`` says what ``check_plan`` says, at once where the store is in the process, later where it is not."""
    for store in (MemoryStore(ManualClock()), LaterStore(MemoryStore(ManualClock()))):
        found = Limiter.from_rules(load_rules(RULES, "rules.yaml"), store, ManualClock())
        plan = found.planner.plan([(about("a"), 3)], about("a")).plan
        empty = found.planner.plan([]).plan
        told: list[object] = []
        if isinstance(store, LaterStore):
            store.hold()
        for each in (plan, plan, empty):
            found.submit_plan(each, told.append)
        found.submit_plan(plan, told.append, peek=True)
        if isinstance(store, LaterStore):
            assert len(told) == 1, "only what charges nothing is known at once"
            store.release()
        assert sorted(decision.allowed for decision in told) == [False, False, True, True]


def test_the_planner_follows_the_rules() -> None:
    """After ``apply`` there is another planner, made by ``apply`` where one was in use."""
    found = limiter()
    found.apply(load_rules(RULES, "rules.yaml"))
    assert found._live.sets is None
    before = found.planner
    assert found.planner is before
    found.apply(load_rules(DENY, "rules.yaml"))
    assert found._live.sets is not None
    assert found.planner is found._live.sets is not before
    assert found.planner.engine is found.engine


BUCKET = Counter("bucket", TokenBucket(5, 5, 60_000_000), "b:")
WINDOW = Counter("window", FixedWindow(5, 60_000_000), "w:")


@pytest.mark.parametrize("counter", [BUCKET, WINDOW], ids=["bucket", "window"])
def test_giving_back(counter: Counter) -> None:
    """Never more than is used, never to a window that is over, and never to a counter that is not there. # T12"""
    clock = ManualClock()
    found = Limiter.from_quota("1/second", clock=clock)
    assert [verdict.remaining for verdict in found.give_back([(counter, "k", 3)])] == [5]
    assert len(found.store) == 0
    found.check_counter(counter, "k", 5)
    (after,) = found.give_back([(counter, "k", 2)])
    assert (after.remaining, after.outcome) == (2, Outcome.ALLOWED)
    assert found.give_back([(counter, "k", 1000)])[0].remaining == 5
    found.check_counter(counter, "k", 5)
    clock.advance(60_000_000)
    assert found.give_back([(counter, "k", 2)])[0].remaining == 5


async def test_giving_back_on_a_loop() -> None:
    """The same for coroutines, in process and over a network; a store that fails says so."""
    clock = ManualClock()
    flaky = FlakyStore(MemoryStore(clock))
    for store in (MemoryStore(clock), LaterStore(flaky)):
        found = Limiter.from_quota("1/second", store=store, clock=clock)
        found.check_counter(BUCKET, "k", 5)
        assert (await found.agive_back([(BUCKET, "k", 2)]))[0].remaining == 2
    flaky.down = True
    with pytest.raises(StoreError):
        await found.agive_back([(BUCKET, "k", 2)])


def test_taking_back() -> None:
    """What a decision has just charged is given back, by the store or without it; a store that fails keeps it."""
    clock = ManualClock()
    flaky = FlakyStore(MemoryStore(clock))
    found = Limiter.from_rules(load_rules(RULES, "rules.yaml"), flaky, clock)
    for down in (False, True):
        flaky.down = down
        decision = found.check(about("a"))
        found.take_back(decision)
        assert found.peek(about("a")).results[2].remaining == 5, down
    flaky.down = False
    decision = Limiter.from_rules(load_rules(RULES, "rules.yaml"), flaky, clock).check(about("z"))
    flaky.down = True
    found.take_back(decision)
    flaky.down = False
    assert found.peek(about("z")).results[2].remaining == 4
