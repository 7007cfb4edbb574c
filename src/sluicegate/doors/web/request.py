"""All that was decided for one request.

A request may meet several gates: middleware, decorators, dependencies, throttles. They share one ``RequestLimits``, which keeps
two promises. Each rule is charged once, however many gates name it. And a request that is refused is charged nothing: what
earlier gates charged is given back, and later ones only look. Between the charge and its return others may have been
refused; never has anybody been admitted above a limit.

A gate may also leave it to the application what becomes of a request (``Refusal``). Such a request is charged by all other gates
until it is known to be refused, or a limit that does not stop requests would switch off those that do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from sluicegate.algorithms.verdict import Outcome
from sluicegate.clock import US_PER_S
from sluicegate.doors.web.declared import DEFAULT_NAME, Limit
from sluicegate.errors import ConfigurationError, InvalidRequest, RateLimited, StoreError
from sluicegate.limiter.decision import Decision, RuleResult, Summary
from sluicegate.limiter.limiter import FactsOrKey, Limiter
from sluicegate.limiter.plan import Plan
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.resolver import Headers, IdentityResolver
from sluicegate.stores.base import Receipt

__all__ = ["NOTHING_SEEN", "Refusal", "RequestLimits", "Seen", "merge"]


class Seen(NamedTuple):
    """What a server saw of a request besides its line: the header lines, and the address of the peer (None: a Unix socket)."""

    headers: Headers
    peer: str | None


NOTHING_SEEN: Final = Seen((), "")
"""Of a request that is not from a server."""


class Refusal(Enum):
    """What a refusal of a gate means."""

    FINAL = "final"
    """The request is refused: its charges go back, and later gates only look."""
    RAISED = "raised"
    """The application is told by an exception and may go on; ``settle`` says when the request is refused after all."""
    NOTED = "noted"
    """The request goes on, and the application may look at what was decided."""


class RequestLimits:
    """The decisions of one request, and how to undo them. Belongs to the request; not safe to share between threads.

    ``facts``: what was known of the request when the first gate decided. ``decisions``: one per rule set or limit, in the order
    decided. ``refused``: the first of them that refused, with the limiter that did; None while none has. ``invalid``: why a gate could
    not decide, for instance a cost out of range; None where all could.
    """

    __slots__ = (
        "_by_owner",
        "_charged",
        "_claims",
        "_merged",
        "_made",
        "_names",
        "_noted",
        "_pathless",
        "_settled",
        "_turn",
        "_waited_for",
        "decisions",
        "facts",
        "invalid",
        "later_s",
        "left_to_door",
        "made_by",
        "origin",
        "refused",
        "seen",
        "told",
    )

    def __init__(
        self,
        facts: Facts,
        origin: tuple[object, str] = (None, ""),
        seen: Seen = NOTHING_SEEN,
        made_by: IdentityResolver | None = None,
    ) -> None:
        self.facts = facts
        self._made = facts
        self.made_by = made_by
        """By whose settings the facts were made."""
        self.seen = seen
        """What the facts were made from, for limits that count by headers which the rules do not look at."""
        self.origin = origin
        """The application and root path that an ASGI request had when it came; applications mounted inside change both."""
        self.decisions: list[Decision] = []
        self.refused: tuple[Limiter, Decision] | None = None
        self.invalid: InvalidRequest | None = None
        self.told: Decision | None = None
        """What the client was told of a refusal, where that differs from the decision."""
        self.later_s: int | None = None
        """How much later than it may a refused client is told to come back; None where nobody has asked yet."""
        self.left_to_door = False
        """Whether the application's framework has left it to the door to answer what a limit refused."""
        self._by_owner: dict[object, Decision] = {}
        self._charged: list[tuple[Limiter, Decision]] = []
        self._merged: Decision | None = None
        self._claims: dict[object, Limit] = {}
        self._noted: list[Decision] = []
        """Refusals that did not stop the request."""
        self._settled = False
        """Whether the request is refused for good, so that nothing more is charged."""
        self._turn: asyncio.Lock | None = None
        """Held while a coroutine decides: what tasks of one request ask at once is decided one after the other."""
        self._names: dict[Limit, str] = {}
        self._pathless: tuple[Facts, Facts] | None = None
        self._waited_for: tuple[Decision, ...] = ()

    # ------------------------------------------------------------------ what handlers read

    @property
    def decision(self) -> Decision | None:
        """Everything decided so far as one decision; None where nothing was decided.

        It describes the first rule that refused, or else the one nearest exhaustion.
        """
        decisions = self.decisions
        if self._noted and self.refused is not None:
            # Who is refused by others is not kept waiting by a limit that would have let it pass.
            decisions = [decision for decision in decisions if not any(decision is noted for noted in self._noted)]
        if len(decisions) < 2:
            return decisions[0] if decisions else None
        merged = self._merged
        if merged is None:
            merged = self._merged = merge(decisions)
        return merged

    @property
    def nearest(self) -> Decision | None:
        """Of decisions that pass, the one with the fewest tokens left; None where nothing was decided."""
        decisions = self.decisions
        if len(decisions) < 2:
            return decisions[0] if decisions else None
        return _tightest(decisions)

    @property
    def allowed(self) -> bool:
        """Whether nothing has refused so far, also not a limit that lets its requests pass."""
        return self.refused is None and not self._noted

    @property
    def rule(self) -> str | None:
        """The rule that ``limit``, ``remaining`` and ``reset_after_s`` are about; None where none applied."""
        decision = self.decision
        return None if decision is None else decision.rule

    @property
    def limit(self) -> int | None:
        """Capacity of that rule's counter."""
        decision = self.decision
        return None if decision is None else decision.limit

    @property
    def remaining(self) -> int | None:
        """Tokens left in that rule's counter."""
        decision = self.decision
        return None if decision is None else decision.remaining

    @property
    def reset_after_s(self) -> float:
        """Seconds until that counter is full again or its window ends; on a refusal, until the request would pass."""
        decision = self.decision
        return 0.0 if decision is None else decision.reset_after_us / US_PER_S

    @property
    def results(self) -> Sequence[RuleResult]:
        """What every rule said, shadow rules included."""
        decision = self.decision
        return () if decision is None else decision.results

    def refund(self) -> int:
        """Give back what this request was charged; returns how many counters changed.

        For limits that are to count failures only, or work that was not done. Good once. What was decided without the store
        is not given back, and a store that fails gives nothing back: never an error.
        """
        changed = 0
        for limiter, receipts in self._take_charges():
            with contextlib.suppress(StoreError):
                changed += limiter.refund_receipts(receipts)
        return changed

    async def arefund(self) -> int:
        """``refund`` for coroutines."""
        changed = 0
        for limiter, receipts in self._take_charges():
            with contextlib.suppress(StoreError):
                changed += await limiter.arefund_receipts(receipts)
        return changed

    # ------------------------------------------------------------------ what gates do

    def stopped_by(self, error: BaseException) -> bool:
        """Whether an error says nothing but that a limit refused this request, or could not decide it."""
        return error is self.invalid or (isinstance(error, RateLimited) and self.refused is not None)

    def decide(
        self, owner: object, limiter: Limiter, what: FactsOrKey, cost: int = 1, refusal: Refusal = Refusal.FINAL
    ) -> Decision:
        """Decide for a gate, unless ``owner`` (a rule set or limit) has been decided for this request already.

        Raises InvalidRequest as ``Limiter.check`` does.
        """
        known = self._by_owner.get(owner)
        if known is not None:
            return known
        peek = self._settled
        try:
            decision = limiter.check(what, cost, peek=peek)
        except InvalidRequest as error:
            self.invalid = error
            raise
        if self._note(owner, limiter, decision, refusal, charged=not peek):
            self.refund()
        return decision

    async def adecide(
        self, owner: object, limiter: Limiter, what: FactsOrKey, cost: int = 1, refusal: Refusal = Refusal.FINAL
    ) -> Decision:
        """``decide`` for coroutines, which tasks of one request may call at the same time."""
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            known = self._by_owner.get(owner)
            if known is not None:
                return known
            peek = self._settled
            try:
                decision = await limiter.acheck(what, cost, peek=peek)
            except InvalidRequest as error:
                self.invalid = error
                raise
            if self._note(owner, limiter, decision, refusal, charged=not peek):
                await self.arefund()
            return decision

    async def settle(self) -> None:
        """Note that the request is refused, as a gate has told the application: its charges go back, and nothing more is charged."""
        if not self._settled:
            self._settled = True
            await self.arefund()

    def adopt(self, facts: Facts, by: IdentityResolver) -> None:
        """Go on with facts made by the settings of another door; the route, and what the application vouched for, stay."""
        kept: dict[str, Any] = {"route": self.facts.route}
        for name in Facts.__struct_fields__:
            value = getattr(self.facts, name)
            if value is not getattr(self._made, name):
                kept[name] = value
        self.facts = msgspec.structs.replace(facts, **kept)
        self._made, self.made_by = facts, by

    def is_first_wait(self, decision: Decision) -> bool:
        """Whether the request is still to be held for a decision. True once: gates that meet the same decision wait for it once."""
        if any(met is decision for met in self._waited_for):
            return False
        self._waited_for = (*self._waited_for, decision)
        return True

    def claim(self, owner: object, limit: Limit) -> None:
        """Note that ``limit`` is decided as ``owner``, a name.

        Raises ConfigurationError where another limit of that name says something else: only one of them would be decided.
        """
        first = self._claims.setdefault(owner, limit)
        if first is not limit and not first.says_the_same(limit):
            raise ConfigurationError(
                f"limits of one name on one request differ: {first!r} and {limit!r}; give each a name of its own"
            )

    def name_of(self, limit: Limit) -> str:
        """The rule's name of a limit in this request: its own, else ``limit``, ``limit-2`` … in the order met."""
        if limit.name is not None:
            return limit.name
        name = self._names.get(limit)
        if name is None:
            position = len(self._names) + 1
            name = self._names[limit] = DEFAULT_NAME if position == 1 else f"{DEFAULT_NAME}-{position}"
        return name

    def pathless(self, facts: Facts) -> Facts:
        """Facts for limits beside routes: the path plays no part in them, and without it a route's requests are planned alike."""
        known = self._pathless
        if known is None or known[0] is not facts:
            known = self._pathless = (facts, msgspec.structs.replace(facts, path=None))
        return known[1]

    def replace(self, owner: object, decision: Decision) -> Decision:
        """Put ``decision``, a refusal of the door itself, in the place of what was decided for ``owner``, and return it.

        The charges are still to be refunded.
        """
        allowed = self._by_owner[owner]
        limiter = next(limiter for limiter, charged in self._charged if charged is allowed)
        self._by_owner[owner] = self.decisions[self.decisions.index(allowed)] = decision
        self._merged = self.told = None
        self.refused = (limiter, decision)
        self._settled = True
        return decision

    def _note(self, owner: object, limiter: Limiter, decision: Decision, refusal: Refusal, *, charged: bool) -> bool:
        """Keep a decision; whether charges are to be given back because of it. ``charged``: it was more than a look."""
        self._by_owner[owner] = decision
        self.decisions.append(decision)
        self._merged = self.told = None
        if decision.allowed:
            if charged:
                self._charged.append((limiter, decision))
        elif refusal is Refusal.NOTED:
            self._noted.append(decision)
        else:
            self._settled = self._settled or refusal is Refusal.FINAL
            if self.refused is None:
                self.refused = (limiter, decision)
        return self._settled and bool(self._charged)

    def _take_charges(self) -> list[tuple[Limiter, tuple[Receipt, ...]]]:
        charged, self._charged = self._charged, []
        # A fallback's charges are in counters of another kind, and one burst of them per outage is allowed for.
        due = [(limiter, decision.receipts()) for limiter, decision in charged if not decision.degraded]
        return [(limiter, receipts) for limiter, receipts in due if receipts]


