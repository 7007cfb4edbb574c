"""Limits times a factor: what an override of one subject does to the numbers of a rule.

Capacity and rate are both multiplied; the window stays, so the counter stays. Rounding is down, so nobody gets more than the factor
says, but a limit is never below 1. A number that the algorithm cannot have becomes the nearest one that it can: above
``CAPACITY_MAX`` (of a sliding log ``SLIDING_LOG_LIMIT_MAX``) the limit stays there, and a rate is rounded down to one that a bucket may
have; below the slowest of them (a token in ten years, a drain of 71) it is the slowest.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from sluicegate.algorithms.ban import Ban
from sluicegate.algorithms.fixed_window import FixedWindow
from sluicegate.algorithms.leaky_bucket import LeakyBucket
from sluicegate.algorithms.sliding_log import SlidingLog
from sluicegate.algorithms.sliding_window import SlidingWindow
from sluicegate.algorithms.spec import Spec
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.bounds import CAPACITY_MAX, DRAIN_US_MAX, PERIOD_US_MAX, SLIDING_LOG_LIMIT_MAX, TOKENS_MAX

__all__ = ["scaled_spec"]


def scaled_spec(spec: Spec, numerator: int, denominator: int) -> Spec:
    """``spec`` with its limit and rate times ``numerator / denominator`` (both >= 1). A ban stays a ban."""
    if isinstance(spec, Ban) or numerator == denominator:
        return spec
    most = SLIDING_LOG_LIMIT_MAX if isinstance(spec, SlidingLog) else CAPACITY_MAX
    capacity = min(most, max(1, spec.capacity * numerator // denominator))
    if isinstance(spec, FixedWindow | SlidingWindow | SlidingLog):
        return replace(spec, limit=capacity)
    if isinstance(spec, TokenBucket | LeakyBucket):
        tokens, period_us = _rate(spec.tokens * numerator, spec.period_us * denominator, capacity)
        return replace(spec, capacity=capacity, tokens=tokens, period_us=period_us)
    raise TypeError(f"no limit of {type(spec).__name__} can be multiplied")


def _rate(tokens: int, period_us: int, capacity: int) -> tuple[int, int]:
    """The rate ``tokens / period_us`` as numbers that a bucket of ``capacity`` may have."""
    divisor = gcd(tokens, period_us)
    tokens, period_us = tokens // divisor, period_us // divisor
    if period_us > PERIOD_US_MAX:
        tokens, period_us = max(1, tokens * PERIOD_US_MAX // period_us), PERIOD_US_MAX
    if tokens > TOKENS_MAX:
        tokens, period_us = TOKENS_MAX, -(-period_us * TOKENS_MAX // tokens)
    # A capacity that could not be made smaller takes longer to fill; the slowest rate there is stands in for the exact one.
    return tokens, min(period_us, DRAIN_US_MAX * tokens // capacity)
