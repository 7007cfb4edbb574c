"""What a decision was, and what each of its rules said, in the words of events."""

from __future__ import annotations

from sluicegate.algorithms.verdict import Outcome
from sluicegate.events import ALLOWED, DENIED, NEVER_FITS, SHADOW_DENIED, UNDECIDED, UNMATCHED
from sluicegate.limiter.cells import RequestKey, rule_of
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.degraded import FallbackAnswer

__all__ = ["outcomes_of", "request_of"]

_REFUSED = frozenset((Outcome.DENIED, Outcome.NEVER_FITS))


def request_of(decision: Decision) -> RequestKey:
    """What the request is counted as."""
    plan = decision.plan
    tier, version, degraded = plan.tier or "", plan.version, decision.degraded
    if plan.listed is not None:
        said = ALLOWED if decision.allowed else decision.outcome.value
        return RequestKey(plan.listed.rule, said, tier, version, degraded)
    if decision.allowed:
        said = UNMATCHED if decision.answer is None and not plan.unidentified else ALLOWED
        return RequestKey("", said, tier, version, degraded)
    answer = decision.answer
    if answer is None or plan.unidentified or type(answer) is FallbackAnswer:
        summary = decision.summary
        name = "" if summary.decisive is None else summary.decisive.rule
        return RequestKey(rule_of(name), summary.outcome.value, tier, version, degraded)
    name, said = "", DENIED
    for counter, _, cost in answer.refused():
        if counter.shadow:
            continue
        name = name or counter.name
        if cost > counter.spec.capacity:
            said = NEVER_FITS
    return RequestKey(rule_of(name), said, tier, version, degraded)


def outcomes_of(decision: Decision) -> tuple[tuple[str, str], ...]:
    """(name of the counter, what it said) for each rule's counters: the unidentified ones first, then one per charge."""
    plan, answer = decision.plan, decision.answer
    if plan.listed is not None:
        return ()
    if type(answer) is FallbackAnswer:
        results = decision.results
        return tuple([(one.rule, _said(one.outcome, shadow=one.shadow)) for one in results])
    unknown = [(counter.name, SHADOW_DENIED if counter.shadow else NEVER_FITS) for counter in plan.unidentified]
    if answer is None:
        return tuple(unknown)
    refused = {charge[0].name: charge for charge in answer.refused()}
    for counter, _, cost in plan.charges:
        charge = refused.get(counter.name)
        if charge is None:
            unknown.append((counter.name, ALLOWED))
        elif counter.shadow:
            unknown.append((counter.name, SHADOW_DENIED))
        else:
            unknown.append((counter.name, NEVER_FITS if cost > charge[0].spec.capacity else DENIED))
    return tuple(unknown)


def _said(outcome: Outcome, *, shadow: bool) -> str:
    if outcome in _REFUSED:
        return SHADOW_DENIED if shadow else outcome.value
    return UNDECIDED if outcome is Outcome.UNDECIDED else ALLOWED
