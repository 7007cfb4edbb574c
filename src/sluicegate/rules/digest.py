"""A short hash of what a rule set means: equal for two files that decide every request alike in the same way."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final

from sluicegate.rules.model import RuleSet

__all__ = ["digest_of", "meaning_of"]

_HEX_CHARS: Final = 16

# What does not change a decision: where a rule stands in its file, and how its quota was spelt.
_NO_MEANING: Final = frozenset({"line", "text", "version", "digest", "source"})


def digest_of(ruleset: RuleSet) -> str:
    """16 hex digits over rules (in order), tiers, subjects and identity; not over comments, layout or spelling."""
    return hashlib.sha256(meaning_of(ruleset).encode()).hexdigest()[:_HEX_CHARS]


def meaning_of(value: object) -> str:
    """One text for all values that mean the same: parts of a rule set, or tuples of them."""
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@cache
def _told(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields that are part of what a value of this kind means, each with whether it is so only where it is given.

    One that is told only where it is given leaves digests as they were before it was there.
    """
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind)
    return tuple(
        (field.name, field.metadata.get("told") == "given")
        for field in fields
        if field.name not in _NO_MEANING and field.compare
    )


def _canonical(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found: dict[str, object] = {"": type(value).__name__}
        for name, only_given in _told(type(value)):
            part = getattr(value, name)
            if part or not only_given:
                found[name] = _canonical(part)
        return found
    if isinstance(value, Mapping):
        # A list of pairs, because None is a key (the quota of every other tier) and JSON has no such key.
        return sorted(
            ([key is not None, key or "", _canonical(item)] for key, item in value.items()), key=lambda row: row[:2]
        )
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return str(value)