def merge(decisions: Sequence[Decision]) -> Decision:
    """Several decisions about one request as one; the rules that refuse come first in what it says."""
    refusing = [decision for decision in decisions if not decision.allowed]
    told = refusing[0] if refusing else _tightest(decisions)
    summary = told.summary
    retry_us: int | None = 0
    for decision in refusing:
        wait_us = decision.retry_after_us
        retry_us = None if wait_us is None or retry_us is None else max(retry_us, wait_us)
    summary = Summary(
        outcome=Outcome.NEVER_FITS if summary.refusal == "rate" and retry_us is None else summary.outcome,
        decisive=summary.decisive,
        retry_after_us=retry_us,
        reset_after_us=(retry_us or 0) if refusing else summary.reset_after_us,
        delay_us=0 if refusing else max(decision.delay_us for decision in decisions),
        refusal=summary.refusal,
        verdicts=tuple(verdict for decision in decisions for verdict in decision.summary.verdicts),
    )
    return Decision(
        not refusing,
        Plan([], told.plan.tier, told.version),
        None,
        any(decision.degraded for decision in decisions),
        None,
        summary,
        tuple(result for decision in decisions for result in decision.results),
    )


def _tightest(decisions: Sequence[Decision]) -> Decision:
    described = [decision for decision in decisions if decision.decisive is not None]
    return min(described, key=lambda decision: decision.remaining or 0, default=decisions[0])
