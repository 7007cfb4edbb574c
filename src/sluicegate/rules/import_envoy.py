"""From the configuration of envoyproxy/ratelimit to rules of the same meaning.

There each descriptor walks down a tree: at every level an entry takes the node of its key and value, else the first node of its key whose value holds
``*`` and fits, else the node of its key alone; a limit applies only where the walk ends with the last entry. Every node with a limit becomes
one rule here, with the whole walk as its ``match.entries``: a node that others go before leaves out their values, also for all
nodes below it. Entries whose value is open are what its counters tell apart.

Source: envoyproxy/ratelimit, README and src/config/config_impl.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml

from sluicegate.bounds import PER_DIMENSIONS_MAX
from sluicegate.rules.fields import Block, Place, kind_of, text_of
from sluicegate.rules.load import check_rules
from sluicegate.rules.notation import shown
from sluicegate.rules.problems import Problem, Problems
from sluicegate.rules.yaml_tree import Item, read_yaml

__all__ = ["Imported", "import_envoy_ratelimit"]

_UNITS: Final = {unit.upper(): unit for unit in ("second", "minute", "hour", "day", "week", "month", "year")}
_NODE: Final = (
    "key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
)  # fmt: skip
_LIMIT: Final = ("unit", "requests_per_unit", "unlimited", "name", "replaces")
_NAME_CHARS: Final = 64  # as read_rule.NAME has it, and room for a number
_UINT32_MAX: Final = 0xFFFF_FFFF
_UNSAFE: Final = re.compile(r"(?:[^A-Za-z0-9_.-]|-)+", re.ASCII)


class _Step(NamedTuple):
    """One node on the way: the key, its value as a rule writes it, what goes before it, and whether values share a counter."""

    key: str
    value: str | None
    excluded: tuple[str, ...]
    shared: bool


@dataclass
class Imported:
    """``text``: a rules file; "" where something cannot be said in rules. ``problems``: what cannot, or is malformed, as errors; as
    warnings what is left out or counted in another way."""

    text: str
    problems: tuple[Problem, ...]


@dataclass
class _Import:
    """The rules of all files so far."""

    denied_counts: bool
    rules: list[dict[str, Any]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    domains: set[str] = field(default_factory=set)

    def name_of(self, wanted: str) -> str:
        """A rule name near ``wanted`` that no other rule has."""
        base = _UNSAFE.sub("-", wanted).strip("-_.")[:_NAME_CHARS] or "limit"
        name, number = base, 1
        while name in self.names:
            number += 1
            name = f"{base[: _NAME_CHARS - 6]}-{number}"
        self.names.add(name)
        return name


def import_envoy_ratelimit(files: Sequence[tuple[str, bytes]], *, denied_counts: bool = False) -> Imported:
    """Rules for ``files``: (name, content), one domain each. ``denied_counts``: refused requests are charged, as there."""
    made = _Import(denied_counts)
    found: list[Problem] = []
    errors = 0
    for name, content in files:
        problems = Problems(name)
        root = read_yaml(content, problems)
        if root is not None:
            _read_domain(root, Place(problems), made)
        found += problems.result()
        errors += problems.errors
    if errors:
        return Imported("", tuple(found))
    text, fault = _text(made), None
    if not made.rules:
        fault = "holds no limit, so there are no rules"
    else:
        # What a rules file may hold is bounded: said now, and not when the server starts.
        ruleset, seen = check_rules(text, "the rules")
        if ruleset is None:
            fault = f"cannot be imported: {next(each for each in seen if each.severity == 'error')}"
    if fault is not None:
        found.append(Problem(files[0][0] if files else "", 0, None, None, fault))
    return Imported("" if fault else text, tuple(found))


def _text(made: _Import) -> str:
    lines = [
        "# Made from a configuration of envoyproxy/ratelimit. Names are keys of counters: keep them.",
        "version: 1",
        "rules:",
    ]
    for rule in made.rules:
        text = yaml.safe_dump([rule], sort_keys=False, default_flow_style=None, allow_unicode=True, width=160)
        lines += ["  " + line for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _read_domain(root: Item, place: Place, made: _Import) -> None:
    block = Block.of(root, place, ("domain", "descriptors"), "{domain: edge, descriptors: [...]}")
    if block is None:
        return
    domain = block.text("domain")
    if domain is None:
        if "domain" not in block:
            block.add("domain", "missing")
        return
    if domain in made.domains:
        block.add("domain", f"{shown(domain)} is in another file, too; put them together")
    made.domains.add(domain)
    if "descriptors" in block:
        _read_level(block, place, (), domain, made)


def _read_level(block: Block, place: Place, way: tuple[_Step, ...], domain: str, made: _Import) -> None:
    """The nodes of one level, which is a list in ``block``."""
    item = block.take("descriptors")
    if item is None:
        return
    if not isinstance(item.value, list):
        block.add("descriptors", f"expected a list, got {kind_of(item)}")
        return
    nodes = [
        (node, _value_of(node))
        for number, child in enumerate(item.value, 1)
        if (node := Block.of(child, place.child(f"descriptors[{number}]"), _NODE, "{key: path}")) is not None
    ]
    seen: set[tuple[str | None, str | None]] = set()
    for node, value in nodes:
        key = node.text("key")
        if key is None:
            if "key" not in node:
                node.add("key", "missing")
            continue
        if (key, value) in seen:
            node.add("key", f"{shown(key)} is here twice with this value")
        seen.add((key, value))
        if "*" in key:
            node.add("key", "cannot be imported: * in a key stands for other keys there, and a rule names its keys")
        if any(step.key == key for step in way):
            node.add(
                "key",
                f"cannot be imported: {shown(key)} is on the way here already, and a rule sees one value of a key",
            )
        before = tuple(_before(key, value, nodes))
        shared = node.boolean("share_threshold", default=False)
        if shared and "*" not in (value or ""):
            node.add("share_threshold", "is for values with *")
        here = (*way, _Step(key, value, before, shared))
        _read_limit(node, here, domain, made)
        if "descriptors" in node:
            _read_level(node, node.place, here, domain, made)


def _value_of(node: Block) -> str | None:
    item = node.items.get("value")
    if item is None or item.value in (None, ""):
        return None
    return text_of(item, node.place.child("value"), numbers=True)


def _before(key: str, value: str | None, nodes: Sequence[tuple[Block, str | None]]) -> Iterator[str]:
    """The values of this key's nodes that go before the one with ``value``: exact ones, then those with ``*`` in their order."""
    if value is not None and "*" not in value:
        return
    others = [other for node, other in nodes if other is not None and _key_of(node) == key]
    for other in dict.fromkeys(other for other in others if "*" not in other):
        if _can_meet(value, other):
            yield other
    for other in others:
        if other == value:
            return
        if "*" in other and _can_meet(value, other):
            yield other


