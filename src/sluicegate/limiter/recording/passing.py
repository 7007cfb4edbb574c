"""Decisions whose cell is not brought along by their plan, counted by the shortest ways there are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from sluicegate.algorithms.verdict import Outcome, Verdict
from sluicegate.events import ALLOWED, NEVER_FITS
from sluicegate.limiter.cells import Cell, Cells, RequestKey, key_of
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.plan import Plan, plan_of
from sluicegate.limiter.recording.looks import Looks
from sluicegate.limiter.recording.outcomes import outcomes_of, request_of
from sluicegate.stores.answer import ToldAnswer
from sluicegate.stores.base import Answer, Charge, Counter

__all__ = ["Counting", "refusal_answer"]

_ONE: Final = 1


class Counting:
    """Counts decisions into cells and looks at some. Safe from any thread."""

    def __init__(self, cells: Cells, allowed: Looks, refused: Looks, now_us: Callable[[], int]) -> None:
        self.cells = cells
        self._plain = cells.plain
        self._now_us = now_us
        self._allowed = allowed
        self._refused = refused
        # How many of the decisions that have no cell of their own to pass over.
        self._left = self._left_refused = 0

    def usual(self, plan: Plan, answer: Answer, cell: Cell | None) -> None:
        """All charges passed, and ``cell`` has counted that where it is not None; then it is time to look."""
        if cell is None:
            cell = self._counted(plan)
        if cell is None:
            self._left -= 1
            if self._left < 0:
                self._left = self._allowed.look(plan, answer)
        elif cell.left < 0:
            cell.give(self._allowed.look(plan, answer) + 1)

    def refused(self, plan: Plan, answer: Answer, decision: Decision) -> bool:
        """The usual refusal: by what a store said of charges of one token. False where it is none of these; nothing is counted then."""
        refused = answer.refused()
        if plan.special or not refused:
            return False
        charges = plan.charges
        for charge in charges:
            if charge[2] is not _ONE:
                return False
        key: Hashable
        if len(charges) == 1:
            key = -id(charges[0][0])
        else:
            key = (key_of([charge[0] for charge in charges]), tuple([charge[0].name for charge in refused]))
        cell = self._plain.get(key)
        if cell is None:
            counters = [charge[0] for charge in charges]
            cell = self.cells.made(key, request_of(decision), outcomes_of(decision), counters)
            if cell is None:
                return False
        # Found and counted without a call in between.
        try:
            self._plain[key].left -= 1
        except KeyError:
            return False
        if cell.left < 0:
            cell.give(self._refused.look(plan, answer, decision) + 1)
        return True

    def other(self, decision: Decision) -> None:
        """Any other decision."""
        plan = decision.plan
        costs = [plan.cost] * len(plan.unidentified) + [charge[2] for charge in plan.charges]
        self.cells.add(request_of(decision), outcomes_of(decision), costs, plan.cost)
        if decision.allowed:
            self._left -= 1
            if self._left < 0:
                self._left = self._allowed.look(plan, decision.answer, decision)
        else:
            self._left_refused -= 1
            if self._left_refused < 0:
                self._left_refused = self._refused.look(plan, decision.answer, decision)

    def restart(self) -> None:
        """How often to look has changed."""
        self._left = min(self._left, 2 * self._allowed.every)
        self._left_refused = 0

    def _counted(self, plan: Plan) -> Cell | None:
        """The cell that has counted it; None where it was weighed."""
        charges = plan.charges
        if not plan.special and all([charge[2] is _ONE for charge in charges]):  # noqa: C419 -- a generator costs twice as much
            counters = [charge[0] for charge in charges]
            key = key_of(counters)
            try:
                # Between finding the cell and counting nothing is called, so no thread comes in between.
                self._plain[key].left -= 1
            except KeyError:
                request = RequestKey("", ALLOWED, plan.tier or "", plan.version)
                outcomes = [(counter.name, ALLOWED) for counter in counters]
                if self.cells.made(key, request, outcomes, counters) is not None:
                    return self._counted(plan)
            else:
                return self._plain.get(key)
        request = RequestKey("", ALLOWED, plan.tier or "", plan.version)
        costs = [charge[2] for charge in charges]
        self.cells.add(request, [(charge[0].name, ALLOWED) for charge in charges], costs, plan.cost)
        return None

    def single(self, charge: Charge, request: RequestKey, said: str) -> None:
        """A decision of one charge that no rule names; ``said``: what its counter did."""
        counter, subject, cost = charge
        self.cells.add(request, ((counter.name, said),), (cost,), cost)
        allowed = request.outcome == ALLOWED
        if allowed:
            self._left -= 1
            if self._left >= 0:
                return
        else:
            self._left_refused -= 1
            if self._left_refused >= 0:
                return
        plan = plan_of(counter, subject, cost)
        answer = None if allowed else refusal_answer(charge, self._now_us(), never=request.outcome == NEVER_FITS)
        decision = Decision(allowed, plan, answer, request.degraded)
        if allowed:
            self._left = self._allowed.look(plan, None, decision)
        else:
            self._left_refused = self._refused.look(plan, answer, decision)

    def alike(self, counter: Counter, count: int) -> Cell | None:
        """So many allowed decisions of one token each that no rule names; their cell, None where they were weighed."""
        key = id(counter)
        try:
            self._plain[key].left -= count
        except KeyError:
            request = RequestKey("", ALLOWED, "", 0)
            outcomes = ((counter.name, ALLOWED),)
            if self.cells.made(key, request, outcomes, (counter,)) is not None:
                return self.alike(counter, count)
            self.cells.add(request, outcomes, (count,), count, count)
            return None
        return self._plain.get(key)


def refusal_answer(charge: Charge, now_us: int, *, never: bool) -> ToldAnswer:
    """What is known of a refusal that was not described when it was made."""
    verdict = Verdict(Outcome.NEVER_FITS, 0, None, 0) if never else Verdict(Outcome.DENIED, 0, 0, 0)
    return ToldAnswer(False, now_us, (charge,), (verdict,))
