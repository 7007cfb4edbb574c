"""A node's share of a limit: what one process counts by while it cannot reach the counters that all share.

Of N nodes each takes a bucket with the rate divided by N exactly, as a rational number, and the capacity divided by N and
rounded down, but at least 1. Together they admit the rule's rate; at once, its capacity, or N tokens where that is more.
"""

from __future__ import annotations

from math import gcd

from sluicegate.algorithms.ban import Ban
from sluicegate.algorithms.leaky_bucket import LeakyBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.bounds import DRAIN_US_MAX, PERIOD_US_MAX

__all__ = ["share_of"]


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
