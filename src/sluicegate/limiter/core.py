"""What every call of a limiter rests on: its parts, and the way from a store's answer to a counted decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.degraded import FallbackAnswer
from sluicegate.limiter.handover import Held
from sluicegate.limiter.known import Known
from sluicegate.limiter.live import Live
from sluicegate.limiter.penalties import Penalties
from sluicegate.limiter.plan import Plan
from sluicegate.limiter.policy import Fallback
from sluicegate.limiter.receipts import Charged, Receipts
from sluicegate.limiter.recording import Recorder
from sluicegate.limiter.stats import LimiterStats
from sluicegate.rules.facts import Facts
from sluicegate.rules.model import Penalty, RuleSet
from sluicegate.stores.base import Answer, AsyncStore, BulkStore, Charge, Receipt, Request, Store
from sluicegate.stores.locks import Locked
from sluicegate.stores.near import NEAR, HotStore, NearSettings, NearStore, in_front_of
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
        nodes: int = 1,
        known: Known | None = None,
        near: NearSettings | None = NEAR,
    ) -> None:
        super().__init__()
        self.known = Known(clock) if known is None else known
        self.penalties = Penalties(clock, self.known.lists)
        self._clock = clock
        self._namespace = namespace
        self._base_dir = base_dir
        self._enabled = True
        self.stats = LimiterStats()
        self._live = Live(
            ruleset,
            namespace=namespace,
            clock=clock,
            base_dir=base_dir,
            keyed=keyed,
            matched=self.stats.matched,
            known=self.known,
        )
        self._receipts = Receipts(clock)
        # What was given is charged what it is owed; what stands in front of it, or it itself, decides.
        self._given = open_store(store, clock) if isinstance(store, str) else store
        self._store = in_front_of(self._given, near, clock)
        self._near = self._store if isinstance(self._store, NearStore) else None
        self._bulk = self._store if isinstance(self._store, BulkStore) else None
        self._async = self._store if isinstance(self._store, AsyncStore) else None
        self._fallback = Fallback(clock, self._given, nodes)
        self._outage = self._fallback.outage
        self._tasks: set[asyncio.Task[None]] = set()
        self._recorder: Recorder | None = None

    @property
    def near(self) -> NearStore | None:
        """What answers in this process in front of the store, with its ``stats``; None where the store is asked about everything."""
        return self._near

    @property
    def _unleased(self) -> Store | HotStore:
        """What decides as the store does, without leases and remembered refusals. Counters that are split stay so: their whole must not admit beside the parts."""
        return self._store if self._near is None else self._near.hot

    @property
    def fallback_nodes(self) -> int:
        """The number of processes that ``local`` rules divide their limit by while the store is away."""
        return self._fallback.nodes

    @property
    def failing_since_us(self) -> int | None:
        """Monotonic time of the clock at which the outage under way began; None where the store's last call was answered."""
        return self._outage.failing_since_us

    @property
    def failing_error(self) -> str | None:
        """What the store said, or was found to be, in the last call that failed; None where ``failing_since_us`` is."""
        return self._outage.failing_error

    def tell_outages(self, told: Callable[[StoreError | None], None]) -> None:
        """Have ``told`` called with the error of each call of the store that fails, and with None by the first answered after that.

        It is called in the middle of a decision, from any thread: it must not wait and must not raise.
        """
        with self._lock:
            self._outage.told += (told,)

    # ------------------------------------------------------------------ inside

    def _decide(self, live: Live, plan: Plan, *, peek: bool = False, receipt: bool = False) -> Decision:
        if not self._enabled:
            self.stats.bypassed += 1
            if self._recorder is not None and not peek:
                self._recorder.bypassed(plan.cost, plan.version)
            return Decision(True, Plan([], None, plan.version))
        if not plan.charges:
            return self._concluded(live, plan, None, peek=peek, receipt=receipt)
        held = None
        if self._outage.active:
            held = self._fallback.handover.begin(plan.charges, live.terms_of, peek=peek)
            if held is not None and held.decided is not None:
                return self._refused_here(plan, held.decided, peek=peek)
        answer: Answer | StoreError
        try:
            store = self._unleased if held is not None and held.exact else self._store
            answer = store.decide_one(plan.charges, peek=peek or (held is not None and held.probes))
        except StoreError as error:
            answer = error
        return self._finish(live, plan, held, answer, peek=peek, receipt=receipt)

    def _finish(
        self,
        live: Live,
        plan: Plan,
        held: Held | None,
        answer: Answer | StoreError,
        *,
        peek: bool = False,
        receipt: bool = False,
        later: bool = False,
    ) -> Decision:
        """The decision of a request with charges that the store was asked.

        ``later``: what has to be given back is given back by a task of the running loop, because this call must not wait.
        """
        if isinstance(answer, StoreError):
            return self._decide_without_store(live, plan, held, answer, peek=peek, receipt=receipt, later=later)
        if held is None and not (receipt or peek or self._outage.active):
            # The usual course of what follows, written out.
            return self._usual(plan, answer)
        self._returned(held, answer, peek=peek, later=later)
        if held is not None and held.refusal is not None:
            return self._refused_here(plan, held.refusal, peek=peek)
        return self._concluded(live, plan, answer, held, peek=peek, receipt=receipt)

    def _returned(self, held: Held | None, answer: Answer, *, peek: bool = False, later: bool = False) -> None:
        """There is an answer: what that means for an outage."""
        if answer.asked and self._outage.active:
            self._outage.answered()
        if held is None:
            return
        self.stats.handovers += not peek and held.refusal is None
        if not answer.asked:
            # Nothing is known of the store, so nothing is settled.
            if not answer.admitted:
                self._fallback.handover.undo(held)
            return
        debts = self._fallback.handover.end(held, admitted=answer.admitted, peek=peek)
        if debts:
            self.stats.settled += len(debts)
            self._pay(debts, later=later)

    def _pay(self, debts: Sequence[Request], *, later: bool) -> None:
        """Charge the store what it is owed. A failure is left at that: nobody knows whether it was charged."""
        if later and isinstance(self._given, AsyncStore):
            for debt in debts:
                self._given.submit(debt, _ignore)
            return
        try:
            self._given.decide(debts)
        except StoreError:
            self.stats.store_errors += 1

    def _concluded(
        self, live: Live, plan: Plan, answer: Answer | None, held: Held | None = None, *, peek: bool, receipt: bool
    ) -> Decision:
        decision_id = None
        if receipt and not peek and (not plan.refused if answer is None else answer.admitted):
            made = () if answer is None else answer.receipts()
            here = () if held is None else held.receipts
            decision_id = self._receipts.give((self._store, made), (self._fallback.store, here))
        return self._counted(live.engine.conclude(plan, answer, decision_id=decision_id), peek=peek)

    def _decide_without_store(
        self,
        live: Live,
        plan: Plan,
        held: Held | None,
        error: StoreError,
        *,
        peek: bool = False,
        receipt: bool = False,
        later: bool = False,
    ) -> Decision:
        """The decision of a request with charges whose store call failed: the failure policies of its rules."""
        answer = self._fall_back(live, plan.charges, held, error, peek=peek, later=later)
        decision_id = None
        if receipt and not peek and answer.admitted:
            decision_id = self._receipts.give((self._store, answer.reached), (self._fallback.store, answer.charged))
        return self._counted(live.engine.conclude(plan, answer, degraded=True, decision_id=decision_id), peek=peek)

    def _fall_back(
        self,
        live: Live,
        request: Request,
        held: Held | None,
        error: StoreError,
        *,
        peek: bool = False,
        later: bool = False,
    ) -> FallbackAnswer:
        """The answer by policy, counted as such."""
        self.stats.store_errors += 1
        self._outage.failed(error)
        answer, undo = self._fallback.decide(request, live.terms_of, error, held, peek=peek)
        if not peek:
            self.stats.count_policies(answer.how)
        if undo:
            self._give_back(undo, later=later)
        return answer

    def _refused_here(self, plan: Plan, refusal: FallbackAnswer, *, peek: bool) -> Decision:
        """The decision of a request that the local counters of a hand-over refuse."""
        self.stats.handover_refused += not peek
        return self._counted(Decision(False, plan, refusal, True), peek=peek)

    def _tell_given(self, given: Iterable[Charge | Receipt], at_us: int) -> None:
        """Have it remembered that a store of this limiter was told to give these tokens back, at ``at_us`` or later."""
        recorder = self._recorder
        if recorder is not None:
            recorder.given_back(
                [(each.counter, each.subject, each.cost) if isinstance(each, Receipt) else each for each in given],
                at_us,
            )

    def _tell_refund(self, charged: Iterable[Charged]) -> None:
        if self._recorder is not None:
            told = [receipt for home, receipts in charged if home is self._store for receipt in receipts]
            self._tell_given(told, self._clock.now_us())

    def _give_back(self, receipts: Sequence[Receipt], *, later: bool) -> None:
        """Give back in the store what a request was charged there that is refused in the end.

        Where that fails it stays charged: it is not asked again, because it may have been done.
        """
        if later:
            self._give_back_later(receipts)
            return
        try:
            self._store.refund(receipts)
        except StoreError:
            self.stats.store_errors += 1

    def _give_back_later(self, receipts: Sequence[Receipt]) -> None:
        store = self._async
        assert store is not None, "only the answer of a store that takes time comes on an event loop"
        task = asyncio.get_running_loop().create_task(self._refund_quietly(store, receipts))
        # A loop holds its tasks weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refund_quietly(self, store: AsyncStore, receipts: Sequence[Receipt]) -> None:
        try:
            await store.arefund(receipts)
        except StoreError:
            self.stats.store_errors += 1

    def _counted(self, decision: Decision, *, peek: bool = False) -> Decision:
        if peek:
            self.stats.peeks += 1
        else:
            self._count(decision)
        return decision

    def _usual(self, plan: Plan, answer: Answer) -> Decision:
        """The decision of an answer that nothing special is known of, counted."""
        decision = Decision(answer.admitted, plan, answer)
        if answer.unanimous and not plan.unidentified:
            self.stats.allowed += 1
            recorder = self._recorder
            if recorder is not None:
                cell, following = plan.cell, recorder.following
                # Of one charge it is seen without a call whether its client is known not to be followed.
                if cell is None or (
                    following is not None and (len(plan.charges) > 1 or plan.charges[0][1] not in following.chosen[1])
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

    def _count(self, decision: Decision) -> None:
        """Count a decision that is not a peek, and what follows from a refusal."""
        self.stats.count(decision)
        if self._recorder is not None:
            self._recorder.told(decision)
        if decision.allowed:
            return
        penalties = self._live.engine.penalties
        if penalties and decision.answer is not None:
            self._penalize(decision.answer, penalties)

    def _penalize(self, answer: Answer, penalties: Mapping[str, tuple[str, Penalty]]) -> None:
        """Tell of the refusals by rules with a penalty, once for each rule.

        Only what the store has said, now or before, counts: a share of a limit, which decides without it, is less than the client may use.
        """
        told: set[str] = set()
        for counter, subject, _ in answer.refused():
            if counter.shadow or counter.name not in penalties:
                continue
            rule, penalty = penalties[counter.name]
            if rule not in told:
                told.add(rule)
                self.penalties.refused(rule, penalty, subject)


def _ignore(_answer: Answer | StoreError) -> None:
    """What the store says to a charge that is made whether or not it fits."""
