"""Deciding a column is deciding its counters one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import TokenBucket
from sluicegate.algorithms.spec import ColumnSpec, State
from sluicegate.algorithms.verdict import Brief
from sluicegate.bounds import CLOCK_BEHIND_US_MAX

NOW_US = 1_700_000_000_000_000


@given(
    capacity=st.integers(1, 1_000),
    tokens=st.integers(1, 1_000),
    period_us=st.sampled_from([1, 7, 1_000, 1_000_000, 60_000_000]),
    ahead=st.lists(
        st.none() | st.integers(-2_000_000, 2 * CLOCK_BEHIND_US_MAX) | st.integers(0, 10_000), min_size=1, max_size=4
    ),
    slots=st.lists(st.integers(0, 3), max_size=8),
    cost=st.integers(1, 1_200),
)
def test_a_column_is_decided_like_its_counters(
    capacity: int, tokens: int, period_us: int, ahead: list[int | None], slots: list[int], cost: int
) -> None:
    """For any states, present, past or from a clock set back, any cost, and counters that come more than once."""
    spec = TokenBucket(capacity, tokens, period_us)
    assert isinstance(spec, ColumnSpec)
    column: list[State | None] = [None if units is None else NOW_US * spec.tokens + units for units in ahead]
    singly = list(column)
    slots = [slot % len(column) for slot in slots]
    expected: list[Brief] = []
    for slot in slots:
        before = singly[slot]
        after = spec.admit(before, NOW_US, cost)
        if after is None and before is not None:
            singly[slot] = spec.clamp(before, NOW_US)
        elif after is not None:
            singly[slot] = after
        verdict = spec.verdict(singly[slot], NOW_US, cost, after is not None)
        wait_us = verdict.retry_after_us if after is None else verdict.reset_after_us
        expected.append((after is not None, verdict.remaining, wait_us))
    assert spec.admit_column(column, slots, cost, NOW_US) == expected
    assert column == singly
