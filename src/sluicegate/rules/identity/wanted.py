"""Which headers the rules look at: the others are not even decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluicegate.rules.model import CostFrom, Match, Mode, Rule

__all__ = ["headers_needed"]

_DIMENSION = "header."


def headers_needed(rules: Iterable[Rule]) -> frozenset[str]:
    """Lower-case names of the headers that a condition, a dimension or a cost of some rule reads."""
    return frozenset(name.lower() for rule in rules if rule.mode is not Mode.OFF for name in _of_rule(rule))


def _of_rule(rule: Rule) -> Iterator[str]:
    yield from _of_match(rule.match)
    for dimension in rule.per.dimensions:
        if dimension.startswith(_DIMENSION):
            yield dimension.removeprefix(_DIMENSION)
    if isinstance(rule.cost, CostFrom):
        yield rule.cost.header


def _of_match(match: Match | None) -> Iterator[str]:
    while match is not None:
        yield from match.headers
        match = match.negate
