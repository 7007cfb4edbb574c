"""Which numbers a proposal chooses: round ones, within a step of those of now, never below what was promised."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.analytics.suggestions.model import Judged, Limits, Policy
from sluicegate.analytics.suggestions.series import Client
from sluicegate.analytics.suggestions.trying import capacity_for, smallest
from sluicegate.bounds import CAPACITY_MAX, PERIOD_US_MAX, SLIDING_LOG_LIMIT_MAX
from sluicegate.rules.proposals import Bucket
from sluicegate.rules.quota_format import format_quota

__all__ = ["choose", "is_burst", "round_down", "round_up", "scaled"]

_MANTISSAS: Final = (100, 120, 150, 200, 250, 300, 400, 500, 600, 800, 1_000)
_RATES: Final = (50, 60, 80, 100, 120, 150, 200, 250, 300, 400, 500, 600, 800, 1_000)


def round_up(number: float) -> int:
    """The smallest round number at least as large: below ten any, else one of 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 with zeros behind."""
    whole = ceil(number)
    if whole <= 10:
        return max(1, whole)
    scale = int(f"1{'0' * (len(str(whole)) - 1)}")
    return next(mantissa * scale // 100 for mantissa in _MANTISSAS if mantissa * scale >= whole * 100)


def round_down(number: float) -> int:
    """The largest round number at most as large, at least 1."""
    whole = int(number)
    if whole <= 10:
        return max(1, whole)
    scale = int(f"1{'0' * (len(str(whole)) - 1)}")
    return next(mantissa * scale // 100 for mantissa in reversed(_MANTISSAS) if mantissa * scale <= whole * 100)


def is_burst(spec: Spec) -> bool:
    """Whether a bucket's capacity is a number of its own, as in ``10/second burst 50``."""
    return isinstance(spec, TokenBucket) and "burst" in format_quota((spec,))


def scaled(spec: Spec, limit: int) -> Spec:
    """The same with another main number: the limit of a window, the capacity of a bucket with its rate in proportion.

    Raises ValueError for a number that the algorithm does not take.
    """
    if isinstance(spec, FixedWindow | SlidingWindow | SlidingLog):
        return replace(spec, limit=limit)
    assert isinstance(spec, TokenBucket | LeakyBucket)
    if spec.capacity * spec.period_us == spec.tokens * spec.window_us and spec.window_us <= PERIOD_US_MAX:
        return replace(spec, capacity=limit, tokens=limit, period_us=spec.window_us)
    return replace(spec, capacity=limit, tokens=spec.tokens * limit, period_us=spec.period_us * spec.capacity)


def _within_reach(spec: Spec, most: int) -> int:
    """The largest main number up to ``most`` that the algorithm takes."""
    found = min(most, SLIDING_LOG_LIMIT_MAX if isinstance(spec, SlidingLog) else CAPACITY_MAX)
    try:
        scaled(spec, found)
    except ValueError:
        # A bucket whose rate is at the edge of what can be said.
        found = spec.capacity
    return max(spec.capacity, found)


def choose(limits: Limits, clients: Sequence[Client], policy: Policy, *, may_lower: bool, may_raise: bool) -> Judged:
    """Numbers for each part of a quota that serve the wanted share of the clients, or those of now.

    The share of clients that may be refused is the same for each part.
    """
    weight = sum(client.weight for client in clients)
    refused_max = (1 - policy.target_share) * weight
    parts = [
        _part(spec, limits.minimum if len(limits.specs) == 1 else None, clients, policy, refused_max, may_lower, may_raise)
        for spec in limits.specs
    ]  # fmt: skip
    return Judged(
        specs=tuple(part.specs[0] for part in parts),
        needed=tuple(part.needed[0] for part in parts),
        capped=any(part.capped for part in parts),
        held=any(part.held for part in parts),
        buckets=parts[0].buckets if len(parts) == 1 else (),
    )


def _part(
    spec: Spec, minimum: Spec | None, clients: Sequence[Client], policy: Policy, refused_max: float, may_lower: bool, may_raise: bool
) -> Judged:  # fmt: skip
    if isinstance(spec, Ban):
        return Judged((spec,), (0,))
    if is_burst(spec):
        assert isinstance(spec, TokenBucket)
        return _bucket(spec, minimum, clients, policy, refused_max, may_lower=may_lower, may_raise=may_raise)
    now = spec.capacity
    most, least = _within_reach(spec, int(now * policy.step_max)), ceil(now / policy.step_max)
    floor = 1 if minimum is None else _least(spec, minimum)
    lowest = max(1, int(least / policy.headroom))
    needed = smallest(clients, lambda limit: scaled(spec, limit), lowest, most, refused_max)
    wanted = (most + 1 if needed is None else needed) * policy.headroom
    limit, capped = _limit(now, wanted, least, most, policy, needs_more=needed is None or needed > now)
    if (limit > now and not may_raise) or (limit < now and not may_lower):
        limit, capped = now, False
    held = limit < floor
    # Never below what was promised, also where it is below that already; in one step at most.
    limit = min(max(limit, floor), max(most, now))
    return Judged(
        (scaled(spec, limit) if limit != now else spec,), (most + 1 if needed is None else needed,), capped, held
    )


