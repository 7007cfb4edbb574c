"""Random configurations of envoyproxy/ratelimit: what their tree decides, the rules that are made of them decide."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import yaml

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.import_envoy import import_envoy_ratelimit
from sluicegate.rules.load import load_rules

KEYS = ("a", "b", "c")
VALUES = ("x", "y", "xy", "x1", "x*", "*y", "*", "x*y", "", None)
ASKED = ("x", "y", "xy", "x1", "z", "xzy", "")
CONFIGURATIONS = 150
REQUESTS = 40

Node = dict[str, Any]
Entries = list[tuple[str, str]]


def random_level(dice: random.Random, above: tuple[str, ...] = ()) -> list[Node]:
    """Nodes of one level, each key and value once, with levels below them."""
    level: dict[tuple[str, str], Node] = {}
    for _ in range(dice.randint(1, 4)):
        key, value = dice.choice(KEYS), dice.choice(VALUES)
        if key in above or (key, value or "") in level:
            continue
        node: Node = {"key": key} if value is None else {"key": key, "value": value}
        if "*" in (value or "") and dice.random() < 0.3:
            node["share_threshold"] = True
        if dice.random() < 0.7:
            count = {"unit": dice.choice(("hour", "DAY", "Month")), "requests_per_unit": dice.randrange(4)}
            node["rate_limit"] = {"unlimited": True} if dice.random() < 0.1 else count
            node["shadow_mode"] = dice.random() < 0.1
        if len(above) < 2 and dice.random() < 0.5:
            node["descriptors"] = random_level(dice, (*above, key))
        level[key, value or ""] = node
    return list(level.values())


def next_node(level: list[Node], key: str, value: str) -> Node | None:
    """By the exact value, else the first pattern that fits, else by the key alone."""
    mine = [node for node in level if node["key"] == key]
    exact = [node for node in mine if value and node.get("value") == value]
    patterns = [node for node in mine if "*" in (node.get("value") or "") and fits(node["value"], value)]
    alone = [node for node in mine if not node.get("value")]
    return next(iter(exact + patterns + alone), None)


def fits(pattern: str, value: str) -> bool:
    """Whether a value is what a pattern describes."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), value) is not None


def walk(level: list[Node], entries: Entries) -> tuple[Node, tuple[tuple[str, str], ...]] | None:
    """The node whose limit applies, and what its counter is kept by."""
    counter = []
    for number, (key, value) in enumerate(entries, 1):
        node = next_node(level, key, value)
        if node is None:
            return None
        counter.append((key, node["value"] if node.get("share_threshold") else value))
        if number == len(entries):
            return (node, tuple(counter)) if "rate_limit" in node else None
        level = node.get("descriptors", [])
    return None


def decide(level: list[Node], used: dict[Any, int], entries: Entries) -> str | int:
    """What is said there, counting passes only: what remains, "over", or "ok" where no enforced limit has a say."""
    found = walk(level, entries)
    if found is None or found[0]["rate_limit"].get("unlimited"):
        return "ok"
    node, counter = found
    left = node["rate_limit"]["requests_per_unit"] - used.get(counter, 0) - 1
    if left >= 0:
        used[counter] = used.get(counter, 0) + 1
    return "ok" if node["shadow_mode"] else left if left >= 0 else "over"


@pytest.mark.parametrize("seed", range(3))
def test_the_walk_there_is_the_rules_here(seed: int) -> None:
    """Trees of exact values, patterns, bare keys, shared counters, bans and shadows decide alike, empty values included. # T20 # T110"""
    dice = random.Random(seed)
    made = 0
    for _ in range(CONFIGURATIONS):
        level = random_level(dice)
        text = yaml.safe_dump({"domain": "d", "descriptors": level})
        imported = import_envoy_ratelimit([("f", text.encode())])
        if not imported.text:
            assert "holds no limit" in str(imported.problems[-1]), text
            continue
        made += 1
        limiter = Limiter.from_rules(load_rules(imported.text, "f"), clock=ManualClock())
        used: dict[Any, int] = {}
        for _ in range(REQUESTS):
            entries = [(key, dice.choice(ASKED)) for key in dice.sample(KEYS, dice.randint(1, 3))]
            decision = limiter.check(Facts(domain="d", descriptors=dict(entries)))
            said = "over" if not decision.allowed else "ok" if decision.rule is None else decision.remaining
            assert said == decide(level, used, entries), (text, entries, imported.text)
    assert made > CONFIGURATIONS // 2
