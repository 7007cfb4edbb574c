"""Bulk descriptions say exactly what verdicts say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import TokenBucket
from sluicegate.bounds import CLOCK_BEHIND_US_MAX

NOW_US = 1_700_000_000_000_000


@given(
    capacity=st.integers(1, 1_000),
    tokens=st.integers(1, 1_000),
    period_us=st.sampled_from([1, 7, 1_000, 1_000_000, 60_000_000]),
    cases=st.lists(
        st.tuples(st.none() | st.integers(-2_000_000, 2 * CLOCK_BEHIND_US_MAX), st.integers(1, 1_200)), max_size=6
    ),
)
def test_briefs_are_verdicts(capacity: int, tokens: int, period_us: int, cases: list[tuple[int | None, int]]) -> None:
    """For any state, present, past or from a clock set back, and any cost, admitted or refused."""
    spec = TokenBucket(capacity, tokens, period_us)
    singles: list[tuple[bool, int | None]] = []
    costs: list[int] = []
    expected: list[tuple[int, int | None]] = []
    for ahead_us, cost in cases:
        before = None if ahead_us is None else NOW_US * spec.tokens + ahead_us
        after = spec.admit(before, NOW_US, cost)
        state = before if after is None else after
        verdict = spec.verdict(state, NOW_US, cost, after is not None)
        singles.append((after is not None, state))
        costs.append(cost)
        expected.append((verdict.remaining, verdict.retry_after_us if after is None else verdict.reset_after_us))
    assert spec.briefs(singles, costs, NOW_US) == expected
