"""The calls of a limiter that have their answer when they return."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sluicegate.algorithms.verdict import Brief, Outcome, Verdict
from sluicegate.bounds import BATCH_MAX
from sluicegate.errors import InvalidRequest, ReceiptUnknown, StoreError
from sluicegate.limiter.core import Core, FactsOrKey
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.degraded import CLOSED, CLOSED_VERDICT, LOCAL, OPEN, OPEN_VERDICT, FallbackAnswer
from sluicegate.limiter.handover import Asked, Held
from sluicegate.limiter.live import Live
from sluicegate.limiter.plan import Plan, check_cost, plan_of
from sluicegate.limiter.receipts import refund_all
from sluicegate.rules.facts import Facts
from sluicegate.stores.answer import StateAnswer, ToldAnswer, answers_of, single_of
from sluicegate.stores.base import Answer, Charge, Counter, Receipt, Request, Single

__all__ = ["Calls", "Singles", "as_made", "decisions_of", "id_of", "verdict_of"]


class Singles(NamedTuple):
    """Answers to a batch of single charges, to be described with ``verdict_of``.

    ``degraded``: some of them were decided by failure policies; in those a Verdict stands in the place of the state. A LocalVerdict there
    is no degraded one: this process knew what the store would say.
    """

    now_us: int
    singles: Sequence[Single]
    degraded: bool


def verdict_of(charge: Charge, single: Single, now_us: int) -> Verdict:
    """The description of a single: of the store's from its state; that of this process comes with it."""
    admitted, state = single
    return state if isinstance(state, Verdict) else charge[0].spec.verdict(state, now_us, charge[2], admitted)


