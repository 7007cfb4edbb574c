"""A limit in parts is never more than the limit."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.parts import parts_of
from sluicegate.bounds import PERIOD_US_MAX, SPLIT_PART_TOKENS_MIN, SPLIT_PARTS_MAX

CAPACITIES = st.integers(1, 10_000)
WINDOWS = st.integers(1_000, 10**11)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    capacity, window_us = draw(CAPACITIES), draw(WINDOWS)
    made: list[Spec] = [
        TokenBucket(capacity, draw(st.integers(1, 1_000)), draw(st.integers(1, 10**9))),
        FixedWindow(capacity, window_us),
        SlidingWindow(capacity, window_us),
        SlidingWindow(capacity, window_us, 6),
        SlidingLog(capacity, window_us),
    ]
    return draw(st.sampled_from(made))


@given(specs(), st.integers(2, SPLIT_PARTS_MAX), st.integers(1, 50))
def test_the_parts_are_the_whole(spec: Spec, most: int, tokens_min: int) -> None:
    """Capacities add up exactly and differ by at most one, the larger first; rates add up exactly; shapes are the same, so are algorithms."""
    parts = parts_of(spec, most, tokens_min)
    assert len(parts) <= most
    if len(parts) == 1:
        assert parts == (spec,)
        assert spec.capacity < 2 * tokens_min or isinstance(spec, TokenBucket)
        return
    sizes = [part.capacity for part in parts]
    assert sum(sizes) == spec.capacity
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    assert sizes[-1] >= tokens_min
    assert {part.shape for part in parts} == {spec.shape}
    assert {part.algorithm for part in parts} == {spec.algorithm}
    if isinstance(spec, TokenBucket):
        rates = [Fraction(part.tokens, part.period_us) for part in parts if isinstance(part, TokenBucket)]
        assert sum(rates) == Fraction(spec.tokens, spec.period_us)


@given(specs(), st.integers(1, 10**9))
def test_parts_admit_no_more_than_the_whole(spec: Spec, interval_us: int) -> None:
    """The bounds of the parts add up to the bound of the whole at most, for a sliding estimate to one token for each part and window more."""
    parts = parts_of(spec)
    most = sum(part.most_admitted(interval_us) for part in parts)
    if isinstance(spec, SlidingWindow) and spec.sub_windows is None:
        assert most <= 2 * spec.capacity * (interval_us // spec.window_us + 1)
    else:
        assert most <= spec.most_admitted(interval_us)


def test_what_has_no_parts() -> None:
    """A leaky bucket, a ban, a small limit and a rate whose part is too slow to be one stay whole; fewer parts are taken where many are too slow."""
    small = FixedWindow(2 * SPLIT_PART_TOKENS_MIN - 1, 1_000)
    slow = TokenBucket(20, 1, PERIOD_US_MAX // 4)
    for spec in (LeakyBucket(100, 1, 1_000), Ban(), small):
        assert parts_of(spec) == (spec,)
    assert len(parts_of(slow, 10, 2)) == 2
    assert len(parts_of(FixedWindow(10**6, 1_000))) == SPLIT_PARTS_MAX


@pytest.mark.parametrize("capacity", [20, 100, 101, 639, 640, 10**6])
def test_all_processes_have_the_same_parts(capacity: int) -> None:
    """The parts follow from the numbers alone."""
    assert parts_of(TokenBucket(capacity, 7, 60_000_000)) == parts_of(TokenBucket(capacity, 7, 60_000_000))
