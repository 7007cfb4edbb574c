"""What every call of a limiter rests on: its parts, and the way from a store's answer to a counted decision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.live import Live
from sluicegate.limiter.plan import Plan
from sluicegate.limiter.policy import Fallback
from sluicegate.limiter.receipts import Receipts
from sluicegate.limiter.stats import LimiterStats
from sluicegate.rules.facts import Facts
from sluicegate.rules.model import RuleSet
from sluicegate.stores.base import Answer, AsyncStore, BulkStore, Store
from sluicegate.stores.locks import Locked
from sluicegate.stores.urls import open_store

__all__ = ["Core", "FactsOrKey"]

FactsOrKey = Facts | dict[str, object] | str
"""Facts, or a dict with fields of Facts, for a limiter with rules; a key for one made from a quota."""


class Core(Locked):
    """The parts of a limiter, and what its synchronous calls, callbacks and coroutines share."""

    def __init__(
        self,
        ruleset: RuleSet,
        *,
        store: Store | str,
        clock: Clock,
        namespace: str,
        base_dir: Path | None,
        keyed: bool,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._namespace = namespace
        self._base_dir = base_dir
        self._enabled = True
        self._live = Live(ruleset, namespace=namespace, clock=clock, base_dir=base_dir, keyed=keyed)
        self._fallback = Fallback(clock)
        self._receipts = Receipts(clock)
        self.stats = LimiterStats()
        self._store = open_store(store, clock) if isinstance(store, str) else store
        self._bulk = self._store if isinstance(self._store, BulkStore) else None
        self._async = self._store if isinstance(self._store, AsyncStore) else None

    def _decide(self, live: Live, plan: Plan, *, peek: bool = False, receipt: bool = False) -> Decision:
        if not self._enabled:
            self.stats.bypassed += 1
            return Decision(True, Plan([], None, plan.version))
        answer: Answer | None = None
        if plan.charges:
            try:
                answer = self._store.decide_one(plan.charges, peek=peek)
            except StoreError as error:
                return self._decide_without_store(live, plan, error, peek=peek, receipt=receipt)
        return self._concluded(live, plan, answer, peek=peek, receipt=receipt)

    def _concluded(self, live: Live, plan: Plan, answer: Answer | None, *, peek: bool, receipt: bool) -> Decision:
        decision_id = self._receipt(self._store, plan, answer) if receipt and not peek else None
        return self._counted(live.engine.conclude(plan, answer, decision_id=decision_id), peek=peek)

    def _decide_without_store(
        self, live: Live, plan: Plan, error: StoreError | None, *, peek: bool = False, receipt: bool = False
    ) -> Decision:
        """The decision of a request with charges whose store call failed: the failure policies of its rules."""
        self.stats.store_errors += 1
        answer = self._fallback.decide(plan.charges, live.policy_of, peek=peek)
        decision_id = self._receipt(self._fallback.store, plan, answer) if receipt and not peek else None
        return self._counted(live.engine.conclude(plan, answer, degraded=True, decision_id=decision_id), peek=peek)

    def _conclude_one_of_many(self, live: Live, plan: Plan, answers: Iterator[Answer | None]) -> Decision:
        answer = next(answers) if plan.charges else None
        if plan.charges and answer is None:
            return self._decide_without_store(live, plan, None)
        return self._counted(live.engine.conclude(plan, answer))

    def _counted(self, decision: Decision, *, peek: bool = False) -> Decision:
        if peek:
            self.stats.peeks += 1
        else:
            self.stats.count(decision)
        return decision

    def _receipt(self, store: Store, plan: Plan, answer: Answer | None) -> str | None:
        if plan.refused if answer is None else not answer.admitted:
            return None
        return self._receipts.give((store, () if answer is None else answer.receipts()))
