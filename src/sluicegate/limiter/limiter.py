"""The facade: rules, a store and a clock behind a handful of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, ParamSpec, Self, TypeVar, cast

from sluicegate.algorithms.verdict import Brief, Outcome
from sluicegate.bounds import BATCH_MAX, RULES_BYTES_MAX
from sluicegate.clock import Clock, SystemClock
from sluicegate.errors import ConfigurationError, InvalidRequest, PartlyDecided, ReceiptUnknown, StoreError
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.decorator import Cost, Key, decorate
from sluicegate.limiter.engine import Engine
from sluicegate.limiter.keyed import quota_rules, subject_of_key
from sluicegate.limiter.live import Live
from sluicegate.limiter.plan import Plan, check_cost
from sluicegate.limiter.policy import Fallback
from sluicegate.limiter.receipts import Receipts
from sluicegate.limiter.stats import LimiterStats
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity import IdentityResolver
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import FailurePolicy, RuleSet
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, AsyncStore, BulkStore, Charge, Counter, HitStore, Hitter, Single, Store
from sluicegate.stores.locks import Locked
from sluicegate.stores.urls import open_store

__all__ = ["FactsOrKey", "Limiter", "Singles"]

P = ParamSpec("P")
R = TypeVar("R")

FactsOrKey = Facts | dict[str, object] | str
"""Facts, or a dict with fields of Facts, for a limiter with rules; a key for one made from a quota."""


class Singles(NamedTuple):
    """Answers to a batch of single charges, to be described with ``spec.verdict(state, now_us, cost, admitted)``."""

    now_us: int
    singles: Sequence[Single]
    degraded: bool


class Limiter(Locked):
    """Decides requests. Safe to use from any number of threads and from any event loop.

    Made by ``from_file``, ``from_rules`` or ``from_quota``. ``enabled`` may be set at any time: while it is False every
    request is allowed, nothing is charged, and ``stats.bypassed`` counts. A fork continues with a copy of an in-process store;
    pickling is refused, because counters belong to one process.
    """

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
        self._hitter: Hitter | None = None
        self._quicken()

    # ------------------------------------------------------------------ making one

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        store: Store | str = "memory://",
        clock: Clock | None = None,
        *,
        namespace: str = "default",
    ) -> Limiter:
        """A limiter by the rules in a YAML file. Files that the rules name are relative to it.

        Raises ConfigurationError: RulesInvalid with every problem of the file, or why it or the store cannot be used.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                text = file.read(RULES_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigurationError(f"rules file {str(path)!r} cannot be read: {error.strerror or error}") from error
        ruleset = load_rules(text, str(path))
        return cls.from_rules(ruleset, store, clock, namespace=namespace, base_dir=path.parent)

    @classmethod
    def from_rules(
        cls,
        ruleset: RuleSet,
        store: Store | str = "memory://",
        clock: Clock | None = None,
        *,
        namespace: str = "default",
        base_dir: Path | None = None,
    ) -> Limiter:
        """A limiter by a rule set. ``namespace`` keeps services apart that share a store."""
        return cls(
            ruleset, store=store, clock=clock or SystemClock(), namespace=namespace, base_dir=base_dir, keyed=False
        )

    @classmethod
    def from_quota(
        cls,
        quota: str,
        algorithm: str = "token_bucket",
        store: Store | str = "memory://",
        clock: Clock | None = None,
        *,
        name: str = "quota",
        namespace: str = "default",
        on_store_failure: str = FailurePolicy.LOCAL.value,
    ) -> Limiter:
        """A limiter with one quota, such as ``"100/minute"``, for every key. ``name`` appears as ``decision.rule``."""
        ruleset = quota_rules(quota, algorithm=algorithm, name=name, version=1, on_store_failure=on_store_failure)
        return cls(ruleset, store=store, clock=clock or SystemClock(), namespace=namespace, base_dir=None, keyed=True)

    # ------------------------------------------------------------------ deciding

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
        try:
            answer = self._store.decide_one(charges)
        except StoreError:
            return self._decide_without_store(live, plan)
        decision = Decision(answer.admitted, plan, answer)
        if answer.unanimous and not plan.unidentified:
            self.stats.allowed += 1
        else:
            self.stats.count(decision)
        return decision

    async def acheck(
        self, facts_or_key: FactsOrKey, cost: int = 1, *, peek: bool = False, receipt: bool = False
    ) -> Decision:
        """``check`` for coroutines. With the memory store it never suspends: deciding takes microseconds."""
        store = self._async
        if store is None or not self._enabled:
            return self.check(facts_or_key, cost, peek=peek, receipt=receipt)
        live = self._live
        plan = live.plan(facts_or_key, cost, peek=peek)
        if not plan.charges:
            return self._decide(live, plan, peek=peek, receipt=receipt)
        try:
            answer = await store.adecide_one(plan.charges, peek=peek)
        except StoreError:
            return self._decide_without_store(live, plan, peek=peek, receipt=receipt)
        return self._concluded(live, plan, answer, peek=peek, receipt=receipt)

    def check_many(self, requests: Iterable[FactsOrKey | tuple[FactsOrKey, int]]) -> list[Decision]:
        """Decide requests in order, each one charged before the next is read, in one call of the store.

        An item is what ``check`` takes, or that and a cost. One that cannot be decided raises InvalidRequest naming its
        place, and then nothing at all is charged. At most ``BATCH_MAX`` items.
        """
        live = self._live
        plans: list[Plan] = []
        for index, item in enumerate(requests):
            if index >= BATCH_MAX:
                raise InvalidRequest("requests", f"at most {BATCH_MAX} are decided in one call")
            facts_or_key, cost = item if isinstance(item, tuple) else (item, 1)
            try:
                plans.append(live.plan(facts_or_key, cost))
            except InvalidRequest as error:
                raise InvalidRequest(f"requests[{index}].{error.field}", error.message) from None
        if not self._enabled:
            return [self._decide(live, plan) for plan in plans]
        charged = [plan.charges for plan in plans if plan.charges]
        answers: Sequence[Answer | None]
        try:
            answers = self._store.decide(charged)
        except PartlyDecided as error:
            answers = cast("Sequence[Answer | None]", error.answers)
        except StoreError:
            answers = [None] * len(charged)
        found = iter(answers)
        return [self._conclude_one_of_many(live, plan, found) for plan in plans]

    def peek(self, facts_or_key: FactsOrKey, cost: int = 1) -> Decision:
        """What ``check`` would say now, without charging or creating anything. Counters are described as they stand."""
        return self.check(facts_or_key, cost, peek=True)

    def hit(self, key: str, cost: int = 1) -> bool:
        """``check(key, cost).allowed``, without the description: the fastest call there is for a quota limiter."""
        return self.check(key, cost).allowed

    def limit(self, *, key: Key = None, cost: Cost = 1) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator that runs a function, sync or async, only where its call is allowed; else it raises RateLimited.

        ``key``: a function of the call's arguments that gives the key (facts, for a limiter with rules), or a fixed key. None
        puts all calls of the function on one counter, named by module and qualified name. ``cost``: a number or a function
        of the arguments.
        """
        if self._live.keyed is None and not callable(key):
            raise ConfigurationError("key: a limiter with rules needs a function that gives the Facts of a call")
        return decorate(self, key, cost)

    def refund(self, decision: Decision | str, *, strict: bool = False) -> int:
        """Give back what a decision charged; returns how many counters were changed.

        ``decision``: an allowed decision made with ``receipt=True``, or its ``decision_id``. Good once and for an hour: a later
        call gives 0, or raises ReceiptUnknown where ``strict``. What time or a reset has given back is not given twice. Raises
        StoreError where the store fails; the receipt is used up then, because the refund may have been made.
        """
        if not isinstance(decision, str | Decision):
            raise InvalidRequest("decision_id", f"want a decision or its decision_id, got {type(decision).__name__}")
        decision_id = decision if isinstance(decision, str) else decision.decision_id
        if decision_id is None:
            raise InvalidRequest("decision_id", "this decision has no receipt: ask for one with receipt=True")
        try:
            changed = self._receipts.redeem(decision_id)
        except ReceiptUnknown:
            if strict:
                raise
            return 0
        self.stats.refunds += 1
        return changed

    def reset(self, facts_or_key: FactsOrKey) -> int:
        """Forget the counters this request would be charged to; returns how many existed. Shared ones included.

        Raises StoreError where the store fails; the counters of the local fallback are forgotten then all the same.
        """
        charges = self._live.plan(facts_or_key, 1).charges
        keys = [(counter, subject) for counter, subject, _ in charges]
        self._receipts.forget(keys)
        self._fallback.store.reset(keys)
        return self._store.reset(keys)

    # ------------------------------------------------------------------ counters without rules

    def check_counter(
        self, counter: Counter, subject: str, cost: int = 1, *, peek: bool = False, receipt: bool = False
    ) -> Decision:
        """Decide one charge that no rule names, for doors whose callers bring the policy along. ``version`` is 0."""
        check_cost(cost, least=0 if peek else 1)
        return self._decide(self._live, Plan([(counter, subject, cost)]), peek=peek, receipt=receipt)

    def check_counters_many(self, charges: Sequence[Charge]) -> list[Decision]:
        """``check_counter`` for each charge, in order, in one call of the store."""
        if not self._enabled:
            self.stats.bypassed += len(charges)
            return [Decision(True, Plan([])) for _ in charges]
        now_us, singles, degraded = self.decide_counters(charges)
        decisions: list[Decision] = []
        for charge, (admitted, state) in zip(charges, singles, strict=True):
            request = [charge]
            notes = None if admitted else ((charge[2], False),)
            answer = StateAnswer(admitted, now_us, request, ((0, state),), notes, admitted, admitted)
            decisions.append(Decision(admitted, Plan(request), answer, degraded))
        return decisions

    def decide_counters(self, charges: Sequence[Charge]) -> Singles:
        """The leanest form of ``check_counters_many``: states instead of decisions, costs unchecked.

        Costs must be whole numbers >= 1; the caller checks them, and ``enabled``, which this call does not look at.
        Refusals count under the counter's name.
        """
        degraded = False
        try:
            now_us, singles = self._store.decide_singles(charges)
        except StoreError as error:
            self.stats.store_errors += 1
            degraded = True
            now_us, singles, missing = self._fallback.complete_singles(charges, error)
            self.stats.degraded += missing
        refused = 0
        for charge, (admitted, _) in zip(charges, singles):  # noqa: B905 -- as long by contract; strict costs time here
            if not admitted:
                refused += 1
                counter = charge[0]
                outcome = Outcome.NEVER_FITS if charge[2] > counter.spec.capacity else Outcome.DENIED
                self.stats.count_refusal(counter.name, outcome)
        self.stats.allowed += len(charges) - refused
        return Singles(now_us, singles, degraded)

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
        return briefs

    # ------------------------------------------------------------------ operating

    def apply(self, rules: RuleSet | str) -> None:
        """Put other rules in service while traffic flows: a rule set, or for a quota limiter a quota.

        Each request is decided wholly by the old rules or wholly by the new ones. Counters survive a change of numbers.
        Raises ConfigurationError where the new rules cannot be served; the old ones stay then.
        """
        with self._lock:
            live = self._live
            ruleset = live.next_ruleset(rules)
            fresh = Live(
                ruleset,
                namespace=self._namespace,
                clock=self._clock,
                base_dir=self._base_dir,
                keyed=live.keyed is not None,
            )
            # Fetched key sets and identity counts outlive the edit: no token is unknown until the next fetch.
            fresh.resolver.adopt(live.resolver)
            self._live = fresh
            self._quicken()
            self.stats.applies += 1

    @property
    def enabled(self) -> bool:
        """Whether requests are decided at all."""
        return self._enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        with self._lock:
            self._enabled = bool(enabled)
            self._quicken()

    @property
    def version(self) -> int:
        """The version of the rules in service; of a quota limiter, 1 plus the number of quotas applied."""
        return self._live.version

    @property
    def ruleset(self) -> RuleSet:
        """The rules in service."""
        return self._live.ruleset

    @property
    def resolver(self) -> IdentityResolver:
        """How requests get their identity by the rules in service; another object after ``apply``."""
        return self._live.resolver

    @property
    def engine(self) -> Engine:
        """The compiled rules in service; another object after ``apply``."""
        return self._live.engine

    @property
    def store(self) -> Store:
        """Where the counters live."""
        return self._store

    @property
    def clock(self) -> Clock:
        """What dates the counters of an in-process store."""
        return self._clock

    def close(self) -> None:
        """Release the store; every later decision finds it closed and is made by the rules' failure policies."""
        self._store.close()

    async def aclose(self) -> None:
        """``close`` for coroutines: also the connections that ``acheck`` made in the running event loop are closed."""
        if self._async is not None:
            await self._async.aclose()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        live = self._live
        return f"<Limiter {len(live.ruleset.rules)} rules version={live.version} store={self._store!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Limiter cannot be pickled: its counters belong to this process. Make one in each process with "
            "from_file or from_quota; to count together they need a shared store"
        )

    # ------------------------------------------------------------------ inside

    def _decide(self, live: Live, plan: Plan, *, peek: bool = False, receipt: bool = False) -> Decision:
        if not self._enabled:
            self.stats.bypassed += 1
            return Decision(True, Plan([], None, plan.version))
        answer: Answer | None = None
        if plan.charges:
            try:
                answer = self._store.decide_one(plan.charges, peek=peek)
            except StoreError:
                return self._decide_without_store(live, plan, peek=peek, receipt=receipt)
        return self._concluded(live, plan, answer, peek=peek, receipt=receipt)

    def _concluded(self, live: Live, plan: Plan, answer: Answer | None, *, peek: bool, receipt: bool) -> Decision:
        decision_id = self._receipt(self._store, plan, answer) if receipt and not peek else None
        return self._counted(live.engine.conclude(plan, answer, decision_id=decision_id), peek=peek)

    def _decide_without_store(self, live: Live, plan: Plan, *, peek: bool = False, receipt: bool = False) -> Decision:
        """The decision of a request with charges whose store call failed: the failure policies of its rules."""
        self.stats.store_errors += 1
        answer = self._fallback.decide(plan.charges, live.policy_of, peek=peek)
        decision_id = self._receipt(self._fallback.store, plan, answer) if receipt and not peek else None
        return self._counted(live.engine.conclude(plan, answer, degraded=True, decision_id=decision_id), peek=peek)

    def _conclude_one_of_many(self, live: Live, plan: Plan, answers: Iterator[Answer | None]) -> Decision:
        answer = next(answers) if plan.charges else None
        if plan.charges and answer is None:
            return self._decide_without_store(live, plan)
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
        return self._receipts.give(store, () if answer is None else answer.receipts())

    def _quicken(self) -> None:
        """Shadow the method ``hit`` by a fast path of the store, where the rules and the store have one.

        The earlier fast path is retired: whoever kept a reference to it is from then on decided by the rules in force.
        """
        if self._hitter is not None:
            self._hitter.retire()
            self._hitter = None
            self.__dict__.pop("hit", None)
        keyed = self._live.keyed
        if self._enabled and keyed is not None and len(keyed.counters) == 1 and isinstance(self._store, HitStore):
            (counter,) = keyed.counters
            otherwise = partial(Limiter.hit, self)
            outcome = Outcome.DENIED if counter.spec.capacity else Outcome.NEVER_FITS
            self._hitter = self._store.hitter(
                counter,
                lambda name: counter.prefix + subject_of_key(name),
                otherwise,
                partial(self.stats.count_refusal, counter.name, outcome),
            )
            self.__dict__["hit"] = self._hitter.hit