def _limit(now: int, wanted: float, least: int, most: int, policy: Policy, *, needs_more: bool) -> tuple[int, bool]:
    """The limit to propose, and whether more would be needed than one step allows."""
    if needs_more:
        limit = round_up(wanted)
        if limit <= most:
            return max(limit, now), False
        rounded = round_down(most)
        return rounded if rounded > now else most, wanted > most
    if wanted <= policy.keep_above * now:
        limit = max(round_up(wanted), least)
        return min(limit, now), False
    return now, False


def _bucket(
    spec: TokenBucket,
    minimum: Spec | None,
    clients: Sequence[Client],
    policy: Policy,
    refused_max: float,
    *,
    may_lower: bool,
    may_raise: bool,
) -> Judged:
    """A bucket with two numbers. Of all that serve the clients, the one whose worst admits least over the time that the present one takes to fill."""
    now_needs = _capacity(clients, spec.tokens, spec.period_us, refused_max)
    wants_more = now_needs > spec.capacity
    curve = _curve(spec, clients, policy, refused_max)
    if not curve:
        return Judged((spec,), (now_needs,))
    floor_capacity, floor_rate = _floors(minimum)
    fits = [
        each for each in curve
        if each.capacity <= spec.capacity * policy.step_max
        and each.tokens * floor_rate[1] >= floor_rate[0] * each.period_us
    ]  # fmt: skip
    if wants_more and may_raise:
        # Who is served now must not be worse off.
        fits = [each for each in fits if each.tokens * spec.period_us >= spec.tokens * each.period_us]
        best = min(fits, key=lambda each: _worst(each, spec.window_us), default=curve[-1])
        capacity = min(max(best.capacity, spec.capacity, floor_capacity), int(spec.capacity * policy.step_max))
        chosen = TokenBucket(capacity, best.tokens, best.period_us)
        return Judged((chosen,), (now_needs,), not fits, held=False, buckets=curve)
    lower = [each for each in fits if each.tokens * spec.period_us <= spec.tokens * each.period_us]
    worst_now = spec.capacity + spec.tokens * spec.window_us // spec.period_us
    if not wants_more and may_lower and lower:
        best = min(lower, key=lambda each: _worst(each, spec.window_us))
        least = max(ceil(spec.capacity / policy.step_max), floor_capacity)
        capacity = min(max(best.capacity, least), spec.capacity)
        if _worst(Bucket(best.tokens, best.period_us, capacity), spec.window_us) <= policy.keep_above * worst_now:
            chosen = TokenBucket(capacity, best.tokens, best.period_us)
            return Judged((chosen,), (now_needs,), held=best.capacity < floor_capacity, buckets=curve)
    capacity = min(max(spec.capacity, floor_capacity), int(spec.capacity * policy.step_max))
    kept = spec if capacity == spec.capacity else replace(spec, capacity=capacity)
    return Judged((kept,), (now_needs,), held=capacity != spec.capacity, buckets=curve)


def _curve(spec: TokenBucket, clients: Sequence[Client], policy: Policy, refused_max: float) -> tuple[Bucket, ...]:
    """For rates around that of now the smallest capacity, headroom included, the slowest rate first."""
    made = []
    for percent in _RATES:
        if not 100 / policy.step_max <= percent <= 100 * policy.step_max:
            continue
        # Whole tokens of the rate as people write it, where they come out whole; else the same rate over a longer period.
        tokens, period_us = spec.tokens * percent, spec.period_us * 100
        needed = _capacity(clients, tokens, period_us, refused_max)
        capacity = round_up(max(1, needed) * policy.headroom)
        # Some numbers are beyond what a bucket takes, and no proposal.
        with contextlib.suppress(ValueError):
            bucket = TokenBucket(capacity, tokens, period_us)
            made.append(Bucket(bucket.tokens, bucket.period_us, capacity))
    return tuple(made)


def _capacity(clients: Sequence[Client], tokens: int, period_us: int, refused_max: float) -> int:
    """The smallest capacity at this rate that refuses clients of at most this weight."""
    left = refused_max * (1 + 1e-12)
    needs = sorted(((capacity_for(client, tokens, period_us), client.weight) for client in clients), reverse=True)
    for capacity, weight in needs:
        left -= weight
        if left < 0:
            return capacity
    return 1


def _worst(bucket: Bucket, window_us: int) -> int:
    """What a bucket admits at most within a window."""
    return bucket.capacity + bucket.tokens * window_us // bucket.period_us


def _least(spec: Spec, minimum: Spec) -> int:
    """The smallest main number that gives a client no less than ``minimum``: at once, and in the long run."""
    if isinstance(minimum, Ban):
        return 1
    rate = _rate(minimum)
    return max(minimum.capacity, -(-rate[0] * spec.window_us // rate[1]))


def _floors(minimum: Spec | None) -> tuple[int, tuple[int, int]]:
    if minimum is None or isinstance(minimum, Ban):
        return 1, (0, 1)
    return minimum.capacity, _rate(minimum)


def _rate(spec: Spec) -> tuple[int, int]:
    """Tokens per microseconds in the long run."""
    if isinstance(spec, TokenBucket | LeakyBucket):
        return spec.tokens, spec.period_us
    return spec.capacity, spec.window_us
