"""A limiter without a rules file: one quota, and a key that says whose."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from sluicegate.algorithms.precision import precision_of
from sluicegate.bounds import COUNTER_MEMO_MAX, KEY_CHARS_MAX, SUBJECT_CHARS_MAX
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter.cells import Cell
from sluicegate.limiter.plan import Plan, check_cost
from sluicegate.rules.model import FailurePolicy, Match, Per, Quota, Rule, RuleSet, Scope
from sluicegate.rules.quota import QuotaError, parse_quota
from sluicegate.rules.read_rule import NAME, name_problem
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix, subject_of

__all__ = ["KEY_DIMENSION", "KeyedPlanner", "quota_rules", "subject_of_key"]

KEY_DIMENSION = "attrs.key"
"""The dimension of ``per`` under which the key of a quota limiter appears in its rule set."""

_ONE: Final = 1
"""A cost that needs no check: small numbers are one object each, so comparing by identity is enough, and True is another."""


def quota_rules(
    quota: str, *, algorithm: str, name: str, version: int, on_store_failure: str = FailurePolicy.LOCAL.value
) -> RuleSet:
    """The rule set that a quota limiter stands for: one rule, one counter per key.

    Raises ConfigurationError naming what cannot be read.
    """
    _check_name(name)
    try:
        parsed: Quota = parse_quota(quota, algorithm=algorithm)
    except QuotaError as error:
        raise ConfigurationError(f"quota: {error}") from error
    try:
        policy = FailurePolicy(on_store_failure)
    except ValueError:
        names = ", ".join(FailurePolicy)
        raise ConfigurationError(f"on_store_failure: want one of {names}, got {on_store_failure!r}") from None
    rule = Rule(
        name=name,
        scope=Scope.IDENTITY,
        match=Match(),
        per=Per((KEY_DIMENSION,)),
        quotas=MappingProxyType({None: parsed}),
        algorithm=algorithm,
        on_store_failure=policy,
    )
    return RuleSet(rules=(rule,), version=version, source="quota")


def subject_of_key(key: object) -> str:
    """The subject of a caller's key; raises InvalidRequest("key") for what is not a key."""
    if not isinstance(key, str):
        raise InvalidRequest("key", f"this limiter was made from a quota: want a str, got {type(key).__name__}")
    if not key:
        raise InvalidRequest("key", "must not be empty: an empty key would be shared by everybody who has none")
    if len(key) > KEY_CHARS_MAX:
        raise InvalidRequest("key", f"has {len(key)} characters, at most {KEY_CHARS_MAX} are allowed")
    return subject_of(((KEY_DIMENSION, key),))


class KeyedPlanner:
    """Plans for keys: the counterpart of an engine's ``plan`` for facts. The rule set has exactly one rule."""

    __slots__ = ("_subjects", "cell", "counters", "version")

    def __init__(self, ruleset: RuleSet, namespace: str) -> None:
        (rule,) = ruleset.rules
        specs = rule.quotas[None].specs
        self.version = ruleset.version
        self.counters = tuple(
            Counter(
                name,
                spec,
                counter_prefix(namespace, name, spec.algorithm, spec.shape),
                on_change=rule.on_change,
                precision=precision_of(rule.precision, spec),
            )
            for name, spec in zip(_names(rule.name, len(specs)), specs, strict=True)
        )
        self._subjects: dict[str, str] = {}
        self.cell: Cell | None = None
        """What decisions are counted in where they are recorded."""

    def plan(self, key: object, cost: int, *, peek: bool = False) -> Plan:
        """The charges of one call with this key."""
        if cost is not _ONE:
            cost = check_cost(cost, least=0 if peek else 1)
        subject = self._subjects.get(key) if isinstance(key, str) else None
        if subject is None:
            subject = subject_of_key(key)
            if len(subject) <= SUBJECT_CHARS_MAX:
                if len(self._subjects) >= COUNTER_MEMO_MAX:
                    self._subjects.clear()
                self._subjects[str(key)] = subject
        counters, cell = self.counters, self.cell
        if cost is not _ONE:
            charges = [(counter, subject, cost) for counter in counters]
            return Plan(charges, None, self.version, (), None, cost, None, True)
        if len(counters) == 1:
            # A quota of one part is the usual case; a comprehension is a call of its own.
            if cell is None:
                return Plan([(counters[0], subject, 1)], None, self.version)
            return Plan([(counters[0], subject, 1)], None, self.version, (), None, 1, None, False, cell)
        charges = [(counter, subject, 1) for counter in counters]
        return Plan(charges, None, self.version, (), None, 1, None, False, cell)


def _check_name(name: object) -> None:
    """A rule's name appears in headers, metrics and keys, so it is held to the same characters as in a file."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ConfigurationError(f"name: {name_problem(str(name))}")


def _names(rule: str, parts: int) -> list[str]:
    return [rule] if parts == 1 else [f"{rule}#{number}" for number in range(1, parts + 1)]