class Calls(Core):
    """Deciding and refunding, for whoever can wait for the store."""

    def check(self, facts_or_key: FactsOrKey, cost: int = 1, *, peek: bool = False, receipt: bool = False) -> Decision:
        """Decide one request and, if every rule lets it pass, charge ``cost`` to every counter it matches.

        ``peek``: decide, charge nothing, create nothing; only then may ``cost`` be 0. ``receipt``: an allowed decision
        gets a ``decision_id`` for ``refund``. Raises InvalidRequest naming what cannot be decided; nothing is charged then.
        A store that fails is not an exception here: the rules' failure policies decide.
        """
        live = self._live
        if peek or receipt or not self._enabled:
            return self._decide(live, live.plan(facts_or_key, cost, peek=peek), peek=peek, receipt=receipt)
        # The usual call, as short as it can be; ``_decide`` says the same at length.
        keyed = live.keyed
        if keyed is not None:
            plan = keyed.plan(facts_or_key, cost)
        elif type(facts_or_key) is Facts:
            plan = live.engine.plan(facts_or_key, cost)
        else:
            plan = live.plan(facts_or_key, cost)
        charges = plan.charges
        if not charges:
            return self._decide(live, plan)
        if self._outage.active:
            return self._decide(live, plan)
        try:
            answer = self._store.decide_one(charges)
        except StoreError as error:
            return self._decide_without_store(live, plan, None, error)
        # ``_usual``, written out.
        decision = Decision(answer.admitted, plan, answer)
        if answer.unanimous and not plan.unidentified:
            self.stats.allowed += 1
            recorder = self._recorder
            if recorder is not None:
                cell, following = plan.cell, recorder.following
                # Of one charge it is seen without a call whether its client is known not to be followed.
                if cell is None or (
                    following is not None and (len(charges) > 1 or charges[0][1] not in following.chosen[1])
                ):
                    recorder.passed(plan, answer)
                else:
                    # No call in this line, so no other thread comes in between.
                    cell.left -= 1
                    if cell.left < 0:
                        recorder.look(plan, answer, cell)
        else:
            self._count(decision)
        return decision

    def check_plan(self, plan: Plan, *, peek: bool = False) -> Decision:
        """``check`` for charges that were put together from the rules in service, or from none (see ``SetPlanner``)."""
        live = self._live
        if peek or not plan.charges or not self._enabled or self._outage.active:
            return self._decide(live, plan, peek=peek)
        answer: Answer | StoreError
        try:
            answer = self._store.decide_one(plan.charges)
        except StoreError as error:
            answer = error
        return self._finish(live, plan, None, answer)

    def take_back(self, decision: Decision) -> None:
        """Give back what a decision has just charged, for a door that cannot let the request proceed. Never raises, never waits on a loop.

        Where the store fails it stays charged.
        """
        answer = decision.answer
        receipts = decision.receipts()
        if isinstance(answer, FallbackAnswer):
            self._fallback.store.refund(answer.charged)
            receipts = answer.reached
        if receipts:
            if not decision.degraded:
                self._tell_given(receipts, self._clock.now_us())
            self._give_back(receipts, later=self._async is not None and _on_loop())

    def refund_receipts(self, receipts: Sequence[Receipt]) -> int:
        """Give back charges of decisions of this limiter (``Decision.receipts``) that the store made; returns how many counters were changed.

        For callers that keep the receipts themselves and see to it that each is used once. Raises StoreError.
        """
        self._tell_given(receipts, self._clock.now_us())
        return self._store.refund(receipts)

    def give_back(self, charges: Sequence[Charge]) -> tuple[Verdict, ...]:
        """Give back charges for which there is no receipt, as if they had been made just now; what the counters say afterwards.

        Never more than what is used, and of a window only what was used in the one that runs; no counter is created. Raises StoreError.
        """
        now_us = self._store.decide_one(charges, peek=True).now_us
        self._tell_given(charges, self._clock.now_us())
        self._store.refund(as_made(charges, now_us))
        self.stats.refunds += 1
        return self._store.decide_one([(counter, subject, 1) for counter, subject, _ in charges], peek=True).verdicts()

    def check_many(self, requests: Iterable[FactsOrKey | tuple[FactsOrKey, int]]) -> list[Decision]:
        """Decide requests in order, each one charged before the next is read, in one call of the store.

        An item is what ``check`` takes, or that and a cost. One that cannot be decided raises InvalidRequest naming its
        place, and then nothing at all is charged. At most ``BATCH_MAX`` items.
        """
        live = self._live
        plans = self._plans(live, requests)
        if not self._enabled:
            return [self._decide(live, plan) for plan in plans]
        asked = self._begin(live, [plan.charges for plan in plans if plan.charges])
        answers = self._answers(asked)
        return self._conclude_many(live, plans, asked, answers)

    def peek(self, facts_or_key: FactsOrKey, cost: int = 1) -> Decision:
        """What ``check`` would say now, without charging or creating anything. Counters are described as they stand."""
        return self.check(facts_or_key, cost, peek=True)

    def refund(self, decision: Decision | str, *, strict: bool = False) -> int:
        """Give back what a decision charged; returns how many counters were changed.

        ``decision``: an allowed decision made with ``receipt=True``, or its ``decision_id``. Good once and for an hour: a later
        call gives 0, or raises ReceiptUnknown where ``strict``. What time or a reset has given back is not given twice. Raises
        StoreError where the store fails; the receipt is used up then, because the refund may have been made.
        """
        try:
            charged = self._receipts.take(id_of(decision))
        except ReceiptUnknown:
            if strict:
                raise
            return 0
        self._tell_refund(charged)
        changed = refund_all(charged)
        self.stats.refunds += 1
        return changed

    # ------------------------------------------------------------------ counters without rules

    def check_counter(
        self, counter: Counter, subject: str, cost: int = 1, *, peek: bool = False, receipt: bool = False
    ) -> Decision:
        """Decide one charge that no rule names, for doors whose callers bring the policy along. ``version`` is 0."""
        check_cost(cost, least=0 if peek else 1)
        return self._decide(self._live, plan_of(counter, subject, cost), peek=peek, receipt=receipt)

    def check_counters_many(self, charges: Sequence[Charge]) -> list[Decision]:
        """``check_counter`` for each charge, in order, in one call of the store."""
        if not self._enabled:
            self.stats.bypassed += len(charges)
            if self._recorder is not None:
                for _, _, cost in charges:
                    self._recorder.bypassed(cost, 0)
            return [Decision(True, Plan([])) for _ in charges]
        return decisions_of(charges, self.decide_counters(charges))

    def decide_counters(self, charges: Sequence[Charge]) -> Singles:
        """The leanest form of ``check_counters_many``: states instead of decisions, costs unchecked.

        Costs must be whole numbers >= 1; the caller checks them, and ``enabled``, which this call does not look at.
        Refusals count under the counter's name.
        """
        if self._outage.active:
            return self._decide_counters_after_outage(charges)
        try:
            now_us, singles = self._store.decide_singles(charges)
        except StoreError as error:
            asked = Asked.plainly([(charge,) for charge in charges])
            return self._complete(self._live, charges, asked, answers_of(error, len(charges)))
        self._count_singles(charges, singles, now_us)
        return Singles(now_us, singles, False)

    def decide_alike(self, counter: Counter, keys: Sequence[str], cost: int) -> list[Brief] | None:
        """``decide_counters`` of one cost for whole keys of one counter, with the numbers of the answers; the leanest form.

        None where the store cannot do that for all of them, with nothing changed: ``decide_counters`` can.
        """
        if self._bulk is None:
            return None
        try:
            briefs = self._bulk.decide_alike(counter, keys, cost)
        except StoreError:
            return None
        if briefs is not None:
            waits_us = [brief[2] for brief in briefs if not brief[0]]
            if waits_us:
                never = waits_us.count(None)
                self.stats.count_refusal(counter.name, Outcome.DENIED, len(waits_us) - never)
                self.stats.count_refusal(counter.name, Outcome.NEVER_FITS, never)
            self.stats.allowed += len(briefs) - len(waits_us)
            if self._recorder is not None:
                self._recorder.alike(counter, keys, cost, briefs, len(waits_us))
        return briefs

    # ------------------------------------------------------------------ inside

    def _plans(self, live: Live, requests: Iterable[FactsOrKey | tuple[FactsOrKey, int]]) -> list[Plan]:
        """The plans of a batch; raises InvalidRequest naming the place of what cannot be decided."""
        plans: list[Plan] = []
        for index, item in enumerate(requests):
            if index >= BATCH_MAX:
                raise InvalidRequest("requests", f"at most {BATCH_MAX} are decided in one call")
            facts_or_key, cost = item if isinstance(item, tuple) else (item, 1)
            try:
                plans.append(live.plan(facts_or_key, cost))
            except InvalidRequest as error:
                raise InvalidRequest(f"requests[{index}].{error.field}", error.message) from None
        return plans

    def _begin(self, live: Live, requests: Sequence[Request]) -> Asked:
        """A batch made ready: passed through the local counters of a hand-over, where there is one."""
        if self._outage.active:
            return self._fallback.handover.begin_all(requests, live.terms_of)
        return Asked.plainly(requests)

    def _answers(self, asked: Asked) -> Sequence[Answer | StoreError]:
        """What the store has for each request asked of it: an answer, or why there is none."""
        answers: list[Answer | StoreError] = []
        store = self._unleased if asked.exact else self._store
        for requests, peek in ((asked.requests, False), (asked.probes, True)):
            try:
                answers += store.decide(requests, peek=peek) if requests else ()
            except StoreError as error:
                answers += answers_of(error, len(requests))
        return answers

    def _conclude_many(
        self,
        live: Live,
        plans: Sequence[Plan],
        asked: Asked,
        answers: Sequence[Answer | StoreError],
        *,
        later: bool = False,
    ) -> list[Decision]:
        """The decisions of a batch; ``asked`` holds the plans with charges, ``answers`` what the store said to that."""
        found = zip(asked.held, asked.places, strict=True)
        decisions: list[Decision] = []
        for plan in plans:
            if not plan.charges:
                decisions.append(self._decide(live, plan))
                continue
            held, place = next(found)
            if place is None:
                decisions.append(self._refused_here(plan, _refusal_of(held), peek=False))
            else:
                decisions.append(self._finish(live, plan, held, answers[place], later=later))
        return decisions

    def _decide_counters_after_outage(self, charges: Sequence[Charge]) -> Singles:
        live = self._live
        asked = self._begin(live, [(charge,) for charge in charges])
        answers = self._answers(asked)
        return self._complete(live, charges, asked, answers)

    def _complete(
        self,
        live: Live,
        charges: Sequence[Charge],
        asked: Asked,
        answers: Sequence[Answer | StoreError],
        *,
        later: bool = False,
    ) -> Singles:
        """Counted singles for a batch of which the store, or a hand-over, decided only a part."""
        now_us = self._clock.now_us()
        degraded = 0
        singles: list[Single] = []
        for charge, held, place in zip(charges, asked.held, asked.places, strict=True):
            answer = answers[place] if place is not None else None
            if answer is not None and not isinstance(answer, StoreError):
                self._returned(held, answer, later=later)
                now_us = answer.now_us
                if held is None or held.refusal is None:
                    singles.append(single_of(answer))
                    continue
            degraded += 1
            if isinstance(answer, StoreError):
                fallback = self._fall_back(live, (charge,), held, answer, later=later)
            else:
                fallback = _refusal_of(held)
                self.stats.handover_refused += 1
            singles.append((fallback.admitted, fallback.known[0]))
        self.stats.degraded += degraded
        self._count_singles(charges, singles, now_us)
        return Singles(now_us, singles, degraded > 0)

    def _count_singles(self, charges: Sequence[Charge], singles: Sequence[Single], now_us: int) -> None:
        if self._recorder is not None:
            self._recorder.singles(charges, singles, now_us)
        refused = 0
        for charge, (admitted, _) in zip(charges, singles):  # noqa: B905 -- as long by contract; strict costs time here
            if not admitted:
                refused += 1
                counter = charge[0]
                outcome = Outcome.NEVER_FITS if charge[2] > counter.spec.capacity else Outcome.DENIED
                self.stats.count_refusal(counter.name, outcome)
        self.stats.allowed += len(charges) - refused


