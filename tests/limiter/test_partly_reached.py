"""Requests of which a part of the counters was reached."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sluicegate.algorithms import Outcome, Verdict
from sluicegate.clock import ManualClock
from sluicegate.errors import PartlyDecided, PartlyReached, StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.answer import answers_of
from sluicegate.stores.base import Answer, Receipt, Request
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore


class TornStore(FlakyStore):
    """Counters named in ``cut`` are out of reach; what is charged of a request that is not whole stands."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.cut: set[str] = set()
        self.refunded: list[Receipt] = []

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        reached = [charge for charge in request if charge[0].name not in self.cut]
        if len(reached) == len(request):
            return super().decide_one(request, peek=peek)
        if not reached:
            raise StoreError("nothing was reached")
        answer = super().decide_one(reached, peek=peek)
        found = iter(answer.verdicts())
        verdicts: list[Verdict | None] = [None if charge[0].name in self.cut else next(found) for charge in request]
        raise PartlyReached(StoreError("a server is gone"), verdicts, answer.receipts(), answer.now_us)

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        answers: list[Answer] = []
        found: list[Answer | PartlyReached | None] = []
        for request in requests:
            try:
                found.append(self.decide_one(request, peek=peek))
                answers.append(found[-1])
            except PartlyReached as error:
                found.append(error)
            except StoreError:
                found.append(None)
        if len(answers) < len(found):
            raise PartlyDecided(StoreError("a server is gone"), found)
        return answers

    def refund(self, receipts: Sequence[Receipt]) -> int:
        self.refunded += receipts
        return super().refund(receipts)


class Torn:
    """A limiter on such a store, asked in one form."""

    def __init__(self, form: str, rules: tuple[str, ...]) -> None:
        self.form = form
        clock = ManualClock()
        self.store = TornStore(MemoryStore(clock))
        text = "version: 1\nrules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)
        store = self.store if form == "check" else LaterStore(self.store)
        self.limiter = Limiter.from_rules(load_rules(text, "rules.yaml"), store, clock)

    def ask(self, **options: bool) -> Decision:
        return asyncio.run(self._ask(options))

    async def _ask(self, options: dict[str, bool]) -> Decision:
        if self.form == "check":
            return self.limiter.check(Facts(), **options)
        if self.form == "acheck":
            decision = await self.limiter.acheck(Facts(), **options)
        else:
            told: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
            self.limiter.submit(Facts(), told.set_result, **options)
            decision = await told
        # What is given back is given back by a task.
        for _ in range(3):
            await asyncio.sleep(0)
        return decision


@pytest.fixture(params=["check", "submit", "acheck"])
def torn(request: pytest.FixtureRequest) -> Any:
    return lambda *rules: Torn(request.param, rules)


FAR, NEAR = "name: far, quota: 9/hour, on_store_failure: ", "name: near, quota: 2/hour"


def test_open_rules_out_of_reach_pass(torn: Any) -> None:
    """The rules that were reached decide, and their charges stand; the decision is degraded and says which rule was not."""
    site = torn(FAR + "open", NEAR)
    site.store.cut = {"far"}
    decisions = [site.ask() for _ in range(3)]
    assert [d.allowed for d in decisions] == [True, True, False]
    assert [d.remaining for d in decisions] == [1, 0, 0]
    assert [(result.rule, result.degraded) for result in decisions[0].results] == [("far", "open"), ("near", None)]
    assert all(d.degraded for d in decisions)
    assert (decisions[2].rule, decisions[2].refusal) == ("near", "rate")
    assert site.store.refunded == []


def test_closed_rules_out_of_reach_refuse_and_give_back(torn: Any) -> None:
    """A closed rule that was not reached gives "store"; what the others were charged is given back."""
    site = torn(FAR + "closed", NEAR)
    site.store.cut = {"far"}
    for _ in range(5):
        decision = site.ask()
        assert (decision.allowed, decision.refusal, decision.rule) == (False, "store", "far")
    assert [receipt.counter.name for receipt in site.store.refunded] == ["near"] * 5
    site.store.cut = set()
    assert site.ask().results[1].remaining == 1


def test_an_earlier_refusal_of_the_store_comes_first(torn: Any) -> None:
    """Where a reached rule before the closed one refuses, the answer is "rate"; after it, "store"."""
    site = torn(NEAR, FAR + "closed")
    site.ask()
    site.ask()
    site.store.cut = {"far"}
    decision = site.ask()
    assert (decision.refusal, decision.rule, decision.outcome) == ("rate", "near", Outcome.DENIED)
    site = torn(FAR + "closed", NEAR)
    site.ask()
    site.ask()
    site.store.cut = {"far"}
    assert site.ask().refusal == "store"


