"""Limits times a factor."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.scaled import scaled_spec
from sluicegate.bounds import CAPACITY_MAX, DRAIN_US_MAX, PERIOD_US_MAX, SLIDING_LOG_LIMIT_MAX, TOKENS_MAX

S = 1_000_000
FACTORS = st.integers(1, 1_000_000)


def rate(spec: Any) -> Fraction:
    return Fraction(spec.tokens, spec.period_us)


@pytest.mark.parametrize(
    "spec, wanted",
    [
        (TokenBucket(10, 10, 60 * S), TokenBucket(25, 25, 60 * S)),
        (TokenBucket(7, 1, S), TokenBucket(17, 5, 2 * S)),
        (LeakyBucket(4, 2, S, 500_000, True), LeakyBucket(10, 5, S, 500_000, True)),
        (FixedWindow(3, 86_400 * S, "calendar", "Europe/Berlin", "day"),
         FixedWindow(7, 86_400 * S, "calendar", "Europe/Berlin", "day")),
        (SlidingWindow(3, 60 * S, sub_windows=6), SlidingWindow(7, 60 * S, sub_windows=6)),
        (SlidingLog(3, 60 * S), SlidingLog(7, 60 * S)),
        (Ban(), Ban()),
    ],
)  # fmt: skip
def test_capacity_and_rate_are_both_multiplied(spec: Any, wanted: Any) -> None:
    """Two and a half times a limit: capacity rounded down, rate exact, and everything else as it was, so the counter stays."""
    scaled = scaled_spec(spec, 5, 2)
    assert scaled == wanted
    assert (scaled.shape, scaled.algorithm) == (spec.shape, spec.algorithm)


@settings(max_examples=500, deadline=None)
@given(
    st.integers(1, CAPACITY_MAX), st.integers(1, TOKENS_MAX), st.integers(1, PERIOD_US_MAX), FACTORS, FACTORS,
    st.sampled_from([TokenBucket, LeakyBucket]),
)  # fmt: skip
def test_a_bucket_never_gets_more_than_the_factor_says(
    capacity: int, tokens: int, period_us: int, numerator: int, denominator: int, kind: Any
) -> None:
    """For every bucket and factor the result is a bucket, not below 1, and not above the factor but for the slowest rates there are."""
    try:
        spec = kind(capacity, tokens, period_us)
    except ValueError:
        return
    factor = Fraction(numerator, denominator)
    scaled = scaled_spec(spec, numerator, denominator)
    assert scaled.capacity == max(1, min(CAPACITY_MAX, int(capacity * factor)))
    exact = rate(spec) * factor
    slowest = max(Fraction(1, PERIOD_US_MAX), Fraction(scaled.capacity, DRAIN_US_MAX))
    if exact.numerator <= TOKENS_MAX and exact.denominator <= PERIOD_US_MAX and exact >= slowest:
        assert rate(scaled) == exact
    elif exact >= 2 * slowest:
        assert rate(scaled) <= exact
        assert rate(scaled) >= exact * Fraction(1, 2) or rate(scaled) >= Fraction(TOKENS_MAX, 2)
    else:
        assert rate(scaled) <= 2 * slowest * Fraction(DRAIN_US_MAX, DRAIN_US_MAX - scaled.capacity)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, SLIDING_LOG_LIMIT_MAX), FACTORS, FACTORS)
def test_a_window_never_gets_more_than_the_factor_says(limit: int, numerator: int, denominator: int) -> None:
    """A window's limit is the factor's, rounded down, at least 1 and at most what the algorithm can hold."""
    wanted = max(1, limit * numerator // denominator)
    assert scaled_spec(SlidingWindow(limit, S), numerator, denominator).capacity == min(CAPACITY_MAX, wanted)
    assert scaled_spec(FixedWindow(limit, S), numerator, denominator).capacity == min(CAPACITY_MAX, wanted)
    assert scaled_spec(SlidingLog(limit, S), numerator, denominator).capacity == min(SLIDING_LOG_LIMIT_MAX, wanted)


def test_a_factor_of_one_is_the_limit_itself() -> None:
    """Nothing is made anew for 3/3."""
    spec = TokenBucket(10, 10, 60 * S)
    assert scaled_spec(spec, 3, 3) is spec
