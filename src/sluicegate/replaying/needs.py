"""Which facts a rule set looks at: a replay reads no others from a line."""

from __future__ import annotations

from collections.abc import Iterator

from sluicegate.rules.model import CostFrom, Match, Mode, OnMissing, Rule, RuleSet

__all__ = ["facts_needed"]

_PLAIN = ("host", "tier", "tenant", "user", "ip", "domain")
_IDENTITIES = ("user", "api_key", "tenant")


def facts_needed(ruleset: RuleSet) -> dict[str, str]:
    """Facts by name (``method``, ``header.user-agent``, ``attrs.x``), each with a rule that looks at it."""
    needed: dict[str, str] = {}
    for rule in ruleset.rules:
        if rule.mode is Mode.OFF:
            continue
        names = list(_of_rule(rule))
        if "tier" in names and ruleset.subjects:
            names += _IDENTITIES
        for name in names:
            needed.setdefault(name, rule.name)
    return needed


def _of_rule(rule: Rule) -> Iterator[str]:
    yield from _of_match(rule.match)
    for dimension in rule.per.dimensions:
        if dimension == "endpoint":
            yield from ("method", "path", "route")
        else:
            yield dimension.lower() if dimension.startswith("header.") else dimension
    if rule.per.on_missing is OnMissing.IP:
        yield "ip"
    if isinstance(rule.cost, CostFrom):
        yield f"header.{rule.cost.header.lower()}"
    if len(rule.quotas) > 1:
        yield "tier"


def _of_match(match: Match | None) -> Iterator[str]:
    while match is not None:
        if match.methods:
            yield "method"
        if match.path:
            yield "path"
        yield from (name for name in _PLAIN if getattr(match, name))
        if match.authenticated is not None:
            yield from _IDENTITIES
        yield from (f"header.{name.lower()}" for name in match.headers)
        yield from (f"descriptor.{name}" for name in match.descriptors)
        yield from (f"descriptor.{entry.key}" for entry in match.entries)
        match = match.negate
