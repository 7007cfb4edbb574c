"""What operators do to counters: look at them, forget them, give something back."""

from __future__ import annotations

from collections.abc import Sequence

from sluicegate.algorithms.spec import State
from sluicegate.errors import StoreError
from sluicegate.limiter.async_calls import AsyncCalls
from sluicegate.limiter.core import FactsOrKey
from sluicegate.limiter.counters import CounterState, Target, charges_of, described
from sluicegate.limiter.explaining import Explanation
from sluicegate.limiter.live import Live, facts_of
from sluicegate.limiter.plan import check_cost
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Charge, Counter
from sluicegate.stores.near import parts_beside

__all__ = ["Operating"]


class Operating(AsyncCalls):
    """The calls of operators. None of them decides or charges anything; all raise InvalidRequest for what cannot be meant, and StoreError.

    Which counters are meant: those that a request (facts, a dict of them, or a key) would be charged to, whatever lists say, or those of a
    ``SubjectOfRule``. ``rule`` leaves only those of one rule. Shared ones (``per: []``) are among them.
    """

    def read(self, target: Target, *, rule: str | None = None) -> list[CounterState]:
        """How the counters stand, in order of evaluation."""
        live = self._live
        charges = charges_of(live, self.known, target, rule)
        return _described(live, self._store.decide(_singly(charges), peek=True))

    def explain(self, facts: FactsOrKey, cost: int = 1) -> Explanation:
        """Why a request would be decided as it is now: every rule, the counters, the verdict. Charges nothing.

        Not for a quota limiter, which has one rule. Raises no StoreError: the policies of the rules are the verdict then.
        """
        rows = self._live.engine.explain(facts_of(facts), cost)
        try:
            counters = self.read(facts)
        except StoreError:
            counters = None
        return Explanation(self.check(facts, cost, peek=True), rows, counters)

    async def aexplain(self, facts: FactsOrKey, cost: int = 1) -> Explanation:
        """``explain`` for coroutines."""
        rows = self._live.engine.explain(facts_of(facts), cost)
        try:
            counters = await self.aread(facts)
        except StoreError:
            counters = None
        return Explanation(await self.acheck(facts, cost, peek=True), rows, counters)

    def grant(self, target: Target, tokens: int, *, rule: str | None = None) -> list[CounterState]:
        """Give back up to ``tokens`` (1 to ``COST_MAX``) of what each of the counters has used; says how they stand then, and what was given.

        Never more than is used, and no counter is created. Receipts given before stay good.
        """
        check_cost(tokens)
        live = self._live
        charges = charges_of(live, self.known, target, rule)
        at_us, given = self._clock.now_us(), [tokens] * len(charges)
        try:
            given = list(self._store.grant([(counter, subject, tokens) for counter, subject, _ in charges]))
        finally:
            # Where it failed it may have been done.
            self._tell_granted(charges, given, at_us)
        self._forget_here(charges)
        states = _described(live, self._store.decide(_singly(charges), peek=True))
        return _with_given(states, given)

    def reset(self, target: Target, *, rule: str | None = None) -> int:
        """Forget the counters; returns how many existed. Receipts of charges to them are used up.

        Raises StoreError where the store fails; the counters of the local fallback are forgotten then all the same.
        """
        keys = self._forget_all(target, rule)
        parts = self._parts_beside(keys)
        if parts:
            self._store.reset(parts)
        return self._store.reset(keys)

    def forget(self, target: Target | None = None, *, rule: str | None = None) -> None:
        """Drop what this process keeps of the counters beside the store: those of the local fallback, and remembered refusals. None: of all clients.

        For counters that were changed in the store by somebody else. Tokens that are leased stay. Raises no StoreError.
        """
        near = self._near
        if target is None:
            self._tell_reset(None)
            self._fallback.forget_all()
            if near is not None:
                near.forget()
            return
        keys = self._forget_here(charges_of(self._live, self.known, target, rule))
        self._tell_reset(keys)
        if near is not None:
            near.forget(keys)

    async def aread(self, target: Target, *, rule: str | None = None) -> list[CounterState]:
        """``read`` for coroutines."""
        store = self._async
        if store is None:
            return self.read(target, rule=rule)
        live = self._live
        charges = charges_of(live, self.known, target, rule)
        return _described(live, await store.adecide(_singly(charges), peek=True))

    async def agrant(self, target: Target, tokens: int, *, rule: str | None = None) -> list[CounterState]:
        """``grant`` for coroutines."""
        store = self._async
        if store is None:
            return self.grant(target, tokens, rule=rule)
        check_cost(tokens)
        live = self._live
        charges = charges_of(live, self.known, target, rule)
        at_us, given = self._clock.now_us(), [tokens] * len(charges)
        try:
            given = list(await store.agrant([(counter, subject, tokens) for counter, subject, _ in charges]))
        finally:
            self._tell_granted(charges, given, at_us)
        self._forget_here(charges)
        states = _described(live, await store.adecide(_singly(charges), peek=True))
        return _with_given(states, given)

    async def areset(self, target: Target, *, rule: str | None = None) -> int:
        """``reset`` for coroutines."""
        store = self._async
        if store is None:
            return self.reset(target, rule=rule)
        keys = self._forget_all(target, rule)
        parts = self._parts_beside(keys)
        if parts:
            await store.areset(parts)
        return await store.areset(keys)

    # ------------------------------------------------------------------ inside

    def _parts_beside(self, keys: Sequence[tuple[Counter, str]]) -> list[tuple[Counter, str]]:
        """What other processes may have split these counters into; a near store knows that itself."""
        return parts_beside(keys) if self._near is None else []

    def _forget_all(self, target: Target, rule: str | None) -> list[tuple[Counter, str]]:
        """Forget the receipts and the local counters; returns what the store must forget."""
        charges = charges_of(self._live, self.known, target, rule)
        keys = [(counter, subject) for counter, subject, _ in charges]
        self._receipts.forget(keys)
        self._tell_reset(keys)
        return self._forget_here(charges)

    def _tell_granted(self, charges: Sequence[Charge], given: Sequence[int], at_us: int) -> None:
        """``given`` of each counter; see ``_tell_given``."""
        told = zip(charges, given, strict=True)
        self._tell_given([(counter, subject, tokens) for (counter, subject, _), tokens in told if tokens], at_us)

    def _tell_reset(self, keys: Sequence[tuple[Counter, str]] | None) -> None:
        if self._recorder is not None:
            self._recorder.reset(keys, self._clock.now_us())

    def _forget_here(self, charges: Sequence[Charge]) -> list[tuple[Counter, str]]:
        keys = [(counter, subject) for counter, subject, _ in charges]
        self._fallback.forget(keys)
        return keys


def _singly(charges: Sequence[Charge]) -> list[tuple[Charge]]:
    return [(charge,) for charge in charges]


def _described(live: Live, answers: Sequence[Answer]) -> list[CounterState]:
    """The counters of looks at one charge each, by the numbers they were decided by."""
    charges: list[Charge] = []
    states: list[tuple[int, State | None]] = []
    for answer in answers:
        assert isinstance(answer, StateAnswer), "stores of this package tell the states they decided on"
        charges.append(answer.decided[0])
        states.append((answer.now_us, answer.states[0][1]))
    return described(live, charges, states)


def _with_given(states: list[CounterState], given: Sequence[int]) -> list[CounterState]:
    return [state._replace(given=tokens) for state, tokens in zip(states, given, strict=True)]
