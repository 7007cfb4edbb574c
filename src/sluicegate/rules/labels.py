"""Labels: exact values that tell many rules apart, so that a request meets only the rules of its own values.

A set with one rule per tenant, host or descriptor would otherwise try every one of them on every request. Where many
rules ask for different values of one fact, each is filed under its value; a request looks up its own. A label only
narrows the search: the condition itself is still checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sluicegate.bounds import LABEL_VALUES_MIN
from sluicegate.rules.facts import Facts
from sluicegate.rules.model import Match

__all__ = ["Label", "Labels", "host_label"]

Label: TypeAlias = tuple[str, str]
"""A field (``host``, ``tenant``, ``descriptor.plan`` …) and its value."""

_Read: TypeAlias = Callable[[Facts], str | None]

_ATTRIBUTES: dict[str, _Read] = {
    "user": lambda facts: facts.user,
    "tenant": lambda facts: facts.tenant,
    "domain": lambda facts: facts.domain,
}


class Labels:
    """Chosen once for all rules of a set. ``fields``: how many facts are looked up per request; usually none."""

    __slots__ = ("_by_rule", "_tables", "fields")

    def __init__(self, matches: Sequence[Match], exact_hosts: Sequence[frozenset[str]]) -> None:
        options = [_options(match, hosts) for match, hosts in zip(matches, exact_hosts, strict=True)]
        values: dict[str, set[str]] = {}
        for option in options:
            for field, named in option.items():
                values.setdefault(field, set()).update(named)
        useful = {field: len(named) for field, named in values.items() if _is_useful(field, len(named))}
        self._by_rule = [_choose(option, useful) for option in options]
        chosen: dict[str, dict[str | None, Label]] = {}
        for label in (label for labels in self._by_rule for label in labels if label[0] != _HOST):
            chosen.setdefault(label[0], {})[label[1]] = label
        self._tables = [(_reader(field), table) for field, table in chosen.items()]
        self.fields = len(self._tables)

    def of_rule(self, rule_index: int) -> tuple[Label, ...]:
        """The labels a rule is filed under; it can only match a request with one of them. Empty: any request."""
        return self._by_rule[rule_index]

    def of(self, facts: Facts) -> tuple[Label, ...]:
        """The labels of a request that some rule is filed under (hosts apart)."""
        return tuple([label for read, table in self._tables if (label := table.get(read(facts))) is not None])


_HOST = "host"


def host_label(host: str) -> Label:
    """The label of a canonical host."""
    return (_HOST, host)


def _options(match: Match, hosts: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """The fields a rule could be filed under, with the values it asks for."""
    options = {_HOST: tuple(hosts), "user": match.user, "tenant": match.tenant, "domain": match.domain}
    for prefix, entries in (("header", match.headers), ("descriptor", match.descriptors)):
        for name, value in entries.items():
            if value is not None:
                options[f"{prefix}.{name.lower() if prefix == 'header' else name}"] = (value,)
    for entry in match.entries:
        if entry.value is not None and "*" not in entry.value:
            options[f"descriptor.{entry.key}"] = (entry.value,)
    return {field: values for field, values in options.items() if values}


def _is_useful(field: str, values: int) -> bool:
    """The host is known to the matcher anyway; another field costs every request a lookup and must save some."""
    return field == _HOST or values >= LABEL_VALUES_MIN


def _choose(option: dict[str, tuple[str, ...]], useful: dict[str, int]) -> tuple[Label, ...]:
    """The field with the most values leaves the fewest rules together."""
    field = max((field for field in option if field in useful), key=lambda field: useful[field], default=None)
    return () if field is None else tuple((field, value) for value in option[field])


def _reader(field: str) -> _Read:
    if field in _ATTRIBUTES:
        return _ATTRIBUTES[field]
    prefix, _, name = field.partition(".")
    if prefix == "header":
        return lambda facts: None if facts.headers is None else facts.headers.get(name)
    return lambda facts: None if facts.descriptors is None else facts.descriptors.get(name)
