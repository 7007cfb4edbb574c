"""Checks that need more than one rule: what a file means as a whole, and where that may not be what was meant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sluicegate.algorithms import LeakyBucket, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import LEAKY_PAIRS_MAX, LIMITS_PER_REQUEST_MAX
from sluicegate.rules.check_identity import Lines, check_identity
from sluicegate.rules.digest import meaning_of
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity import IdentityConfig
from sluicegate.rules.match import Matcher, see
from sluicegate.rules.model import Match, Mode, Quota, Rule, Tiers
from sluicegate.rules.notation import on_line
from sluicegate.rules.overlap import may_meet
from sluicegate.rules.paths import Glob, Wild, parse_pattern
from sluicegate.rules.problems import Problems
from sluicegate.rules.quota import format_quota

__all__ = ["check_rule_set", "never_first"]


def check_rule_set(
    rules: Sequence[Rule],
    tiers: Tiers,
    subjects: Iterable[str],
    identity: IdentityConfig | None,
    *,
    lines: Lines,
    problems: Problems,
) -> None:
    """Note what is wrong between rules, which must be right each for itself.

    ``identity`` None: its block has errors of its own, and nothing is said of it here. ``lines`` finds the line of a field
    of the file, 0 where the file has no such field.
    """
    for rule in rules:
        _check_parts(rule, problems)
        _check_endpoint(rule, problems)
    _check_leaky(rules, problems)
    _check_same_but_numbers(rules, problems)
    _check_limits_per_request(rules, tiers, problems)
    if identity is not None:
        check_identity(rules, tiers, subjects, identity, lines=lines, problems=problems)


def never_first(spec: Spec, beside: Spec) -> bool:
    """True where ``spec`` never refuses what ``beside``, charged alike, would let pass: its numbers are no smaller."""
    if isinstance(spec, TokenBucket | LeakyBucket):
        if not isinstance(beside, TokenBucket | LeakyBucket) or beside.algorithm != spec.algorithm:
            return False
        slower = beside.tokens * spec.period_us <= spec.tokens * beside.period_us
        return slower and beside.capacity <= spec.capacity
    same_window = beside.algorithm == spec.algorithm and beside.shape == spec.shape
    return same_window and beside.capacity <= spec.capacity


def _check_parts(rule: Rule, problems: Problems) -> None:
    """Limits of one quota against each other."""
    for tier, quota in rule.quotas.items():
        if tier is None and len(rule.quotas) > 1:
            continue
        field = "quota" if tier is None else f"quota.{tier}"
        if rule.algorithm == "leaky_bucket" and len(quota.specs) > 1:
            message = "a leaky_bucket takes one limit: a request can be held only once"
            problems.add(rule.line, rule.name, field, message)
            continue
        for spec in quota.specs:
            smaller = next((one for one in quota.specs if one is not spec and never_first(spec, one)), None)
            if smaller is not None:
                message = f"{format_quota([spec])} has no effect beside {format_quota([smaller])}"
                problems.add(rule.line, rule.name, field, message, None, "warning")


def _check_endpoint(rule: Rule, problems: Problems) -> None:
    if "endpoint" in rule.per.dimensions and not rule.match.path:
        message = "without match.path, all paths of a method are one endpoint wherever the route template is not known"
        problems.add(rule.line, rule.name, "per", message, None, "warning")


def _check_leaky(rules: Sequence[Rule], problems: Problems) -> None:
    leaky = [rule for rule in rules if rule.algorithm == "leaky_bucket" and rule.mode is Mode.ENFORCE]
    pairs = 0
    for at, later in enumerate(leaky):
        for earlier in leaky[:at]:
            pairs += 1
            if pairs > LEAKY_PAIRS_MAX:
                message = f"more than {LEAKY_PAIRS_MAX} pairs of leaky rules; the rest was not compared"
                problems.add(later.line, later.name, None, message, None, "warning")
                return
            if may_meet(earlier.match, later.match):
                message = f"can hold the same request as rule {earlier.name!r}{on_line(earlier.line)}; only one should"
                problems.add(later.line, later.name, "match", message, None, "warning")
                break


def _check_same_but_numbers(rules: Sequence[Rule], problems: Problems) -> None:
    """Two rules for the same requests and clients, one of which the other makes pointless."""
    groups: defaultdict[str, list[Rule]] = defaultdict(list)
    for rule in rules:
        if rule.mode is Mode.ENFORCE:
            groups[meaning_of((rule.match, rule.per, rule.cost))].append(rule)
    for group in groups.values():
        for rule in group:
            smaller = next((one for one in group if one is not rule and _pointless(rule, one)), None)
            if smaller is None:
                continue
            if _pointless(smaller, rule):
                if group.index(smaller) > group.index(rule):
                    continue
                message = (
                    f"says the same as rule {smaller.name!r}{on_line(smaller.line)}; both are charged, one is enough"
                )
            else:
                message = (
                    f"has no effect beside rule {smaller.name!r}{on_line(smaller.line)}, which has the same match and "
                    "per and a smaller quota; both are charged and the smaller decides"
                )
            problems.add(rule.line, rule.name, "quota", message, None, "warning")


def _pointless(rule: Rule, beside: Rule) -> bool:
    return all(
        quota.specs
        and all(any(never_first(spec, smaller) for smaller in _of_tier(beside, tier).specs) for spec in quota.specs)
        for tier, quota in rule.quotas.items()
    ) and all(_of_tier(rule, tier).specs for tier in beside.quotas)


def _of_tier(rule: Rule, tier: str | None) -> Quota:
    return rule.quotas[tier] if tier in rule.quotas else rule.quotas[None]


def _check_limits_per_request(rules: Sequence[Rule], tiers: Tiers, problems: Problems) -> None:
    """One request is made up for each rule, and the rules that match it are counted."""
    active = [rule for rule in rules if rule.mode is not Mode.OFF]
    parts = [max(len(quota.specs) for quota in rule.quotas.values()) for rule in active]
    if sum(parts) <= LIMITS_PER_REQUEST_MAX:
        return
    matcher = Matcher(active, lambda text: text)
    for rule in active:
        facts = _example_request(rule.match)
        tier = rule.match.tier[0] if rule.match.tier else tiers.default
        seen = see(facts.method, facts.path, facts.host, tier, matcher.labels_of(facts))
        found = [one for one in matcher.candidates(seen) if one.guard is None or one.guard(facts)]
        limits = sum(parts[one.rule_index] for one in found)
        if limits > LIMITS_PER_REQUEST_MAX:
            message = (
                f"a request such as {facts.method} {facts.path} is under {limits} limits; at most "
                f"{LIMITS_PER_REQUEST_MAX} may apply to one request"
            )
            problems.add(rule.line, rule.name, "match", message)
            return


def _example_request(match: Match) -> Facts:
    """A request that the match was probably written for."""
    user = match.user[0] if match.user else "x" if match.authenticated else None
    return Facts(
        method=match.methods[0] if match.methods else "GET",
        path=_example_path(match.path[0]) if match.path else "/",
        host=match.host[0].replace("*", "www") if match.host else "www",
        ip=match.ip[0].partition("/")[0] if match.ip else "192.0.2.1",
        user=user,
        tenant=match.tenant[0] if match.tenant else None,
        headers={name: value or "x" for name, value in match.headers.items()},
        domain=match.domain[0] if match.domain else None,
        descriptors={
            **{entry.key: (entry.value or "x").replace("*", "x") for entry in match.entries},
            **{name: value or "x" for name, value in match.descriptors.items()},
        },
    )


def _example_path(pattern: str) -> str:
    segments = []
    for segment in parse_pattern(pattern).segments:
        if isinstance(segment, str):
            segments.append(segment)
        elif isinstance(segment, Glob):
            parts = zip(segment.gaps, segment.literals, strict=True)
            segments.append("".join("x" * (gap or 0) + literal for gap, literal in parts))
        elif segment is Wild.ONE:
            segments.append("x")
    return "/" + "/".join(segments)
