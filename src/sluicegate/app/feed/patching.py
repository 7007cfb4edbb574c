"""A version of the rules read as what differs from one that was read before.

A change of one rule of 5,000 would otherwise cost every node what reading all of them costs, while it decides requests. Checks that look at several rules
together are not made again: the rules service has made them before it kept the version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from sluicegate.rules.document import load_document
from sluicegate.rules.feed import RulesDocument
from sluicegate.rules.model import Rule, RuleSet
from sluicegate.rules.problems import RulesInvalid

__all__ = ["Read", "read"]

_RULES = "rules"


class Read(NamedTuple):
    """A document and what it means."""

    document: dict[str, Any]
    ruleset: RuleSet


def read(told: RulesDocument, source: str, before: Read | None) -> Read:
    """The rules of a version; raises RulesInvalid with every problem. ``before``: one that was read, of the same service; None: there is none."""
    ruleset = None if before is None or not told.digest else _patched(told, source, before)
    if ruleset is None:
        ruleset = load_document(told.document, source, told.version)
    return Read(told.document, ruleset)


def _patched(told: RulesDocument, source: str, before: Read) -> RuleSet | None:
    """None where it is not worth it, or the whole document has to say what is wrong with it."""
    document, ruleset = told.document, before.ruleset
    known, wanted = _by_name(before.document), _by_name(document)
    if known is None or wanted is None or _rest(document) != _rest(before.document):
        return None
    parsed = {rule.name: rule for rule in ruleset.rules}
    changed = [rule for name, rule in wanted.items() if known.get(name) != rule]
    if len(changed) > len(wanted) // 2 or parsed.keys() != known.keys():
        return None
    if changed:
        try:
            part = load_document({**_rest(document), _RULES: changed}, source, told.version)
        except RulesInvalid:
            return None
        parsed |= {rule.name: rule for rule in part.rules}
    rules: tuple[Rule, ...] = tuple(parsed[name] for name in wanted)
    return replace(ruleset, rules=rules, version=told.version, digest=told.digest, source=source)


def _by_name(document: dict[str, Any]) -> dict[str, Any] | None:
    """The rules by their names; None where they have none, or one twice."""
    rules = document.get(_RULES)
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, dict) for rule in rules):
        return None
    found = {rule.get("name"): rule for rule in rules}
    return found if len(found) == len(rules) and all(isinstance(name, str) for name in found) else None


def _rest(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != _RULES}
