"""What an edit of the rules means: which rules come, go or change, and what happens to the counters in service.

A counter is known by its rule's name, its algorithm, its shape (window length and the like) and its subject. While those stay, a
change of numbers keeps it. Where one of them changes the rule starts from an empty counter, and in the worst case a client has
used up the old one just before: it may then spend the old and the new limit in one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from sluicegate.algorithms.spec import Spec
from sluicegate.rules.model import Match, Penalty, Per, Quota, Rule, RuleSet
from sluicegate.rules.quota_format import format_span

__all__ = ["Change", "ChangeKind", "Counters", "diff_rules", "render_diff"]

_PLAIN_FIELDS = (
    "scope",
    "algorithm",
    "cost",
    "mode",
    "on_store_failure",
    "precision",
    "denied_counts",
    "on_change",
    "respond",
    "penalty",
    "fallback_start",
    "fallback_share",
)


class ChangeKind(StrEnum):
    """How a rule, or the part of the file named by ``Change.rule``, differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Counters(StrEnum):
    """What the change does to counters that exist."""

    KEPT = "kept"
    NEW = "new"
    """At least one counter of the rule starts empty."""
    DROPPED = "dropped"
    UNTOUCHED = "untouched"
    """The change is not about numbers or keys."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``rule`` is the rule's name, or ``tiers``, ``subjects``, ``identity`` or ``order`` in brackets.

    ``details`` are plain sentences, ``worst_case`` says what a client may get in excess, or is "" where nothing.
    """

    kind: ChangeKind
    rule: str
    details: tuple[str, ...]
    counters: Counters
    worst_case: str = ""


def diff_rules(old: RuleSet, new: RuleSet) -> list[Change]:
    """All differences in meaning, in the order of the new file, then what was removed; empty where there are none.

    Comments, layout and another way to write the same numbers are no difference.
    """
    before = {rule.name: rule for rule in old.rules}
    after = {rule.name: rule for rule in new.rules}
    changes = list(_around_the_rules(old, new, [n for n in before if n in after], [n for n in after if n in before]))
    for name, rule in after.items():
        if name not in before:
            tiers = [tier for tier in rule.quotas if tier is not None or len(rule.quotas) == 1]
            details = tuple(f"{_tier(tier)}{rule.quotas[tier].text}" for tier in tiers)
            changes.append(Change(ChangeKind.ADDED, name, details, Counters.NEW))
        elif (change := _compare(before[name], rule)) is not None:
            changes.append(change)
    for name in before:
        if name not in after:
            changes.append(Change(ChangeKind.REMOVED, name, ("its requests are no longer counted",), Counters.DROPPED))
    return changes


def render_diff(changes: list[Change]) -> str:
    """The differences as text for a person: ``+`` added, ``-`` removed, ``~`` changed."""
    marks = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}
    lines = []
    for change in changes:
        suffix = "" if change.counters is Counters.UNTOUCHED else f"  (counters: {change.counters})"
        lines.append(f"{marks[change.kind]} {change.rule}{suffix}")
        lines += [f"    {detail}" for detail in change.details]
        if change.worst_case:
            lines.append(f"    worst case: {change.worst_case}")
    return "\n".join(lines)


def _around_the_rules(old: RuleSet, new: RuleSet, order: list[str], new_order: list[str]) -> Iterator[Change]:
    if old.tiers != new.tiers:
        detail = f"{_describe(old.tiers.names)} default {old.tiers.default} -> {_describe(new.tiers.names)}"
        detail += f" default {new.tiers.default}"
        yield Change(ChangeKind.CHANGED, "[tiers]", (detail,), Counters.KEPT)
    if dict(old.subjects) != dict(new.subjects):
        names = sorted(set(old.subjects) | set(new.subjects))
        details = tuple(
            f"{name}: {old.subjects.get(name, 'none')} -> {new.subjects.get(name, 'none')}"
            for name in names
            if old.subjects.get(name) != new.subjects.get(name)
        )
        yield Change(ChangeKind.CHANGED, "[subjects]", details, Counters.KEPT)
    if old.identity != new.identity:
        detail = "who a request counts as may change, and with it the key of its counters"
        yield Change(ChangeKind.CHANGED, "[identity]", (detail,), Counters.NEW, "each affected client starts full once")
    if order != new_order:
        detail = "which rule is named where several refuse follows the order"
        yield Change(ChangeKind.CHANGED, "[order]", (detail,), Counters.UNTOUCHED)


