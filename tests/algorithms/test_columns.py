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
    charges=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1_200)), max_size=8),
)
def test_a_column_is_decided_like_its_counters(
    capacity: int, tokens: int, period_us: int, ahead: list[int | None], charges: list[tuple[int, int]]
) -> None:
    """For any states, present, past or from a clock set back, any costs, and counters that come more than once."""
    spec = TokenBucket(capacity, tokens, period_us)
    assert isinstance(spec, ColumnSpec)
    column: list[State | None] = [None if units is None else NOW_US * spec.tokens + units for units in ahead]
    singly = list(column)
    charges = [(slot % len(column), cost) for slot, cost in charges]
    expected: list[Brief] = []
    for slot, cost in charges:
        before = singly[slot]
        after = spec.admit(before, NOW_US, cost)
        if after is None and before is not None:
            singly[slot] = spec.clamp(before, NOW_US)
        elif after is not None:
            singly[slot] = after
        verdict = spec.verdict(singly[slot], NOW_US, cost, after is not None)
        wait_us = verdict.retry_after_us if after is None else verdict.reset_after_us
        expected.append((after is not None, verdict.remaining, wait_us))
    assert spec.admit_column(column, [slot for slot, _ in charges], [cost for _, cost in charges], NOW_US) == expected
    assert column == singly
