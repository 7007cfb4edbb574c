"""Reads one rule."""

from __future__ import annotations

import re
from typing import Final

from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.spec import OnChange
from sluicegate.rules.check_precision import precision_warnings
from sluicegate.rules.fields import Block, Place, kind_of
from sluicegate.rules.model import CostFrom, FailurePolicy, Match, Mode, OnMissing, Per, Rule, Scope, Tiers
from sluicegate.rules.notation import shown
from sluicegate.rules.problems import Problems
from sluicegate.rules.read_actions import read_cost, read_penalty, read_respond
from sluicegate.rules.read_match import CLIENT_DIMENSIONS, client_dimensions, read_match, read_per
from sluicegate.rules.read_quotas import QUOTA_FIELDS, read_quotas
from sluicegate.rules.yaml_tree import Item

__all__ = ["NAME", "RULE_FIELDS", "name_problem", "name_suggestion", "read_rule"]

RULE_FIELDS: Final = (
    "name",
    "scope",
    "match",
    "per",
    "on_missing",
    *QUOTA_FIELDS,
    "cost",
    "mode",
    "on_store_failure",
    "fallback_start",
    "fallback_share",
    "precision",
    "denied_counts",
    "on_change",
    "respond",
    "penalty",
)

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""Names of rules and tiers. They stand in headers, counter keys and metric labels, so only safe ASCII is allowed."""

_DONE_TO: Final = {
    Precision.AUTO: "leased",
    Precision.LEASED: "leased",
    Precision.SPLIT: "split",
    Precision.ESTIMATED: "estimated",
}
"""What becomes of a counter, as an error message says it."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)


def name_problem(name: str) -> str:
    """Why a name is not allowed."""
    return f"{shown(name)} is not a name: 1 to 64 of A-Z a-z 0-9 _ . -, the first a letter or digit"


def name_suggestion(name: str) -> str | None:
    """An allowed name close to ``name``, if there is one."""
    safe = _UNSAFE.sub("-", name[:64]).strip("-_.")
    return safe if NAME.fullmatch(safe) and safe != name else None


def read_rule(item: Item, position: int, tiers: Tiers, problems: Problems) -> Rule | None:
    """The rule a list entry holds, as far as it can be read; None where it has no name or no quota.

    ``position`` counts from 1 and stands for the name of a rule that has none.
    """
    label = _label(item, position)
    place = Place(problems, label)
    if not isinstance(item.value, dict):
        place.add(item.line, f"expected a mapping such as {{name: api, quota: 100/minute}}, got {kind_of(item)}")
        return None
    rule = Block(item.value, place, RULE_FIELDS, item.line)
    name = _name(rule)
    match_item = rule.take("match")
    match = Match() if match_item is None else read_match(match_item, place.child("match"), tiers)
    per = read_per(rule)
    scope = _scope(rule, match, per)
    algorithm, quotas = read_quotas(rule, tiers)
    cost = read_cost(rule)
    denied_counts = rule.boolean("denied_counts", default=False)
    policy = rule.choice("on_store_failure", FailurePolicy, FailurePolicy.LOCAL)
    found = Rule(
        name=name or label,
        scope=scope,
        match=match,
        per=per,
        quotas=quotas,
        algorithm=algorithm,
        cost=cost,
        mode=rule.choice("mode", Mode, Mode.ENFORCE),
        on_store_failure=policy,
        precision=_precision(rule, algorithm, per, denied_counts=denied_counts),
        denied_counts=denied_counts,
        on_change=rule.choice("on_change", OnChange, OnChange.KEEP),
        respond=read_respond(rule),
        penalty=read_penalty(rule),
        fallback_start=_fallback(rule, "fallback_start", ["full", "empty"], policy),
        fallback_share=_fallback(rule, "fallback_share", ["even", "sticky"], policy),
        line=item.line,
    )
    _check_cost(rule, found)
    _check_penalty(rule, found)
    _check_precision(rule, found)
    return found if name is not None and quotas else None


