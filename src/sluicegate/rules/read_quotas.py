"""Reads ``quota:`` with the options of its algorithm, for all tiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from sluicegate.algorithms import LeakyBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import DELAY_US_MAX, SUB_WINDOWS_MAX
from sluicegate.clock import US_PER_MS
from sluicegate.rules.fields import Block, Place, as_boolean, kind_of
from sluicegate.rules.model import Quota, Tiers
from sluicegate.rules.notation import shown, suggest
from sluicegate.rules.quota import ALGORITHMS, NUMBER_FIELDS, QuotaError, parse_quota
from sluicegate.rules.quota_spec import MAX_DELAY_MS_DEFAULT
from sluicegate.rules.yaml_tree import Item, plain

__all__ = ["QUOTA_FIELDS", "read_quotas"]

QUOTA_FIELDS: Final = ("quota", "algorithm", "strict", "max_delay_ms", "nodelay", "align", "tz")

_OWNERS: Final = {
    "strict": "sliding_window",
    "max_delay_ms": "leaky_bucket",
    "nodelay": "leaky_bucket",
    "align": "fixed_window",
    "tz": "fixed_window",
}

Parse: TypeAlias = Callable[[object], Quota]


def read_quotas(rule: Block, tiers: Tiers) -> tuple[str, Mapping[str | None, Quota]]:
    """The algorithm's name, and the quota of each tier; the key None holds that of every tier not named."""
    algorithm = rule.word("algorithm", list(ALGORITHMS), "token_bucket")
    parse = _parser(rule, algorithm)
    item = rule.take("quota")
    place = rule.place.child("quota")
    if item is None:
        if "quota" not in rule:
            rule.add("quota", "missing; write for instance quota: 100/minute, or quota: unlimited")
        return algorithm, MappingProxyType({})
    if isinstance(item.value, dict) and not NUMBER_FIELDS.intersection(item.value):
        quotas: Mapping[str | None, Quota] = _by_tier(item, item.value, place, tiers, parse)
    else:
        quota = _one(item, place, parse)
        quotas = {} if quota is None else {None: quota}
    return algorithm, MappingProxyType(dict(quotas))


def _parser(rule: Block, algorithm: str) -> Parse:
    """``parse_quota`` with the rule's options; an option of another algorithm is a problem, not ignored."""
    for name, owner in _OWNERS.items():
        if name in rule and algorithm != owner:
            rule.add(name, f"belongs to {owner} and does nothing for {algorithm}")
    if algorithm == "sliding_window":
        strict = _strict(rule)
        return lambda obj: parse_quota(obj, algorithm=algorithm, strict=strict)
    if algorithm == "leaky_bucket":
        default, most = MAX_DELAY_MS_DEFAULT, DELAY_US_MAX // US_PER_MS
        delay_ms = rule.integer("max_delay_ms", default=default, least=0, most=most)
        nodelay = rule.boolean("nodelay", default=False)
        return lambda obj: parse_quota(obj, algorithm=algorithm, max_delay_ms=delay_ms, nodelay=nodelay)
    if algorithm == "fixed_window":
        align = rule.word("align", ["epoch", "calendar"], "epoch")
        tz = _time_zone(rule, align)
        return lambda obj: parse_quota(obj, algorithm=algorithm, align=align, tz=tz)
    return lambda obj: parse_quota(obj, algorithm=algorithm)


def _strict(rule: Block) -> bool | int | None:
    item = rule.take("strict")
    if item is None:
        return None
    given = as_boolean(item)
    if given is not None:
        return given
    if isinstance(item.value, int) and 1 <= item.value <= SUB_WINDOWS_MAX:
        return item.value
    rule.add("strict", f"expected true, false or 1 to {SUB_WINDOWS_MAX} sub-windows, got {kind_of(item)}")
    return None


def _time_zone(rule: Block, align: str) -> str:
    tz = rule.text("tz")
    if tz is None:
        return "UTC"
    if align != "calendar":
        rule.add("tz", "needs align: calendar; windows from the epoch have no time zone")
        return "UTC"
    try:
        ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        rule.add("tz", f"unknown time zone {shown(tz)}", suggest(tz, available_timezones()))
        return "UTC"
    return tz


def _by_tier(
    item: Item, entries: Mapping[str, Item], place: Place, tiers: Tiers, parse: Parse
) -> Mapping[str | None, Quota]:
    quotas: dict[str | None, Quota] = {}
    if not entries:
        place.add(item.line, "is empty; write for instance 100/minute, or {free: 100/minute, paid: 1000/minute}")
    for tier, child in entries.items():
        at = place.child(shown(tier)[1:-1])
        if tier not in tiers.names:
            known = f"known are {', '.join(tiers.names)}" if tiers.names else "the file declares no tiers"
            at.add(child.line, f"unknown tier; {known}", suggest(tier, (*tiers.names, *NUMBER_FIELDS)))
            continue
        quota = _one(child, at, parse)
        if quota is not None:
            quotas[tier] = quota
    if tiers.default is None or not entries:
        return quotas
    if tiers.default not in entries:
        message = f"has no quota for {shown(tiers.default)}, the default tier; write {tiers.default}: unlimited if that is meant"
        place.add(item.line, message)
        return quotas
    if tiers.default in quotas:
        quotas[None] = quotas[tiers.default]
        for tier in tiers.names:
            if tier not in entries:
                place.warn(
                    item.line, f"has no quota for tier {shown(tier)}, which takes that of {shown(tiers.default)}"
                )
    return quotas


def _one(item: Item, place: Place, parse: Parse) -> Quota | None:
    if item.value is None:
        place.add(item.line, "has no value; write for instance 100/minute, or unlimited")
        return None
    try:
        quota = parse(plain(item))
    except QuotaError as error:
        at = place if error.field is None or error.field in QUOTA_FIELDS else place.child(error.field)
        line = item.line
        if isinstance(item.value, dict) and error.field in item.value:
            line = item.value[error.field].line
        at.add(line, error.message, error.suggestion)
        return None
    for spec in quota.specs:
        _warn_of_short_delay(spec, item.line, place)
    return quota


def _warn_of_short_delay(spec: Spec, line: int, place: Place) -> None:
    """Say so where the longest allowed wait ends before the last place of the queue is reached."""
    if not isinstance(spec, LeakyBucket) or spec.nodelay:
        return
    longest_us = (spec.capacity - 1) * spec.period_us // spec.tokens
    if longest_us > spec.max_delay_us:
        usable = spec.max_delay_us * spec.tokens // spec.period_us + 1
        place.warn(
            line,
            f"only {usable} of the {spec.capacity} places in the queue can be used: the last waits "
            f"{longest_us // US_PER_MS} ms and max_delay_ms is {spec.max_delay_us // US_PER_MS}",
        )
