"""Everything of a limiter that follows from its rules: made once per rule set, swapped whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from sluicegate.clock import Clock
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter.engine import Engine
from sluicegate.limiter.keyed import KeyedPlanner, quota_rules
from sluicegate.limiter.known import Known
from sluicegate.limiter.plan import Plan
from sluicegate.limiter.recording import Recorder
from sluicegate.limiter.sets import SetPlanner
from sluicegate.limiter.shares import EVEN, Terms, terms_of
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity import IdentityResolver
from sluicegate.rules.model import RuleSet
from sluicegate.stores.base import Counter

__all__ = ["Live", "facts_of"]


class Live:
    """One rule set in service. Immutable, so whoever read it once works with rules that belong together.

    ``keyed`` is the planner of a quota limiter, else None. Raises ConfigurationError where the rules cannot be served.
    """

    __slots__ = ("engine", "keyed", "resolver", "ruleset", "sets", "version")

    def __init__(
        self,
        ruleset: RuleSet,
        *,
        namespace: str,
        clock: Clock,
        base_dir: Path | None,
        keyed: bool,
        matched: dict[str, int] | None = None,
        known: Known | None = None,
    ) -> None:
        self.ruleset = ruleset
        self.version = ruleset.version
        self.engine = Engine(ruleset, namespace, matched, known)
        self.resolver = IdentityResolver.for_rules(ruleset, clock=clock, base_dir=base_dir)
        self.keyed = KeyedPlanner(ruleset, namespace) if keyed else None
        self.sets: SetPlanner | None = None
        """Plans requests of several sets, where somebody has asked for that; it compiles the rules once more."""

    def record(self, recorder: Recorder | None) -> None:
        """Plans are to bring along what their decisions are counted in; None: nothing."""
        cell_of = None if recorder is None else recorder.cell_of
        self.engine.record(cell_of)
        if self.keyed is not None:
            self.keyed.cell = None if cell_of is None else cell_of(self.keyed.counters, None, self.keyed.version)

    def plan(self, facts_or_key: object, cost: int, *, peek: bool = False) -> Plan:
        """The charges of one request; raises InvalidRequest naming what cannot be decided."""
        if self.keyed is not None:
            return self.keyed.plan(facts_or_key, cost, peek=peek)
        facts = facts_or_key if isinstance(facts_or_key, Facts) else facts_of(facts_or_key)
        return self.engine.plan(facts, cost, peek=peek)

    def terms_of(self, counter: Counter) -> Terms:
        """What the counter's rule does without its store; counters of no rule are decided locally."""
        if self.keyed is not None and counter in self.keyed.counters:
            return terms_of(self.ruleset.rules[0])
        try:
            return terms_of(self.engine.rule_of(counter.name))
        except KeyError:
            return EVEN

    def next_ruleset(self, rules: RuleSet | str) -> RuleSet:
        """What ``apply`` puts in service: a rule set as it is, or a quota in the place of the one of a quota limiter."""
        if self.keyed is None:
            if isinstance(rules, str):
                raise ConfigurationError("apply: this limiter has rules, so it takes a RuleSet, not a quota")
            return rules
        if not isinstance(rules, str):
            raise ConfigurationError(
                "apply: this limiter was made from a quota, so it takes a quota such as '200/minute'"
            )
        rule = self.ruleset.rules[0]
        fresh = quota_rules(
            rules,
            algorithm=rule.algorithm,
            name=rule.name,
            version=self.version + 1,
            on_store_failure=rule.on_store_failure,
        )
        return replace(fresh, identity=self.ruleset.identity)


def facts_of(facts: object) -> Facts:
    """Facts from what a caller passed: Facts, or a mapping with the fields of Facts."""
    if isinstance(facts, Facts):
        return facts
    if isinstance(facts, str):
        raise InvalidRequest(
            "facts", "this limiter decides by rules: want Facts or a dict, got a str; a quota limiter takes keys"
        )
    if not isinstance(facts, dict):
        raise InvalidRequest("facts", f"want Facts or a dict, got {type(facts).__name__}")
    for name in facts:
        if name not in Facts.__struct_fields__:
            raise InvalidRequest(f"facts.{name}", f"unknown field; known are {', '.join(Facts.__struct_fields__)}")
    try:
        return msgspec.convert(facts, Facts)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InvalidRequest("facts" + path.rstrip("`"), message) from None
