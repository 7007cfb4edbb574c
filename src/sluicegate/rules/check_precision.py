"""What a rule's precision can and cannot do, beside its other fields."""

from __future__ import annotations

from collections.abc import Iterator

from sluicegate.algorithms import Ban
from sluicegate.algorithms.parts import parts_of
from sluicegate.algorithms.precision import Precision
from sluicegate.rules.model import FailurePolicy, Rule
from sluicegate.rules.report_near import ReportTerms, too_small

__all__ = ["precision_warnings"]


def precision_warnings(rule: Rule) -> Iterator[str]:
    """What somebody who asked for this precision may not expect, at the numbers that a fleet has unless told otherwise."""
    terms = ReportTerms()
    specs = [spec for quota in rule.quotas.values() for spec in quota.specs if not isinstance(spec, Ban)]
    closed = rule.on_store_failure is FailurePolicy.CLOSED
    if rule.precision is Precision.LEASED:
        reasons = {too_small(spec, 1, terms): None for spec in specs}
        yield from (f"decided by the store all the same: {reason}" for reason in reasons if reason)
        if closed and not all(reasons):
            ttl_s = terms.terms.ttl_us / 1_000_000
            yield f"on_store_failure: closed begins only when the leases have ended, up to {ttl_s:g} s after the store was reached last"
    elif rule.precision is Precision.SPLIT:
        small = [spec for spec in specs if len(parts_of(spec)) == 1]
        yield from (
            f"never split: {spec.capacity:,} tokens are too few for two parts, or come too slowly" for spec in small
        )
    elif rule.precision is Precision.ESTIMATED and closed:
        yield "may admit more than the limit, though on_store_failure: closed says that one too many does harm"