def _label(item: Item, position: int) -> str:
    """How problems name the rule: its name where that is fit to print, else its place in the list."""
    name = item.value.get("name") if isinstance(item.value, dict) else None
    if name is not None and isinstance(name.value, str) and name.value.isprintable() and 0 < len(name.value) <= 64:
        return name.value
    return f"#{position}"


def _name(rule: Block) -> str | None:
    if "name" not in rule:
        rule.place.add(rule.line, "has no name")
        return None
    name = rule.text("name")
    if name is None:
        return None
    if not NAME.fullmatch(name):
        rule.add("name", name_problem(name), name_suggestion(name))
        return None
    return name


def _scope(rule: Block, match: Match, per: Per) -> Scope:
    """The scope as given, checked against ``per``; derived where absent."""
    clients = client_dimensions(per)
    if "scope" not in rule:
        if clients:
            return Scope.IDENTITY
        return Scope.GLOBAL if match == Match() else Scope.ENDPOINT
    scope = rule.choice("scope", Scope, Scope.IDENTITY if clients else Scope.GLOBAL)
    if scope is Scope.GLOBAL and clients:
        rule.add("scope", f"global means one counter for everybody, but per keeps one for each {clients[0]}")
    if scope is Scope.IDENTITY and not clients and ("per" not in rule or per.dimensions):
        rule.add("scope", "identity means one counter for each client, but per names nothing that tells clients apart")
    return scope


def _precision(rule: Block, algorithm: str, per: Per, *, denied_counts: bool) -> Precision:
    """The precision as given, where the rule can have it; derived where absent."""
    natural = Precision.AUTO if client_dimensions(per) else Precision.LEASED
    if algorithm == "leaky_bucket" or denied_counts:
        natural = Precision.EXACT
    precision = rule.choice("precision", Precision, natural)
    if precision is Precision.EXACT or "precision" not in rule:
        return precision
    done = _DONE_TO[precision]
    if algorithm == "leaky_bucket":
        rule.add("precision", f"a leaky_bucket is never {done}: its requests leave one after the other")
        return Precision.EXACT
    if denied_counts and precision is not Precision.SPLIT:
        rule.add(
            "precision",
            f"a rule with denied_counts is never {done}: each of its refusals has to be charged in the store",
        )
        return Precision.EXACT
    return precision


def _fallback(rule: Block, name: str, options: list[str], policy: FailurePolicy) -> str:
    if name in rule and policy is not FailurePolicy.LOCAL:
        rule.add(name, f"belongs to on_store_failure: local and does nothing for {policy}")
    return rule.word(name, options, options[0])


def _check_cost(rule: Block, found: Rule) -> None:
    """A cost above the capacity of a quota can never pass."""
    fixed = not isinstance(found.cost, CostFrom)
    most = found.cost.max if isinstance(found.cost, CostFrom) else found.cost
    least = found.cost.min if isinstance(found.cost, CostFrom) else found.cost
    for tier, quota in found.quotas.items():
        capacity = min((spec.capacity for spec in quota.specs), default=most)
        if capacity == 0 or most <= capacity or (tier is None and len(found.quotas) > 1):
            continue
        whose = "" if tier is None else f" of tier {shown(tier)}"
        if least > capacity:
            rule.add("cost", f"{least} is above the capacity{whose} ({capacity}), so nothing would ever pass")
        elif not fixed:
            rule.warn("cost", f"max {most} is above the capacity{whose} ({capacity}): such a request never passes")


def _check_penalty(rule: Block, found: Rule) -> None:
    """A penalty needs somebody whom a block list can name."""
    if found.penalty is None or found.per.on_missing is OnMissing.IP:
        return
    if not CLIENT_DIMENSIONS.intersection(found.per.dimensions):
        names = ", ".join(sorted(CLIENT_DIMENSIONS))
        rule.add("penalty", f"blocks clients, but per names none that a list can hold ({names})")


def _check_precision(rule: Block, found: Rule) -> None:
    """Said only where somebody asked for a precision: what a rule has by itself is right for it."""
    if "precision" in rule:
        for message in precision_warnings(found):
            rule.warn("precision", message)
