"""A node's share of a limit: what one process counts by while the store cannot be reached.

Of N nodes each takes a bucket with the rate divided by N exactly, as a rational number, and the capacity divided by N and
rounded down, but at least 1. Together they admit the rule's rate; at once, its capacity, or N tokens where that is more.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import NamedTuple, TypeAlias

from sluicegate.algorithms import Ban, LeakyBucket, TokenBucket
from sluicegate.algorithms.spec import OnChange, Spec
from sluicegate.bounds import COUNTER_MEMO_MAX, DRAIN_US_MAX, PERIOD_US_MAX
from sluicegate.rules.model import FailurePolicy, Rule
from sluicegate.stores.base import Counter

__all__ = ["EVEN", "Share", "Shares", "Terms", "TermsOf", "share_of", "terms_of"]


class Terms(NamedTuple):
    """What a rule says about its store's failure. ``empty``: local counters start without a token; ``sticky``: N is 1."""

    policy: FailurePolicy = FailurePolicy.LOCAL
    empty: bool = False
    sticky: bool = False


EVEN = Terms()
"""Of rules that say nothing, and of counters that belong to no rule."""

TermsOf: TypeAlias = Callable[[Counter], Terms]
"""The terms of the rule a counter belongs to."""


class Share(NamedTuple):
    """The counters that stand for one of the store's.

    ``local``: what this process counts by. ``debt``: the store's counter as one that is charged what was admitted without
    it, as much as it can bear, whether or not it admits: that is what ``denied_counts`` does.
    """

    counter: Counter
    local: Counter
    debt: Counter


class Shares:
    """Shares by counter, remembered. A change of N or of the rule's numbers keeps the fraction of a local counter that is used.

    So a changing N mints no token: a node that has spent its half has nothing of a third either, and nothing when the half
    comes back.
    """

    __slots__ = ("_memo",)

    def __init__(self) -> None:
        # By identity: to hash a counter takes longer than to decide by it. The entry keeps its counter, so no id is used twice.
        self._memo: dict[tuple[int, int], Share] = {}

    def of(self, counter: Counter, nodes: int) -> Share:
        """The share of one of ``nodes`` nodes."""
        share = self._memo.get((id(counter), nodes))
        if share is None:
            if len(self._memo) >= COUNTER_MEMO_MAX:
                self._memo.clear()
            local = counter._replace(spec=share_of(counter.spec, nodes), shadow=False, on_change=OnChange.SCALE)
            debt = counter._replace(shadow=False, denied_counts=True)
            share = self._memo[id(counter), nodes] = Share(counter, local, debt)
        return share


def share_of(spec: Spec, nodes: int) -> Spec:
    """The spec of one node of ``nodes`` (>= 1).

    Always a bucket: a leaky one stays a queue, a window becomes a bucket of its limit per window, a ban stays a ban. A rate
    below the slowest a bucket can have, a token in ten years, counts as that.
    """
    if isinstance(spec, Ban):
        return spec
    tokens, period_us = (
        (spec.tokens, spec.period_us)
        if isinstance(spec, TokenBucket | LeakyBucket)
        else (spec.capacity, spec.window_us)
    )
    capacity = min(spec.capacity, max(1, spec.capacity // nodes))
    divisor = gcd(tokens, period_us * nodes)
    tokens, period_us = tokens // divisor, period_us * nodes // divisor
    period_us = min(period_us, PERIOD_US_MAX, DRAIN_US_MAX * tokens // capacity)
    if isinstance(spec, LeakyBucket):
        return LeakyBucket(capacity, tokens, period_us, spec.max_delay_us, spec.nodelay)
    return TokenBucket(capacity, tokens, period_us)


def terms_of(rule: Rule) -> Terms:
    """The terms of a rule."""
    return Terms(rule.on_store_failure, rule.fallback_start == "empty", rule.fallback_share == "sticky")