def _on_loop() -> bool:
    """Whether the caller is on a running event loop, which must not be kept waiting."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def as_made(charges: Sequence[Charge], now_us: int) -> list[Receipt]:
    """Receipts of charges made at this time of the store."""
    return [Receipt(counter, subject, cost, now_us) for counter, subject, cost in charges]


def decisions_of(charges: Sequence[Charge], answers: Singles) -> list[Decision]:
    """Whole decisions out of lean answers."""
    now_us, singles, _ = answers
    decisions: list[Decision] = []
    for charge, (admitted, state) in zip(charges, singles, strict=True):
        request = [charge]
        plan = Plan(request)
        if type(state) is Verdict:
            how = {OPEN_VERDICT: OPEN, CLOSED_VERDICT: CLOSED}.get(state, LOCAL)
            decisions.append(Decision(admitted, plan, FallbackAnswer(admitted, now_us, (state,), (how,)), True))
            continue
        if isinstance(state, Verdict):
            decisions.append(Decision(admitted, plan, ToldAnswer(admitted, now_us, request, (state,))))
            continue
        notes = None if admitted else ((charge[2], False),)
        answer = StateAnswer(admitted, now_us, request, ((0, state),), notes, admitted, admitted)
        decisions.append(Decision(admitted, plan, answer))
    return decisions


def _refusal_of(held: Held | None) -> FallbackAnswer:
    """The answer of a request that a hand-over refuses."""
    assert held is not None
    assert held.refusal is not None
    return held.refusal


def id_of(decision: Decision | str) -> str:
    """The id of a decision that can be given back; raises InvalidRequest for what is none."""
    if not isinstance(decision, str | Decision):
        raise InvalidRequest("decision_id", f"want a decision or its decision_id, got {type(decision).__name__}")
    decision_id = decision if isinstance(decision, str) else decision.decision_id
    if decision_id is None:
        raise InvalidRequest("decision_id", "this decision has no receipt: ask for one with receipt=True")
    return decision_id
