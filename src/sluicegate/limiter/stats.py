"""What a limiter counts."""

from __future__ import annotations

from collections.abc import Sequence

from sluicegate.algorithms.verdict import DENIED, NEVER_FITS, Outcome
from sluicegate.bounds import REFUSAL_COUNTS_MAX
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.degraded import CLOSED, LOCAL, OPEN, STICKY, FallbackAnswer
from sluicegate.limiter.listed import Listed
from sluicegate.limiter.offenders import Offenders
from sluicegate.rules.feed import RuleCounts
from sluicegate.stores.base import Charge

__all__ = ["LimiterStats"]

OTHER = "other"
"""The name under which rules are counted that no longer fit."""

_REFUSALS = frozenset((DENIED, NEVER_FITS))


class LimiterStats:
    """Plain integers, readable at any time. Peeks count as ``peeks`` only.

    ``allowed``: decisions that let the request proceed, the next three included. ``unmatched``: no rule applied.
    ``allow_listed``: the client is on the allow list. ``block_listed``: refusals because it is on the block list; they are among
    ``refused``, as ``block:ip`` and the like. ``bypassed``: the limiter was switched off. ``refused``: refusals by (deciding rule, outcome). ``shadow_refused``:
    what shadow rules would have refused, by rule. ``store_errors``: requests whose store call failed. ``applies``:
    changes of rules. ``hit`` counts what it lets pass on its fast path in the store's ``decisions`` only.

    ``matched``: requests that a rule on trial applied to, by rule; other rules are not counted so, because that costs time.
    ``offenders``: the clients that were refused most, or would have been by shadow rules.

    ``degraded``: decisions made without the store, or with less than all of it. ``degraded_local``,
    ``degraded_sticky``, ``degraded_open``, ``degraded_closed``: the rules of these requests by what decided them.
    ``handovers``: decisions that passed both the store and a local counter after an outage; ``handover_refused``:
    refusals by that local counter; ``settled``: counters of the store that were charged what had been admitted
    without it.

    Counting takes no lock: on CPython up to 3.13 with its global lock no count is lost.
    """

    __slots__ = (
        "allow_listed",
        "allowed",
        "applies",
        "block_listed",
        "bypassed",
        "degraded",
        "degraded_closed",
        "degraded_local",
        "degraded_open",
        "degraded_sticky",
        "handover_refused",
        "handovers",
        "matched",
        "offenders",
        "peeks",
        "refunds",
        "refused",
        "settled",
        "shadow_refused",
        "store_errors",
        "unmatched",
    )

    def __init__(self) -> None:
        self.allowed = 0
        self.unmatched = 0
        self.allow_listed = 0
        self.block_listed = 0
        self.bypassed = 0
        self.degraded = 0
        self.degraded_local = 0
        self.degraded_sticky = 0
        self.degraded_open = 0
        self.degraded_closed = 0
        self.handovers = 0
        self.handover_refused = 0
        self.settled = 0
        self.peeks = 0
        self.refunds = 0
        self.store_errors = 0
        self.applies = 0
        self.refused: dict[tuple[str, Outcome], int] = {}
        self.shadow_refused: dict[str, int] = {}
        self.matched: dict[str, int] = {}
        self.offenders = Offenders()

    def count(self, decision: Decision) -> None:
        """Count a decision that is not a peek."""
        answer, unidentified = decision.answer, decision.plan.unidentified
        if decision.plan.listed is not None:
            self._count_listed(decision, decision.plan.listed)
            return
        if decision.degraded:
            self.degraded += 1
        if decision.allowed:
            self.allowed += 1
            if not unidentified:
                if answer is None:
                    self.unmatched += 1
                    return
                if answer.unanimous:
                    return
        if answer is not None and not unidentified and type(answer) is not FallbackAnswer:
            self._count_charges(answer.refused())
            return
        summary = decision.summary
        if not decision.allowed:
            self.count_refusal(OTHER if summary.decisive is None else summary.decisive.rule, summary.outcome)
        results = decision.results
        for result in results:
            if result.shadow and result.outcome in _REFUSALS:
                self._count_shadow(result.rule)
        first = None if decision.allowed or summary.decisive is None else summary.decisive.rule
        for (counter, subject, _), result in zip(decision.plan.charges, results[len(unidentified) :], strict=True):
            if result.outcome in _REFUSALS and (result.shadow or result.rule == first):
                self.offenders.refused(_rule_of(counter.name), subject)

    def _count_listed(self, decision: Decision, listed: Listed) -> None:
        if decision.allowed:
            self.allowed += 1
            self.allow_listed += 1
            return
        self.block_listed += 1
        self.count_refusal(listed.rule, decision.outcome)

    def count_policies(self, how: Sequence[str | None]) -> None:
        """Count what decided the rules of one degraded request."""
        for word in how:
            if word == LOCAL:
                self.degraded_local += 1
            elif word == OPEN:
                self.degraded_open += 1
            elif word == CLOSED:
                self.degraded_closed += 1
            elif word == STICKY:
                self.degraded_sticky += 1

    def count_refusal(self, rule: str, outcome: Outcome, times: int = 1) -> None:
        """Count refusals that were described elsewhere."""
        if not times:
            return
        key = (rule, outcome)
        try:
            self.refused[key] += times
        except KeyError:
            if len(self.refused) >= REFUSAL_COUNTS_MAX:
                key = (OTHER, outcome)
            # No call between reading and writing, where another thread could have its turn.
            self.refused.setdefault(key, 0)
            self.refused[key] += times

    @property
    def decisions(self) -> dict[tuple[str, str], int]:
        """Counts by (rule that refused, outcome), for metrics; the rule is "" where none refused. Peeks are not counted."""
        counts: dict[tuple[str, str], int] = {("", Outcome.ALLOWED.value): self.allowed}
        counts.update({(rule, outcome.value): count for (rule, outcome), count in self.refused.copy().items()})
        return counts

    def rule_counts(self) -> dict[str, RuleCounts]:
        """What each rule did since the start, its parts together; rules that did nothing to be counted are left out.

        ``matched`` is counted of rules on trial only, and is 0 of others. A request that several parts of one shadow rule would have
        refused counts once for each.
        """
        counts: dict[str, list[int]] = {}
        # A refusal by an entry of a list (``block:ip``) is no rule's; the names of rules hold no colon.
        refused = [(name, times) for (name, _), times in self.refused.copy().items() if ":" not in name]
        for place, column in enumerate((self.matched.copy().items(), refused, self.shadow_refused.copy().items())):
            for name, times in column:
                counts.setdefault(_rule_of(name), [0, 0, 0])[place] += times
        return {name: RuleCounts(*row) for name, row in counts.items() if any(row)}

    def _count_charges(self, refused: list[Charge]) -> None:
        """Count what a store refused; says the same as the decision's description, which most callers never ask for."""
        first: str | None = None
        outcome = DENIED
        for counter, subject, cost in refused:
            if counter.shadow:
                self._count_shadow(counter.name)
                self.offenders.refused(_rule_of(counter.name), subject)
                continue
            if first is None:
                first = counter.name
                self.offenders.refused(_rule_of(first), subject)
            if cost > counter.spec.capacity:
                outcome = NEVER_FITS
        if first is not None:
            self.count_refusal(first, outcome)

    def _count_shadow(self, rule: str) -> None:
        if rule not in self.shadow_refused and len(self.shadow_refused) >= REFUSAL_COUNTS_MAX:
            rule = OTHER
        self.shadow_refused.setdefault(rule, 0)
        self.shadow_refused[rule] += 1


def _rule_of(counter: str) -> str:
    """The rule of a counter: ``api`` for ``api`` and ``api#2``."""
    return counter.partition("#")[0]
