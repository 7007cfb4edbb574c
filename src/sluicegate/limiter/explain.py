"""What one rule says to a request, in words."""

from __future__ import annotations

from typing import NamedTuple

from sluicegate.limiter.compiled import CompiledRule, header_cost
from sluicegate.rules.conditions import Seen
from sluicegate.rules.facts import Facts
from sluicegate.rules.match import EVERY_PATH
from sluicegate.rules.model import CostFrom, Mode, OnMissing

__all__ = ["Explained", "explain_rule"]


class Explained(NamedTuple):
    """One rule's part in a request.

    ``matched``: its conditions hold. ``reason``: why it does not apply, or what becomes of it; "" where it is charged.
    ``subject``, ``cost``: of its charge, None where none is made. ``quota``: the numbers of the tier as written. ``arm``: where the
    client stands in a rollout that tries this rule on a share of all clients; "" where none does.
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
