"""Checks of the rules against the identity settings: whose word decides which counter a request is charged to?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from sluicegate.rules.identity import IdentityConfig
from sluicegate.rules.model import Mode, OnMissing, Rule, Tiers
from sluicegate.rules.notation import shown
from sluicegate.rules.overlap import covers
from sluicegate.rules.problems import Problems

__all__ = ["Lines", "check_identity"]

Lines: TypeAlias = Callable[[str], int]
"""From the path of a field, such as ``identity.user``, to its line in the file; 0 where the file has no such field."""

_IDENTITIES = ("user", "api_key", "tenant")

# A key of these alone limits an address whatever a client invents; a path or a host it could vary at will.
_ADDRESS_KEY = frozenset({"ip", "endpoint", "method"})


def check_identity(
    rules: Sequence[Rule],
    tiers: Tiers,
    subjects: Iterable[str],
    identity: IdentityConfig,
    *,
    lines: Lines,
    problems: Problems,
) -> None:
    """Warn where an identity is anybody's choice, or can never be known."""
    has_identity = lines("identity") != 0
    if has_identity:
        _check_subjects(subjects, identity, lines, problems)
    by_address = [rule for rule in rules if _limits_addresses(rule)]
    strangers = _believed_from_strangers(identity, lines, problems)
    for rule in rules:
        if rule.mode is Mode.ENFORCE:
            _check_key(rule, strangers, by_address, problems)
            _check_match(rule, strangers, problems)
            if has_identity:
                _check_reachable(rule, identity, problems)
    # The tier of a request is the caller's word in the library, so only a file with identity settings must name one.
    if has_identity and tiers.names and identity.tier is None and not _has_tier_by_subject(identity):
        message = (
            "nothing says a request's tier: identity.tier is not set and there is no identity a subject could name"
        )
        problems.add(lines("tiers"), None, "tiers", message, None, "warning")


def _check_subjects(subjects: Iterable[str], identity: IdentityConfig, lines: Lines, problems: Problems) -> None:
    """A subject of a kind that no door can find out never gives a request its tier there."""
    kinds = {subject.partition(":")[0] for subject in subjects}
    for kind in sorted(kinds):
        if getattr(identity, kind) is None:
            message = f"identity.{kind} is not set, so {kind} subjects count only for callers that pass {shown(kind)} themselves"
            problems.add(lines("subjects"), None, "subjects", message, None, "warning")


def _has_tier_by_subject(identity: IdentityConfig) -> bool:
    return any(getattr(identity, name) is not None for name in _IDENTITIES)


def _limits_addresses(rule: Rule) -> bool:
    """An enforced rule that no address escapes by inventing identities."""
    dimensions = rule.per.dimensions
    keyed = "ip" in dimensions and (dimensions[0] == "ip" if rule.per.first_of else _ADDRESS_KEY.issuperset(dimensions))
    return keyed and rule.mode is Mode.ENFORCE and all(quota.specs for quota in rule.quotas.values())


def _believed_from_strangers(identity: IdentityConfig, lines: Lines, problems: Problems) -> dict[str, str]:
    """Dimension -> why anybody can choose it. An identity that nobody can set is a warning of its own."""
    nobody = not identity.trusted_peers and not identity.trust_unix
    found: dict[str, str] = {}
    for dimension, field, message in identity.unverified_sources():
        if nobody or dimension == "tier":
            what = "" if nobody else "anybody can choose a tier: "
            problems.add(lines(field), None, field, f"{what}{message}", None, "warning")
        else:
            found[dimension] = message
    return found


def _check_key(rule: Rule, strangers: dict[str, str], by_address: Sequence[Rule], problems: Problems) -> None:
    """Whoever chooses the key of a counter starts a full one at will, unless a rule per address stands behind it."""
    for dimension in rule.per.dimensions:
        if dimension in strangers:
            reason = strangers[dimension]
        elif dimension.startswith("header."):
            reason = "a header is whatever the client sends"
        else:
            continue
        if any(covers(one.match, rule.match) for one in by_address):
            return
        message = (
            f"anybody can choose {dimension} and so start a new counter at will ({reason}); "
            "no rule per: [ip] covers the same requests"
        )
        problems.add(rule.line, rule.name, "per", message, None, "warning")
        return


def _check_match(rule: Rule, strangers: dict[str, str], problems: Problems) -> None:
    for where, match in (("match", rule.match), ("match.not", rule.match.negate)):
        if match is None:
            continue
        used: list[str] = [name for name in ("user", "tenant") if getattr(match, name) and name in strangers]
        if match.authenticated is not None:
            used += [name for name in _IDENTITIES if name in strangers]
        if used:
            message = f"anybody can choose {used[0]} and so whether this rule applies ({strangers[used[0]]})"
            problems.add(rule.line, rule.name, where, message, None, "warning")


def _check_reachable(rule: Rule, identity: IdentityConfig, problems: Problems) -> None:
    """A key that needs an identity no door can find out is a rule that never applies there."""
    per = rule.per
    missing = [name for name in per.dimensions if name in _IDENTITIES and getattr(identity, name) is None]
    if not missing or per.on_missing is not OnMissing.SKIP or (per.first_of and len(missing) < len(per.dimensions)):
        return
    message = (
        f"identity.{missing[0]} is not set, so only callers that pass {shown(missing[0])} themselves are limited by "
        "this rule; a gateway skips it"
    )
    problems.add(rule.line, rule.name, "per", message, None, "warning")