def test_local_rules_out_of_reach_are_counted_here(torn: Any) -> None:
    """A local rule that was not reached is decided here; where it refuses, the others' charges are given back."""
    site = torn("name: far, quota: 1/hour", NEAR)
    site.store.cut = {"far"}
    decision = site.ask(receipt=True)
    assert (decision.allowed, [result.degraded for result in decision.results]) == (True, ["local", None])
    assert len(decision.receipts()) == 2
    refused = site.ask()
    assert (refused.allowed, refused.rule, refused.refusal) == (False, "far", "rate")
    assert site.store.refunded == []  # what is refused here first charges nothing there
    assert site.limiter.refund(decision) == 2
    assert [receipt.counter.name for receipt in site.store.refunded] == ["near"]
    assert site.ask().allowed

    site = torn("name: far, quota: 1/hour, fallback_start: empty", NEAR)
    site.store.cut = {"far"}
    assert [site.ask().rule for _ in range(3)] == ["far"] * 3
    # Only the first time did nobody know that the local counter is empty.
    assert [receipt.counter.name for receipt in site.store.refunded] == ["near"]


def test_where_the_store_refuses_nothing_is_counted_here(torn: Any) -> None:
    """A reached rule that refuses leaves the local counters of the others as they are."""
    site = torn("name: far, quota: 3/hour", NEAR)
    site.store.cut = {"far"}
    assert [site.ask().allowed for _ in range(4)] == [True, True, False, False]
    assert site.ask().results[0].remaining == 1


def test_peeks_of_a_part(torn: Any) -> None:
    """A peek that reached a part charges and gives back nothing."""
    site = torn(FAR + "closed", NEAR)
    site.store.cut = {"far"}
    assert [site.ask(peek=True).refusal for _ in range(3)] == ["store"] * 3
    assert site.store.refunded == []


def test_a_give_back_that_fails_is_left_at_that(torn: Any) -> None:
    """Where the charge cannot be given back it is lost, and counted; the caller gets its decision all the same."""
    site = torn(FAR + "closed", NEAR)
    site.store.cut = {"far"}
    given = site.store.refund

    def refund(receipts: Sequence[Receipt]) -> int:
        site.store.lose_next = 1
        return given(receipts)

    site.store.refund = refund
    assert site.ask().refusal == "store"
    assert site.limiter.stats.store_errors == 2


async def test_closing_waits_for_what_is_given_back() -> None:
    """``aclose`` ends when the charges under way have been given back."""
    site = Torn("submit", (FAR + "closed", NEAR))
    site.store.cut = {"far"}
    told: list[Decision] = []
    site.limiter.submit(Facts(), told.append)
    await asyncio.sleep(0)
    assert (len(told), site.store.refunded) == (1, [])
    await site.limiter.aclose()
    assert len(site.store.refunded) == 1


@pytest.mark.parametrize("form", ["check", "submit"])
async def test_each_request_of_a_batch_is_decided_on_its_part(form: str) -> None:
    """In a batch too what was reached decides, its charges stand or are given back, and the policies decide on the rest."""
    for policy, outcomes, given_back in (("open", [None, None, "rate"], 0), ("closed", ["store"] * 3, 2)):
        site = Torn(form, (FAR + policy, NEAR))
        site.store.cut = {"far"}
        limiter = site.limiter
        decisions = limiter.check_many([Facts()] * 3) if form == "check" else await limiter.acheck_many([Facts()] * 3)
        assert [decision.refusal for decision in decisions] == outcomes
        assert [decision.results[0].degraded for decision in decisions] == [policy] * 3
        assert decisions[0].results[1].remaining == 1
        await asyncio.sleep(0.01)
        assert len(site.store.refunded) == given_back


def test_of_a_batch_nobody_knows_which_part() -> None:
    """A batch whose whole failure speaks of the counters of one request is taken as one that says nothing of them."""
    found = answers_of(PartlyReached(StoreError("gone"), [None], [], 5), 2)
    assert [type(answer) for answer in found] == [StoreError] * 2
    gone = StoreError("gone")
    assert answers_of(PartlyDecided(gone, [None, "answer"]), 2) == [gone, "answer"]
