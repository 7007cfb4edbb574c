"""What one rule says to a request, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from sluicegate.clock import US_PER_S
from sluicegate.limiter.compiled import CompiledRule, header_cost
from sluicegate.limiter.listed import Listed
from sluicegate.limiter.subject_table import Override
from sluicegate.rules.conditions import Seen
from sluicegate.rules.facts import Facts
from sluicegate.rules.match import EVERY_PATH
from sluicegate.rules.model import CostFrom, Mode, OnMissing

__all__ = ["Explained", "explain_listed", "explain_rule"]


class Explained(NamedTuple):
    """One rule's part in a request.

    ``matched``: its conditions hold. ``reason``: why it does not apply, or what becomes of it; "" where it is charged.
    ``subject``, ``cost``: of its charge, None where none is made. ``quota``: the numbers of the tier as written. ``arm``: where the
    client stands in a rollout that tries this rule on a share of all clients; "" where none does. ``override`` multiplies the numbers
    for this client. An entry of a list stands in the place of a rule as ``block:ip`` and the like, its ``mode`` is the name of the list.
    """

    rule: str
    matched: bool
    reason: str
    tier: str | None
    subject: str | None = None
    quota: str | None = None
    cost: int | None = None
    mode: str = Mode.OFF.value
    arm: str = ""
    override: Override | None = None

    def overridden(self, rule: str, overrides: Sequence[Override]) -> Self:
        """With the first of the client's overrides that concerns the counter of this rule, by its name in the file."""
        if self.subject is not None:
            for override in overrides:
                if override.concerns(rule, self.subject):
                    return self._replace(override=override)
        return self


def explain_listed(listed: Listed, tier: str | None) -> Explained:
    """What the entry of a list says to a request."""
    what = "refused" if listed.blocked else "passes uncharged"
    source = f", put there by {listed.source}" if listed.source else ""
    end = "" if listed.left_us is None else f", for {-(-listed.left_us // US_PER_S)} s more"
    reason = f"{what}: {listed.value} is on the {listed.list} list{source}{end}"
    return Explained(listed.rule, True, reason, tier, mode=listed.list)


def explain_rule(
    compiled: CompiledRule, seen: Seen, facts: Facts, cost: int, pattern: str | None, reason: str | None
) -> Explained:
    """``reason`` is why the rule does not match, None where it does; ``pattern`` the one by which it does."""
    rule = compiled.rule
    explained = Explained(
        rule.name, reason is None, reason or "", seen.tier, quota=compiled.quotas[seen.tier].text, mode=rule.mode.value
    )
    if reason is not None:
        return explained
    if compiled.arm is not None and rule.trial is not None:
        explained = explained._replace(arm=compiled.arm.told(seen, pattern or EVERY_PATH, facts))
        if not compiled.arm.guard(seen, pattern or EVERY_PATH)(facts):
            return explained._replace(reason=f"not for this client in rollout {rule.trial.rollout}: {explained.arm}")
    if not compiled.counters[seen.tier]:
        return explained._replace(reason="unlimited for this tier")
    subject = compiled.subject_of(seen, pattern or EVERY_PATH)(facts)
    if subject is None:
        refused = "refused" if rule.per.on_missing is OnMissing.DENY else "skipped"
        return explained._replace(reason=f"{refused}: {' or '.join(rule.per.dimensions)} is not known")
    multiplier = header_cost(rule.cost, facts) if isinstance(rule.cost, CostFrom) else rule.cost
    return explained._replace(subject=subject, cost=cost * multiplier)
