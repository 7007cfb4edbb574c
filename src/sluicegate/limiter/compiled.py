"""Rules made ready: counters per tier, subject functions, and the steps that turn facts into charges."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from sluicegate.algorithms.precision import precision_of
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.arms import ArmGuards
from sluicegate.limiter.subjects import STATIC_DIMENSIONS, SubjectOf, Subjects
from sluicegate.rules.conditions import Guard, Seen
from sluicegate.rules.facts import Facts
from sluicegate.rules.match import EVERY_PATH, Candidate
from sluicegate.rules.model import CostFrom, Mode, OnMissing, Quota, Rule
from sluicegate.stores.base import Charge, Counter
from sluicegate.stores.keys import EVERYBODY, counter_prefix

__all__ = ["CompiledRule", "Step", "header_cost"]

ChargeStep: TypeAlias = Callable[[Facts, int, list[Charge]], tuple[Counter, ...]]
"""Adds charges; returns the counters of a rule that refuses because a dimension is not known, else ()."""

Step: TypeAlias = tuple[Charge | None, Counter, SubjectOf, ChargeStep | None]
"""The charge at cost 1 where it is the same for every request. Else a counter and its subject, which is all of the usual
charge; else the function that charges it and its siblings."""

_NOTHING_SEEN = Seen(None, None, (), None, None)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


class CompiledRule:
    """One rule that is not off. ``quotas`` and ``counters`` hold what each tier gets; an unlimited quota has no counters.

    ``matched``: where requests are counted that a rule on trial applies to, by its name. ``arm``: tells the share of clients that the
    rule is for; None: it is for all.
    """

    __slots__ = ("_matched", "_ready", "_simple", "_subject_of", "_subjects", "arm", "counters", "quotas", "rule")

    def __init__(
        self,
        rule: Rule,
        tiers: Sequence[str | None],
        default: str | None,
        namespace: str,
        subjects: Subjects,
        matched: dict[str, int],
    ) -> None:
        self.rule = rule
        self.quotas: Mapping[str | None, Quota] = {tier: _quota_of(rule, tier, default) for tier in tiers}
        self.counters: Mapping[str | None, tuple[Counter, ...]] = {
            tier: _counters(rule, quota, namespace) for tier, quota in self.quotas.items()
        }
        self._subjects = subjects
        trial = rule.trial
        self._matched = None if trial is None else matched
        if trial is not None:
            matched.setdefault(rule.name, 0)
        self.arm = None if trial is None or trial.arm is None else ArmGuards(trial.arm, subjects)
        dynamic = STATIC_DIMENSIONS.isdisjoint(rule.per.dimensions) and (self.arm is None or self.arm.dynamic)
        self._subject_of = subjects.subject_of(rule.per, _NOTHING_SEEN, EVERY_PATH) if dynamic else None
        self._simple = rule.cost == 1 and rule.per.on_missing is not OnMissing.DENY and trial is None
        # The steps that do not depend on the request line; most rules have no others.
        usual = self._guard(_NOTHING_SEEN, EVERY_PATH, None) if self._subject_of else None
        ready = {tier: self._steps(tier, self._subject_of, usual) for tier in tiers} if self._subject_of else {}
        self._ready: Mapping[str | None, Sequence[Step]] = ready

    def subject_of(self, seen: Seen, pattern: str) -> SubjectOf:
        """The subject function for requests seen this way."""
        return self._subject_of or self._subjects.subject_of(self.rule.per, seen, pattern)

    def steps(self, seen: Seen, candidate: Candidate) -> Sequence[Step]:
        """What to do for a request seen this way; nothing where the tier is unlimited."""
        if self._ready and candidate.guard is None:
            return self._ready[seen.tier]
        guard = self._guard(seen, candidate.pattern, candidate.guard)
        return self._steps(seen.tier, self.subject_of(seen, candidate.pattern), guard)

    def _guard(self, seen: Seen, pattern: str, conditions: Guard | None) -> Guard | None:
        """The conditions of the rule and of its arm."""
        if self.arm is None:
            return conditions
        arm = self.arm.guard(seen, pattern)
        return arm if conditions is None else lambda facts: conditions(facts) and arm(facts)

    def _steps(self, tier: str | None, subject_of: SubjectOf, guard: Guard | None) -> Sequence[Step]:
        counters = self.counters[tier]
        if not counters:
            return ()
        if self._simple and guard is None:
            everybody = self.rule.per.dimensions == ()
            return [((counter, EVERYBODY, 1) if everybody else None, counter, subject_of, None) for counter in counters]
        charge = _charge_step(self.rule, counters, subject_of, guard)
        if self._matched is not None:
            charge = _counted_step(charge, self.rule.name, self._matched)
        return [(None, counters[0], subject_of, charge)]


def header_cost(cost: CostFrom, facts: Facts) -> int:
    """The multiplier a header gives: ``default`` where it is absent, ``max`` where it is no whole number >= 1.

    A number outside ``min..max`` takes the nearer end.
    """
    text = None if facts.headers is None else facts.headers.get(cost.header.lower())
    if text is None:
        return cost.default
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        return cost.max
    return min(max(int(text), cost.min), cost.max)


def _charge_step(rule: Rule, counters: tuple[Counter, ...], subject_of: SubjectOf, guard: Guard | None) -> ChargeStep:
    unidentified = counters if rule.per.on_missing is OnMissing.DENY else ()
    fixed = rule.cost if isinstance(rule.cost, int) else 1
    read_from = rule.cost if isinstance(rule.cost, CostFrom) else None

    def charge(facts: Facts, cost: int, charges: list[Charge]) -> tuple[Counter, ...]:
        if guard is not None and not guard(facts):
            return ()
        subject = subject_of(facts)
        if subject is None:
            return unidentified
        total = cost * (fixed if read_from is None else header_cost(read_from, facts))
        for counter in counters:
            charges.append((counter, subject, total))
        return ()

    return charge


def _counted_step(step: ChargeStep, name: str, matched: dict[str, int]) -> ChargeStep:
    """The step of a rule on trial, which counts the requests it applies to."""

    def charge(facts: Facts, cost: int, charges: list[Charge]) -> tuple[Counter, ...]:
        before = len(charges)
        unidentified = step(facts, cost, charges)
        if unidentified or len(charges) > before:
            matched[name] += 1
        return unidentified

    return charge


def _quota_of(rule: Rule, tier: str | None, default: str | None) -> Quota:
    """The quota of a tier: its own, else the one for all that are not named, else the default tier's."""
    for key in (tier, None, default):
        quota = rule.quotas.get(key)
        if quota is not None:
            return quota
    raise ConfigurationError(f"rule {rule.name!r}: quota: no quota for the tier {tier!r} and none for the default tier")


def _counters(rule: Rule, quota: Quota, namespace: str) -> tuple[Counter, ...]:
    several = len(quota.specs) > 1
    kept_by, generation = (rule.name, 0) if rule.trial is None else (rule.trial.rule, rule.trial.generation)
    counters = []
    for number, spec in enumerate(quota.specs, start=1):
        part = f"#{number}" if several else ""
        prefix = counter_prefix(namespace, kept_by + part, spec.algorithm, spec.shape, generation)
        precision = precision_of(rule.precision, spec, denied_counts=rule.denied_counts)
        shadow = rule.mode is Mode.SHADOW
        counters.append(Counter(rule.name + part, spec, prefix, shadow, rule.denied_counts, rule.on_change, precision))
    return tuple(counters)
