"""Proposals for a whole rule set from what a home knows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingWindow
from sluicegate.analytics.home import Home
from sluicegate.analytics.model import Span
from sluicegate.analytics.suggestions.judging import judge
from sluicegate.analytics.suggestions.model import Exact, Limits, Policy
from sluicegate.bounds import SUGGESTION_FLOORS_MAX
from sluicegate.clock import US_PER_MS
from sluicegate.errors import InvalidRequest
from sluicegate.rules.model import Mode, Quota, Rule, RuleSet
from sluicegate.rules.proposals import Suggestion
from sluicegate.rules.quota import QuotaError, parse_quota

__all__ = ["Floors", "limits_of", "read_floors", "suggestions_of"]

Floors = Mapping[tuple[str, str], str]
"""Minimum quotas as text, by rule and tier; tier "" for all tiers of the rule that have none of their own."""

_SHARED = frozenset({"endpoint", "method", "host", "path", "domain", "tier"})


def read_floors(texts: Iterable[str]) -> dict[tuple[str, str], str]:
    """``RULE[:TIER]=QUOTA`` each. Raises InvalidRequest for one that is not of that form, is there twice, and for too many."""
    found: dict[tuple[str, str], str] = {}
    for text in texts:
        name, equals, quota = text.partition("=")
        rule, _, tier = name.strip().partition(":")
        if not equals or not rule or not quota.strip():
            raise InvalidRequest(
                "floor", f"{text!r:.200} is not RULE=QUOTA or RULE:TIER=QUOTA, as in api:free=60/minute"
            )
        if (rule, tier) in found:
            raise InvalidRequest("floor", f"{name.strip()!r:.200} is there twice")
        found[rule, tier] = quota.strip()
        if len(found) > SUGGESTION_FLOORS_MAX:
            raise InvalidRequest("floor", f"more than {SUGGESTION_FLOORS_MAX} are given")
    return found


def limits_of(ruleset: RuleSet, floors: Floors | None = None) -> list[Limits]:
    """Every rule that is on, tier by tier, in file order. Raises InvalidRequest for a floor of what does not exist, or that cannot be read."""
    floors = floors or {}
    made, used = [], set()
    for rule in ruleset.rules:
        if rule.mode is Mode.OFF:
            continue
        default = ruleset.tiers.default if ruleset.tiers.default in rule.quotas else None
        for tier, quota in rule.quotas.items():
            if tier is None and default is not None:
                continue
            names = frozenset(name for name in rule.quotas if name is not None and name != tier)
            rest = names if tier in (None, default) else None
            key = (rule.name, tier or "")
            if key not in floors and (rule.name, "") in floors:
                key = (rule.name, "")
            used.add(key)
            made.append(_limits(rule, tier or "", quota, rest, floors.get(key)))
    unknown = [":".join(filter(None, key)) for key in floors if key not in used]
    if unknown:
        raise InvalidRequest(
            "floor", f"there is no rule, or no tier of it with a quota of its own, {unknown[0]!r:.200}"
        )
    return made


def _limits(rule: Rule, tier: str, quota: Quota, others: frozenset[str] | None, floor: str | None) -> Limits:
    per = frozenset(rule.per.dimensions)
    minimum = None if floor is None else _minimum(rule, quota, floor)
    return Limits(
        rule=rule.name,
        tier=tier,
        specs=quota.specs,
        text=quota.text,
        others=others,
        shared=per <= _SHARED,
        mode=rule.mode.value,
        denied_counts=rule.denied_counts,
        penalty=rule.penalty is not None,
        minimum=None if minimum is None else minimum.specs[0],
        minimum_text=floor or "",
    )


def _minimum(rule: Rule, quota: Quota, text: str) -> Quota:
    """A floor as the algorithm of its rule reads it."""
    given: dict[str, object] = {}
    for spec in quota.specs[:1]:
        if isinstance(spec, SlidingWindow):
            given = {"strict": spec.sub_windows}
        elif isinstance(spec, LeakyBucket):
            given = {"max_delay_ms": spec.max_delay_us // US_PER_MS, "nodelay": spec.nodelay}
        elif isinstance(spec, FixedWindow) and spec.align == "calendar":
            given = {"align": "calendar", "tz": spec.tz}
    try:
        minimum = parse_quota(text, algorithm=rule.algorithm, **given)  # type: ignore[arg-type]
    except QuotaError as error:
        raise InvalidRequest("floor", f"{rule.name}: {error}") from None
    if len(minimum.specs) != 1:
        raise InvalidRequest("floor", f"{rule.name}: {text!r:.100} must be one limit, as in 60/minute")
    return minimum


def suggestions_of(
    home: Home,
    ruleset: RuleSet,
    span: Span,
    *,
    rule: str | None = None,
    tier: str | None = None,
    policy: Policy | None = None,
    floors: Floors | None = None,
) -> list[Suggestion]:
    """A proposal for every rule and tier, in file order, or for those of ``rule`` and ``tier``.

    Raises InvalidRequest for a rule or a tier that has no quota, AnalyticsError where the home cannot be asked.
    """
    every = limits_of(ruleset, floors)
    wanted = [each for each in every if rule in (None, each.rule) and tier in (None, each.tier)]
    if not wanted:
        where = "" if tier is None else f" with a quota for the tier {tier!r:.100}"
        raise InvalidRequest("rule", f"there is no rule{'' if rule is None else f' {rule!r:.200}'}{where} that is on")
    counts = _exact(home, span, wanted)
    rows = {name: home.demand(span, rule=name) for name in {each.rule for each in wanted}}
    return [judge(each, rows[each.rule], policy, counts.get((each.rule, each.tier))) for each in wanted]


def _exact(home: Home, span: Span, wanted: Sequence[Limits]) -> dict[tuple[str, str], Exact]:
    """Counts without sampling, of each rule and tier that was asked for."""
    matched: dict[tuple[str, str], int] = defaultdict(int)
    refused: dict[tuple[str, str], int] = defaultdict(int)
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    by_rule = defaultdict(list)
    for each in wanted:
        by_rule[each.rule].append(each)
    for row in home.rules(span, by=("rule", "tier", "outcome", "version")):
        for each in by_rule.get(row.rule or "", ()):
            if each.covers(row.tier or ""):
                key = (each.rule, each.tier)
                matched[key] += row.decisions
                refused[key] += 0 if row.outcome == "allowed" else row.decisions
                versions[key].add(row.version or 0)
    return {key: Exact(count, refused[key], tuple(sorted(versions[key]))) for key, count in matched.items()}
