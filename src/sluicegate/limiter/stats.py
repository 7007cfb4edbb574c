"""What a limiter counts."""

from __future__ import annotations

from sluicegate.algorithms.verdict import Outcome
from sluicegate.bounds import REFUSAL_COUNTS_MAX
from sluicegate.limiter.decision import Decision

__all__ = ["LimiterStats"]

OTHER = "other"
"""The name under which rules are counted that no longer fit."""


class LimiterStats:
    """Plain integers, readable at any time. Peeks count as ``peeks`` only.

    ``allowed``: decisions that let the request proceed, the next two included. ``unmatched``: no rule applied. ``bypassed``:
    the limiter was switched off. ``refused``: refusals by (deciding rule, outcome). ``shadow_refused``: what shadow rules
    would have refused, by rule. ``degraded``: decisions made without the store; ``store_errors``: failed store calls.
    ``applies``: changes of rules. ``hit`` counts what it lets pass on its fast path in the store's ``decisions`` only.

    Counting takes no lock: on CPython up to 3.13 with its global lock no count is lost.
    """

    __slots__ = (
        "allowed",
        "applies",
        "bypassed",
        "degraded",
        "peeks",
        "refunds",
        "refused",
        "shadow_refused",
        "store_errors",
        "unmatched",
    )

    def __init__(self) -> None:
        self.allowed = 0
        self.unmatched = 0
        self.bypassed = 0
        self.degraded = 0
        self.peeks = 0
        self.refunds = 0
        self.store_errors = 0
        self.applies = 0
        self.refused: dict[tuple[str, Outcome], int] = {}
        self.shadow_refused: dict[str, int] = {}

    def count(self, decision: Decision) -> None:
        """Count a decision that is not a peek."""
        answer = decision.answer
        if decision.degraded:
            self.degraded += 1
        if decision.allowed:
            self.allowed += 1
            if answer is None:
                self.unmatched += 1
                return
            if answer.unanimous:
                return
        else:
            self.count_refusal(decision.rule or OTHER, decision.outcome)
        self._count_shadows(decision)

    def count_refusal(self, rule: str, outcome: Outcome) -> None:
        """Count a refusal that was described elsewhere."""
        key = (rule, outcome)
        if key not in self.refused and len(self.refused) >= REFUSAL_COUNTS_MAX:
            key = (OTHER, outcome)
        self.refused[key] = self.refused.get(key, 0) + 1

    @property
    def decisions(self) -> dict[tuple[str, str], int]:
        """Counts by (rule that refused, outcome), for metrics; the rule is "" where none refused. Peeks are not counted."""
        counts: dict[tuple[str, str], int] = {("", Outcome.ALLOWED.value): self.allowed}
        counts.update({(rule, outcome.value): count for (rule, outcome), count in self.refused.copy().items()})
        return counts

    def _count_shadows(self, decision: Decision) -> None:
        for result in decision.results:
            if result.shadow and result.outcome in {Outcome.DENIED, Outcome.NEVER_FITS}:
                name = result.rule
                if name not in self.shadow_refused and len(self.shadow_refused) >= REFUSAL_COUNTS_MAX:
                    name = OTHER
                self.shadow_refused[name] = self.shadow_refused.get(name, 0) + 1
