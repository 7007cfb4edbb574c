"""The calls of a limiter for event loops: callbacks, and coroutines made of them.

With a store that lives in this process they decide at once, as the synchronous calls do. With a store that is an ``AsyncStore``
they never block the loop they are called on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from sluicegate.algorithms import TokenBucket
from sluicegate.algorithms.spec import State
from sluicegate.algorithms.verdict import Verdict
from sluicegate.clock import US_PER_S
from sluicegate.errors import ReceiptUnknown, StoreError
from sluicegate.limiter.calls import Calls, Singles, as_made, decisions_of, id_of
from sluicegate.limiter.core import FactsOrKey
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.handover import Asked, Held
from sluicegate.limiter.live import Live
from sluicegate.limiter.plan import Plan, check_cost, plan_of
from sluicegate.limiter.receipts import refund_all
from sluicegate.rules.facts import Facts
from sluicegate.stores.answer import answers_of, single_of
from sluicegate.stores.base import Answer, AsyncStore, Charge, Counter, Receipt, Request
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.near import Asking, HotStore

__all__ = ["AsyncCalls", "OnDecision", "OnSingle"]

OnDecision: TypeAlias = Callable[[Decision], None]
"""What is called with the decision, once."""

OnSingle: TypeAlias = Callable[[bool, State | None, int, bool], None]
"""What is called, once, with (admitted, state, now_us, degraded): see ``Singles``, also for what a Verdict in the place of the state means."""

_LOOK = Counter("look", TokenBucket(1, 1, US_PER_S), counter_prefix("look", "look", "token_bucket", "-"))
"""What is looked at to see whether the store decides; it is never charged, so there is no such key."""


class AsyncCalls(Calls):
    """Deciding, refunding and resetting on an event loop.

    Callbacks are called exactly once and on the loop of the call, perhaps before it returns; with a store of this process
    always before. An exception of a callback goes to the loop's exception handler where the store called it later, and to
    the caller where this call did.
    """

    @property
    def waits(self) -> bool:
        """True where a decision may need a round trip, so that ``submit`` and the coroutines do not have it at once."""
        return self._async is not None

    # ------------------------------------------------------------------ callbacks

    def submit(
        self, facts_or_key: FactsOrKey, done: OnDecision, cost: int = 1, *, peek: bool = False, receipt: bool = False
    ) -> None:
        """``check`` by callback. Raises InvalidRequest at once; nothing is charged and ``done`` is not called then."""
        store = self._async
        if store is None or not self._enabled:
            done(self.check(facts_or_key, cost, peek=peek, receipt=receipt))
            return
        live = self._live
        if type(facts_or_key) is Facts and live.keyed is None:
            plan = live.engine.plan(facts_or_key, cost, peek=peek)
        else:
            plan = live.plan(facts_or_key, cost, peek=peek)
        if not plan.charges:
            done(self._decide(live, plan, peek=peek, receipt=receipt))
        elif peek or receipt or self._outage.active:
            self._submit_special(store, done, live, plan, peek=peek, receipt=receipt)
        elif self._near is not None:
            begun = self._near.begin(plan.charges)
            if isinstance(begun, Asking):
                self._near.go_on(begun, partial(self._arrived, done, live, plan))
            else:
                done(self._usual(plan, begun))
        else:
            store.submit(plan.charges, partial(self._arrived, done, live, plan))

    def submit_plan(self, plan: Plan, done: OnDecision, *, peek: bool = False) -> None:
        """``check_plan`` by callback."""
        store = self._async
        live = self._live
        if store is None or not self._enabled or not plan.charges:
            done(self._decide(live, plan, peek=peek))
        elif peek or self._outage.active:
            self._submit_special(store, done, live, plan, peek=peek, receipt=False)
        else:
            store.submit(plan.charges, partial(self._arrived, done, live, plan))

    def submit_counter(
        self,
        counter: Counter,
        subject: str,
        cost: int,
        done: OnDecision,
        *,
        peek: bool = False,
        receipt: bool = False,
    ) -> None:
        """``check_counter`` by callback."""
        store = self._async
        if store is None or not self._enabled:
            done(self.check_counter(counter, subject, cost, peek=peek, receipt=receipt))
            return
        check_cost(cost, least=0 if peek else 1)
        plan = plan_of(counter, subject, cost)
        self._submit_special(store, done, self._live, plan, peek=peek, receipt=receipt)

    def submit_single(self, charge: Charge, done: OnSingle) -> None:
        """``decide_counters`` for one charge by callback: the leanest form, costs unchecked, ``enabled`` not looked at."""
        store = self._async
        if store is None:
            now_us, ((admitted, state),), degraded = self.decide_counters((charge,))
            done(admitted, state, now_us, degraded)
            return
        if not self._outage.active:
            store.submit((charge,), partial(self._arrived_single, done, charge))
            return
        live = self._live
        asked = self._begin(live, ((charge,),))
        if asked.places[0] is None:
            now_us, ((admitted, state),), _ = self._complete(live, (charge,), asked, ())
            done(admitted, state, now_us, True)
            return
        arrived = partial(self._arrived_single_after_outage, done, live, charge, asked)
        self._asked_store(store, exact=asked.exact).submit((charge,), arrived, peek=bool(asked.probes))

    # ------------------------------------------------------------------ coroutines

    async def acheck(
        self, facts_or_key: FactsOrKey, cost: int = 1, *, peek: bool = False, receipt: bool = False
    ) -> Decision:
        """``check`` for coroutines. With the memory store it never suspends: deciding takes microseconds.

        Where the caller is cancelled meanwhile, the charge may have been made.
        """
        store = self._async
        if store is None or not self._enabled:
            return self.check(facts_or_key, cost, peek=peek, receipt=receipt)
        live = self._live
        plan = live.plan(facts_or_key, cost, peek=peek)
        if not plan.charges:
            return self._decide(live, plan, peek=peek, receipt=receipt)
        held = None
        if self._outage.active:
            held = self._fallback.handover.begin(plan.charges, live.terms_of, peek=peek)
            if held is not None and held.decided is not None:
                return self._refused_here(plan, held.decided, peek=peek)
        elif self._near is not None and not (peek or receipt):
            begun = self._near.begin(plan.charges)
            if not isinstance(begun, Asking):
                return self._usual(plan, begun)
            begun_waiter: asyncio.Future[Answer | StoreError] = asyncio.get_running_loop().create_future()
            self._near.go_on(begun, partial(_land, begun_waiter))
            return self._finish(live, plan, None, await begun_waiter, later=True)
        # Not ``adecide_one``: each coroutine inside another costs as much as handing the request over.
        waiter: asyncio.Future[Answer | StoreError] = asyncio.get_running_loop().create_future()
        asked = store if held is None else self._asked_store(store, exact=held.exact)
        asked.submit(plan.charges, partial(_land, waiter), peek=peek or (held is not None and held.probes))
        answer = await waiter
        return self._finish(live, plan, held, answer, peek=peek, receipt=receipt, later=True)

    async def acheck_many(self, requests: Iterable[FactsOrKey | tuple[FactsOrKey, int]]) -> list[Decision]:
        """``check_many`` for coroutines."""
        store = self._async
        if store is None or not self._enabled:
            return self.check_many(requests)
        live = self._live
        plans = self._plans(live, requests)
        asked = self._begin(live, [plan.charges for plan in plans if plan.charges])
        answers = await self._aanswers(store, asked)
        return self._conclude_many(live, plans, asked, answers, later=True)

    async def apeek(self, facts_or_key: FactsOrKey, cost: int = 1) -> Decision:
        """``peek`` for coroutines."""
        return await self.acheck(facts_or_key, cost, peek=True)

    async def arefund(self, decision: Decision | str, *, strict: bool = False) -> int:
        """``refund`` for coroutines."""
        store = self._async
        if store is None:
            return self.refund(decision, strict=strict)
        try:
            charged = self._receipts.take(id_of(decision))
        except ReceiptUnknown:
            if strict:
                raise
            return 0
        self._tell_refund(charged)
        # What the fallback charged first: it cannot fail, and a cancelled caller loses only the rest.
        changed = refund_all([(home, receipts) for home, receipts in charged if home is not self._store])
        for home, receipts in charged:
            if home is self._store:
                changed += await store.arefund(receipts)
        self.stats.refunds += 1
        return changed

    async def arefund_receipts(self, receipts: Sequence[Receipt]) -> int:
        """``refund_receipts`` for coroutines."""
        if self._async is None:
            return self.refund_receipts(receipts)
        self._tell_given(receipts, self._clock.now_us())
        return await self._async.arefund(receipts)

    async def agive_back(self, charges: Sequence[Charge]) -> tuple[Verdict, ...]:
        """``give_back`` for coroutines."""
        store = self._async
        if store is None:
            return self.give_back(charges)
        now_us = (await store.adecide_one(charges, peek=True)).now_us
        self._tell_given(charges, self._clock.now_us())
        await store.arefund(as_made(charges, now_us))
        self.stats.refunds += 1
        answer = await store.adecide_one([(counter, subject, 1) for counter, subject, _ in charges], peek=True)
        return answer.verdicts()

    async def acheck_counters_many(self, charges: Sequence[Charge]) -> list[Decision]:
        """``check_counters_many`` for coroutines."""
        if self._async is None or not self._enabled:
            return self.check_counters_many(charges)
        return decisions_of(charges, await self.adecide_counters(charges))

    async def adecide_counters(self, charges: Sequence[Charge]) -> Singles:
        """``decide_counters`` for coroutines."""
        store = self._async
        if store is None or not charges:
            return self.decide_counters(charges)
        live = self._live
        asked = self._begin(live, [(charge,) for charge in charges])
        answers = await self._aanswers(store, asked)
        return self._complete(live, charges, asked, answers, later=True)

    async def awarm(self) -> bool:
        """Connect to the store and make it ready, within a second; False where it is not there. In process: True."""
        return True if self._async is None else await self._async.awarm()

    async def alook(self, *, suspect: bool = False) -> None:
        """After a failure, ask the store whether it decides again, by a peek that charges nothing and counts nowhere.

        So ``failing_since_us`` tells the truth where nobody asks for decisions. Does nothing where the last call was answered, unless
        the caller has reason to ``suspect`` the store: then a failure is one as of any call. A store that is still away is no error.
        """
        store = self._async
        if store is None or (self.failing_since_us is None and not suspect):
            return
        try:
            await store.adecide_one(((_LOOK, "look", 1),), peek=True)
        except StoreError as error:
            if self.failing_since_us is None:
                self._outage.failed(error)
            return
        if self._outage.active:
            self._outage.answered()

    async def aclose(self) -> None:
        """``close`` for coroutines: also the connections made in the running event loop are closed when it returns."""
        if self._async is not None:
            loop = asyncio.get_running_loop()
            # Other loops add theirs meanwhile, so the set is copied first.
            await asyncio.gather(*[task for task in list(self._tasks) if task.get_loop() is loop])
            await self._async.aclose()
        self._store.close()

    # ------------------------------------------------------------------ inside

    def _submit_special(
        self, store: AsyncStore, done: OnDecision, live: Live, plan: Plan, *, peek: bool, receipt: bool
    ) -> None:
        """Submit what is more than the usual call."""
        held = None
        if self._outage.active:
            held = self._fallback.handover.begin(plan.charges, live.terms_of, peek=peek)
            if held is not None and held.decided is not None:
                done(self._refused_here(plan, held.decided, peek=peek))
                return
        arrived = partial(self._arrived_special, done, live, plan, held, peek, receipt)
        asked = store if held is None else self._asked_store(store, exact=held.exact)
        asked.submit(plan.charges, arrived, peek=peek or (held is not None and held.probes))

    def _asked_store(self, store: AsyncStore, *, exact: bool) -> AsyncStore | HotStore:
        """What is to be asked: ``store``, or what decides without leases (see ``Held.exact``)."""
        return self._near.hot if exact and self._near is not None else store

    async def _aanswers(self, store: AsyncStore, asked: Asked) -> Sequence[Answer | StoreError]:
        """What the store has for each request asked of it: an answer, or why there is none."""
        deciding = self._asked_store(store, exact=asked.exact)
        decided = _aanswer(deciding, asked.requests, peek=False)
        if not asked.probes:
            return await decided
        # Side by side, so that both are within one deadline.
        answers, seen = await asyncio.gather(decided, _aanswer(deciding, asked.probes, peek=True))
        return [*answers, *seen]

    # ------------------------------------------------------------------ called by the store, so nothing may be raised

    def _arrived(self, done: OnDecision, live: Live, plan: Plan, answer: Answer | StoreError) -> None:
        """The usual answer, as short as it can be; ``_arrived_special`` says the same at length."""
        try:
            if isinstance(answer, StoreError):
                decision = self._decide_without_store(live, plan, None, answer, later=True)
            else:
                decision = self._usual(plan, answer)
            done(decision)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the store's other callers must get their answers
            _report(error)

    def _arrived_special(
        self,
        done: OnDecision,
        live: Live,
        plan: Plan,
        held: Held | None,
        peek: bool,
        receipt: bool,
        answer: Answer | StoreError,
    ) -> None:
        try:
            done(self._finish(live, plan, held, answer, peek=peek, receipt=receipt, later=True))
        except Exception as error:  # noqa: BLE001 -- as above
            _report(error)

    def _arrived_single(self, done: OnSingle, charge: Charge, answer: Answer | StoreError) -> None:
        try:
            if isinstance(answer, StoreError):
                asked = Asked.plainly(((charge,),))
                now_us, ((admitted, state),), _ = self._complete(self._live, (charge,), asked, (answer,), later=True)
                done(admitted, state, now_us, True)
                return
            if answer.admitted and self._recorder is None:
                self.stats.allowed += 1
            else:
                self._count_singles((charge,), ((answer.admitted, None),), answer.now_us)
            done(answer.admitted, single_of(answer)[1], answer.now_us, False)
        except Exception as error:  # noqa: BLE001 -- as above
            _report(error)

    def _arrived_single_after_outage(
        self, done: OnSingle, live: Live, charge: Charge, asked: Asked, answer: Answer | StoreError
    ) -> None:
        try:
            now_us, ((admitted, state),), degraded = self._complete(live, (charge,), asked, (answer,), later=True)
            done(admitted, state, now_us, degraded)
        except Exception as error:  # noqa: BLE001 -- as above
            _report(error)


async def _aanswer(
    store: AsyncStore | HotStore, requests: Sequence[Request], *, peek: bool
) -> Sequence[Answer | StoreError]:
    """An answer to each request, or why there is none."""
    try:
        return await store.adecide(requests, peek=peek) if requests else ()
    except StoreError as error:
        return answers_of(error, len(requests))


def _land(waiter: asyncio.Future[Answer | StoreError], answer: Answer | StoreError) -> None:
    """Tell a coroutine, unless it was cancelled and nobody hears of it."""
    if not waiter.done():
        waiter.set_result(answer)


def _report(error: Exception) -> None:
    """Hand an exception that has no caller to the running loop."""
    message = "a callback of a limiter failed"
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