def _compare(old: Rule, new: Rule) -> Change | None:
    details = [
        f"{name}: {_describe(getattr(old, name))} -> {_describe(getattr(new, name))}"
        for name in _PLAIN_FIELDS
        if getattr(old, name) != getattr(new, name)
    ]
    details += [f"match.{line}" for line in _match_differences(old.match, new.match)]
    if old.per != new.per:
        details.append(f"per: {_describe(old.per)} -> {_describe(new.per)}")
    quota_details, fresh, same = _quota_differences(old, new)
    details += quota_details
    if not details:
        return None
    if fresh:
        return Change(ChangeKind.CHANGED, new.name, tuple(details), Counters.NEW, "; ".join(fresh))
    counters = Counters.UNTOUCHED if same else Counters.KEPT
    return Change(ChangeKind.CHANGED, new.name, tuple(details), counters)


def _quota_differences(old: Rule, new: Rule) -> tuple[list[str], list[str], bool]:
    """Sentences on quotas, worst cases of counters that start empty, and whether all numbers are the same."""
    details, fresh, same = [], [], True
    named = {tier for tier in (*old.quotas, *new.quotas) if tier is not None}
    tiers: list[str | None] = [*sorted(named)] or [None]
    for tier in tiers:
        before = old.quotas.get(tier, old.quotas.get(None))
        after = new.quotas.get(tier, new.quotas.get(None))
        if before is None or after is None:
            text = "removed" if after is None else f"added: {after.text}"
            details.append(f"quota {_tier(tier)}{text}")
            same = False
            continue
        if before.specs != after.specs:
            # The same numbers may mean another window (strict, align), which the shape tells.
            old_text, new_text = (before.text, after.text) if before.text != after.text else _shapes(before, after)
            details.append(f"quota {_tier(tier)}{old_text} -> {new_text}")
            same = False
        fresh += [f"{_tier(tier)}{line}" for line in _fresh_counters(old, new, before, after)]
    return details, fresh, same


def _fresh_counters(old: Rule, new: Rule, before: Quota, after: Quota) -> Iterator[str]:
    kept = {_identity(name, spec): spec for name, spec in _parts(old.name, before)} if old.per == new.per else {}
    previous = [spec for _, spec in _parts(old.name, before)]
    for name, spec in _parts(new.name, after):
        if _identity(name, spec) in kept or not previous:
            continue
        window = max(spec.window_us, *(one.window_us for one in previous))
        most_old = min(one.most_admitted(window) for one in previous)
        yield (
            f"{name} starts empty, so a client may get up to {most_old} + {spec.most_admitted(window)} "
            f"in the {window / 1_000_000:g} s around the change"
        )


def _parts(name: str, quota: Quota) -> list[tuple[str, Spec]]:
    if len(quota.specs) == 1:
        return [(name, quota.specs[0])]
    return [(f"{name}#{number}", spec) for number, spec in enumerate(quota.specs, 1)]


def _shapes(*quotas: Quota) -> list[str]:
    return [f"{quota.text} ({', '.join(spec.shape for spec in quota.specs)})" for quota in quotas]


def _identity(name: str, spec: Spec) -> tuple[str, str, str]:
    return (name, spec.algorithm, spec.shape)


def _match_differences(old: Match, new: Match, prefix: str = "") -> Iterator[str]:
    for field in fields(Match):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if field.name == "negate":
            if before != after:
                yield from _match_differences(before or Match(), after or Match(), "not.")
        elif before != after:
            yield f"{prefix}{field.name}: {_describe(before)} -> {_describe(after)}"


def _describe(value: Any) -> str:
    if isinstance(value, Per):
        how = "first of " if value.first_of else ""
        missing = "" if value.on_missing == "skip" else f" (missing: {value.on_missing})"
        return f"{how}[{', '.join(value.dimensions)}]{missing}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {item}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, Penalty):
        block = format_span(value.block_us)
        block = f"1 {block}" if block.isalpha() else block
        return f"{{after: {value.refusals} refusals/{format_span(value.within_us)}, block: {block}}}"
    return "none" if value is None else str(value)


def _tier(tier: str | None) -> str:
    return "" if tier is None else f"{tier}: "