def _can_meet(value: str | None, other: str) -> bool:
    """False where no text fits both, by their beginnings or their ends; None is every value."""
    if value is None:
        return True
    return all(
        one.startswith(two) or two.startswith(one)
        for one, two in (
            (value.partition("*")[0], other.partition("*")[0] if "*" in other else other),
            (value.rpartition("*")[2][::-1], (other.rpartition("*")[2] if "*" in other else other)[::-1]),
        )
    )


def _key_of(node: Block) -> object:
    item = node.items.get("key")
    return None if item is None else item.value


def _read_limit(node: Block, way: tuple[_Step, ...], domain: str, made: _Import) -> None:
    shadow = node.boolean("shadow_mode", default=False)
    if node.boolean("quota_mode", default=False) and "rate_limit" in node:
        node.add("quota_mode", "cannot be imported: a rule refuses by itself, never only together with all others")
    for name in ("detailed_metric", "value_to_metric", "metadata"):
        if name in node:
            node.warn(name, "is left out: metrics are by rule here")
    item = node.take("rate_limit")
    if item is None:
        if shadow:
            node.warn("shadow_mode", "does nothing without rate_limit")
        return
    limit = Block.of(item, node.place.child("rate_limit"), _LIMIT, "{unit: minute, requests_per_unit: 10}")
    quota = None if limit is None else _quota(limit)
    if limit is None or quota is None:
        return
    name = limit.text("name") or "-".join([domain, *(f"{s.key}-{s.value}" if s.value else s.key for s in way)])
    _add_rule(node, made.name_of(name), quota, way, domain, made, shadow=shadow)


def _quota(limit: Block) -> str | None:
    replaces = limit.take("replaces")
    if replaces is not None and replaces.value != []:
        limit.add("replaces", "cannot be imported: a rule applies whatever other rules do")
    if limit.boolean("unlimited", default=False):
        if "unit" in limit:
            limit.add("unit", "does not belong to an unlimited limit")
        if "requests_per_unit" in limit:
            limit.warn("requests_per_unit", "does nothing in an unlimited limit")
        return "unlimited"
    unit = _UNITS.get((limit.text("unit") or "").upper())
    if unit is None:
        limit.add("unit", f"must be one of {', '.join(_UNITS.values())}")
        return None
    count = limit.integer("requests_per_unit", default=0, least=0, most=_UINT32_MAX)
    if unit == "week":
        limit.warn("unit", "weeks begin on Monday here, and on Thursday there")
    return f"{count}/{unit}" if count else "0"


def _add_rule(
    node: Block, name: str, quota: str, way: tuple[_Step, ...], domain: str, made: _Import, *, shadow: bool
) -> None:
    entries: list[dict[str, Any]] = []
    for step in way:
        entry: dict[str, Any] = {"key": step.key}
        if step.value is not None:
            entry["value"] = step.value
        if step.excluded:
            entry["not"] = list(step.excluded)
        entries.append(entry)
    rule: dict[str, Any] = {"name": name, "match": {"domain": domain, "entries": entries}}
    open_keys = [step.key for step in way if (step.value is None or "*" in step.value) and not step.shared]
    if len(open_keys) > PER_DIMENSIONS_MAX:
        node.add(
            "key", f"cannot be imported: {len(open_keys)} entries tell counters apart; at most {PER_DIMENSIONS_MAX} may"
        )
    counts = quota not in ("unlimited", "0")
    if open_keys and quota != "unlimited":
        rule["per"] = [f"descriptor.{key}" for key in open_keys]
    rule["quota"] = quota
    if counts:
        rule["algorithm"] = "fixed_window"
        if made.denied_counts and not shadow:
            rule["denied_counts"] = True
    if shadow:
        rule["mode"] = "shadow"
    made.rules.append(rule)
