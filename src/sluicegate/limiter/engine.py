"""The engine: rules and facts in, charges out; a store's answer in, a decision out. No I/O, and no clock but that of the lists.

    plan(facts, cost)        pure: which rules apply, whose counters, what cost
    store.decide_one(...)    the caller's: one atomic call
    conclude(plan, answer)   pure: the decision

Both halves are on every request, so what does not depend on the client is worked out once per request line (method, path,
host, tier) and remembered: a list of steps, one per counter, each a counter and the function that gives its subject.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, get_type_hints

from msgspec.structs import replace

from sluicegate.bounds import MATCH_MEMO_CHARS_MAX, MATCH_MEMO_MAX
from sluicegate.clock import SystemClock
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.cells import Cell
from sluicegate.limiter.compiled import CompiledRule, Step
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.explain import Explained, explain_listed, explain_rule
from sluicegate.limiter.known import Known
from sluicegate.limiter.plan import Plan, check_cost
from sluicegate.limiter.subjects import Subjects
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.config import IdentityConfig
from sluicegate.rules.labels import Label
from sluicegate.rules.match import Matcher, in_order, see
from sluicegate.rules.model import Mode, Penalty, Rule, RuleSet
from sluicegate.stores.base import Answer, Charge, Counter

__all__ = ["Engine", "Steps"]

_ONE: Final = 1
_RequestLine = tuple[str | None, str | None, str | None, str | None, tuple[Label, ...]]


CellOf: TypeAlias = Callable[[Sequence[Counter], str | None, int], Cell | None]
"""What decisions are counted in whose charges are to these counters, by tier and version."""


class Steps(tuple[Step, ...]):  # noqa: SLOT001 -- a tuple has no room for the cell in slots
    """The steps of a request line. ``cell``: what its decisions are counted in where every step charges one token and all pass."""

    cell: Cell | None = None


class Engine:
    """A compiled rule set. Immutable but for its memos, ``unknown_tiers`` and ``matched``; safe from any thread.

    ``known``: lists and subjects in which requests are looked up; None: none. ``penalties``: by the name of a counter, its rule and penalty.
    ``namespace`` keeps services that share a store apart. ``unknown_tiers`` counts requests with a tier the
    rule set does not name (they count as the default tier); under threads it may miss a few. ``order``: names of counters, each with
    its place in order of evaluation. ``matched`` counts the requests that each rule on trial applies to; peeks are not counted.
    Raises ConfigurationError for a rule without a quota for some tier.
    """

    __slots__ = (
        "_cell_of",
        "_compiled",
        "_default_tier",
        "_known",
        "_labelled",
        "_labels_of",
        "_matcher",
        "_memo",
        "_rules",
        "_subject_tiers",
        "_subjects",
        "_tier_names",
        "_tiered",
        "_trials",
        "matched",
        "namespace",
        "order",
        "penalties",
        "ruleset",
        "unknown_tiers",
        "version",
    )

    def __init__(
        self,
        ruleset: RuleSet,
        namespace: str = "default",
        matched: dict[str, int] | None = None,
        known: Known | None = None,
    ) -> None:
        self.ruleset = ruleset
        self._known = Known(SystemClock()) if known is None else known
        self.version = ruleset.version
        self.namespace = namespace
        self._cell_of: CellOf | None = None
        self.unknown_tiers = 0
        self.matched: dict[str, int] = {} if matched is None else matched
        tiers = ruleset.tiers
        self._default_tier = tiers.default
        self._tier_names = frozenset(name for name in (*tiers.names, tiers.default) if name is not None)
        self._tiered = bool(self._tier_names)
        self._subject_tiers = dict(ruleset.subjects)
        identity = ruleset.identity
        prefixes = (identity.ipv4_prefix, identity.ipv6_prefix) if isinstance(identity, IdentityConfig) else ()
        self._subjects = Subjects(*prefixes)
        all_tiers = (None, *sorted(self._tier_names))
        rules = [rule for rule in in_order(ruleset.rules) if rule.mode is not Mode.OFF]
        self._compiled = [
            CompiledRule(rule, all_tiers, tiers.default, namespace, self._subjects, self.matched) for rule in rules
        ]
        self._trials = any(rule.trial is not None for rule in rules)
        self._matcher = Matcher(rules, self._subjects.ip_key)
        self._rules = {
            counter.name: compiled.rule
            for compiled in self._compiled
            for counters in compiled.counters.values()
            for counter in counters
        }
        self.penalties: Mapping[str, tuple[str, Penalty]] = {
            name: (rule.name_in_file, rule.penalty) for name, rule in self._rules.items() if rule.penalty is not None
        }
        self.order = {name: place for place, name in enumerate(self._rules)}
        self._labelled = self._matcher.labelled
        self._labels_of = self._matcher.labels_of
        self._memo: dict[_RequestLine, Steps] = {}

    def plan(self, facts: Facts, cost: int = 1, *, peek: bool = False, by_rules: bool = False) -> Plan:
        """The charges of one request. ``cost`` multiplies the cost of every rule; 0 is for peeks only.

        ``by_rules``: whatever the lists and the overrides of subjects say.
        Raises InvalidRequest naming the field for a bad cost, a path that is too long, an address that is none and a fact
        of the wrong type; nothing is ever charged then.
        """
        if cost is not _ONE:
            cost = check_cost(cost, least=0 if peek else 1)
        if self._known.active and not by_rules:
            return self._plan_known(facts, cost, peek=peek)
        charges: list[Charge] = []
        unidentified: tuple[Counter, ...] = ()
        try:
            tier = None
            if self._tiered:
                tier = facts.tier
                if tier not in self._tier_names:
                    tier = self._other_tier(facts)
            labels = self._labels_of(facts) if self._labelled else ()
            steps = self._memo.get((facts.method, facts.path, facts.host, tier, labels))
            if steps is None:
                steps = self._match(facts.method, facts.path, facts.host, tier, labels)
            for ready, counter, subject_of, charge in steps:
                if ready is not None and cost is _ONE:
                    charges.append(ready)
                elif charge is not None:
                    unidentified += charge(facts, cost, charges)
                else:
                    subject = subject_of(facts)
                    if subject is not None:
                        charges.append((counter, subject, cost))
        except (TypeError, AttributeError):
            _check_types(facts)
            raise
        if peek and self._trials:
            self._unmatch(charges, unidentified)
        if unidentified:
            return _unidentified(Plan(charges, tier, self.version, unidentified, None, cost, facts, True))
        if cost is not _ONE:
            return Plan(charges, tier, self.version, (), None, cost, facts, True)
        if self._cell_of is not None:
            # A cell is for requests that are charged by every step.
            cell = steps.cell if len(charges) == len(steps) else None
            return Plan(charges, tier, self.version, (), None, cost, facts, False, cell)
        return Plan(charges, tier, self.version)

    def conclude(
        self, plan: Plan, answer: Answer | None, *, degraded: bool = False, decision_id: str | None = None
    ) -> Decision:
        """The decision. ``answer`` is the store's for ``plan.charges``, or None where there are none."""
        if answer is None:
            return Decision(not plan.refused, plan, None, degraded, decision_id)
        return Decision(answer.admitted, plan, answer, degraded, decision_id)

    def record(self, cell_of: CellOf | None) -> None:
        """Plans are to hold their facts and, where it is known beforehand, what their decisions are counted in; None: neither."""
        self._cell_of = cell_of
        # Another one, so that a match that goes on meanwhile fills what nobody reads.
        self._memo = {}

    @property
    def compiled(self) -> Sequence[CompiledRule]:
        """The rules that are not off, in order of evaluation."""
        return self._compiled

    def rule_of(self, counter_name: str) -> Rule:
        """The rule a counter belongs to: ``api`` for ``api`` and ``api#2``. Raises KeyError for an unknown one."""
        return self._rules[counter_name]

    def explain(self, facts: Facts, cost: int = 1) -> list[Explained]:
        """What every rule of the set says to these facts, in order of evaluation. Charges nothing; slow.

        Where the request is on a list, that comes first: it decides, and the rest is what the rules would say.
        """
        plan = self.plan(facts, check_cost(cost), peek=True, by_rules=True)
        listed = self._known.lists.find(facts)
        overrides = self._known.subjects.overrides_of(facts)
        seen = see(facts.method, facts.path, facts.host, plan.tier, self._labels_of(facts))
        indexes = {compiled.rule.name: index for index, compiled in enumerate(self._compiled)}
        patterns = {candidate.rule_index: candidate.pattern for candidate in self._matcher.candidates(seen)}
        explained = [] if listed is None else [explain_listed(listed, plan.tier)]
        for rule in in_order(self.ruleset.rules):
            index = indexes.get(rule.name)
            if index is None:
                explained.append(Explained(rule.name, False, "its mode is off", plan.tier))
                continue
            reason = self._matcher.reason(index, seen, facts)
            told = explain_rule(self._compiled[index], seen, facts, cost, patterns.get(index), reason)
            explained.append(told.overridden(rule.name_in_file, overrides))
        return explained

    def _plan_known(self, facts: Facts, cost: int, *, peek: bool) -> Plan:
        """``plan`` where there are entries of lists or overrides, or requests are drawn."""
        lists, sampler = self._known.lists, self._known.sampler
        try:
            listed = lists.find(facts) if lists.active else None
        except (TypeError, AttributeError):
            _check_types(facts)
            raise
        if listed is not None:
            if sampler.on and not peek:
                sampler.saw(facts, cost)
            return Plan([], None, self.version, (), listed, cost, facts, True)
        plan = self.plan(facts, cost, peek=peek, by_rules=True)
        if sampler.on and not peek:
            sampler.saw(facts, cost)
        subjects = self._known.subjects
        if not (subjects.overriding and plan.charges):
            return plan
        overrides = subjects.overrides_of(facts)
        if not overrides:
            return plan
        scale, rules = subjects.scale, self._rules
        charges = [scale(charge, rules[charge[0].name].name_in_file, overrides) for charge in plan.charges]
        return Plan(charges, plan.tier, plan.version, plan.unidentified, None, cost, facts, True)

    def _unmatch(self, charges: list[Charge], unidentified: tuple[Counter, ...]) -> None:
        """Take back what planning has counted for a request that is not decided."""
        rules = (self._rules[counter.name] for counter in (*unidentified, *(charge[0] for charge in charges)))
        for name in {rule.name for rule in rules if rule.trial is not None}:
            self.matched[name] -= 1

    def _match(
        self, method: str | None, path: str | None, host: str | None, tier: str | None, labels: tuple[Label, ...]
    ) -> Steps:
        """The steps of a request line that is not in the memo."""
        if path is not None and "?" in path:
            # Queries differ per request; they must neither miss each time nor fill the memo.
            path = path[: path.index("?")]
            known = self._memo.get((method, path, host, tier, labels))
            if known is not None:
                return known
        seen = see(method, path, host, tier, labels)
        steps: list[Step] = []
        for candidate in self._matcher.candidates(seen):
            steps += self._compiled[candidate.rule_index].steps(seen, candidate)
        found = Steps(steps)
        cell_of = self._cell_of
        if cell_of is not None and all(step[3] is None for step in steps):
            found.cell = cell_of([step[1] for step in steps], tier, self.version)
        if len(path or "") + len(host or "") + len(method or "") <= MATCH_MEMO_CHARS_MAX:
            if len(self._memo) >= MATCH_MEMO_MAX:
                self._memo.clear()
            self._memo[method, path, host, tier, labels] = found
        return found

    def _other_tier(self, facts: Facts) -> str | None:
        """The tier of a request whose ``tier`` fact is absent or not named by the rule set."""
        tier = facts.tier
        if tier is None and self._known.subjects.active:
            tier = self._known.subjects.tier_of(facts)
        if tier is None and self._subject_tiers:
            known = self._subject_tiers
            for dimension, value in (("api_key", facts.api_key), ("user", facts.user), ("tenant", facts.tenant)):
                if value is not None and (tier := known.get(f"{dimension}:{value}")) is not None:
                    break
        if tier is None:
            return self._default_tier
        if tier in self._tier_names:
            return tier
        self.unknown_tiers += 1
        return self._default_tier


def _unidentified(plan: Plan) -> Plan:
    """Nothing is charged for a request that is refused because a dimension is not known."""
    return replace(plan, charges=[]) if plan.refused else plan


_TEXT_FIELDS = tuple(name for name, hint in get_type_hints(Facts).items() if hint == (str | None))
_MAP_FIELDS = tuple(name for name in get_type_hints(Facts) if name not in _TEXT_FIELDS)


def _check_types(facts: Facts) -> None:
    """Raise InvalidRequest for the first fact of the wrong type, if there is one."""
    if not isinstance(facts, Facts):
        raise InvalidRequest("facts", f"must be Facts, got {type(facts).__name__}")
    for name in _TEXT_FIELDS:
        value: object = getattr(facts, name)
        if not (value is None or isinstance(value, str)):
            raise InvalidRequest(f"facts.{name}", f"must be text, got {type(value).__name__}")
    for name in _MAP_FIELDS:
        value = getattr(facts, name)
        if value is None:
            continue
        if not isinstance(value, dict) or not all(isinstance(text, str) for pair in value.items() for text in pair):
            raise InvalidRequest(f"facts.{name}", "must map text to text")
