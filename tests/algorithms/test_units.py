"""The short form for one token says what ``admit`` says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import FixedWindow, TokenBucket
from sluicegate.algorithms.spec import UnitSpec
from sluicegate.bounds import CLOCK_BEHIND_US_MAX

NOW_US = 1_700_000_000_000_000
SPECS = [
    TokenBucket(1, 1, 1),
    TokenBucket(5, 5, 60_000_000),
    TokenBucket(50, 7, 60_000_000),
    TokenBucket(100, 1_000_000, 1_000_000),
    TokenBucket(3, 100_000_000, 1_000_000),
    FixedWindow(1, 1_000_000),
    FixedWindow(5, 60_000_000),
    FixedWindow(3, 604_800_000_000),
    FixedWindow(4, 2_592_000_000_000, align="calendar", unit="month"),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@given(
    charges=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20_000_000)), min_size=1, max_size=6),
    step_us=st.integers(-3 * CLOCK_BEHIND_US_MAX, 3 * CLOCK_BEHIND_US_MAX) | st.integers(0, 5_000_000),
)
def test_one_token_is_charged_as_admit_charges_it(
    spec: TokenBucket | FixedWindow, charges: list[tuple[int, int]], step_us: int
) -> None:
    """For any state a counter can be in, at any time after or before it, also by a clock set back."""
    assert isinstance(spec, UnitSpec)
    unit_admit = spec.unit_admit()
    now_us = NOW_US
    state = spec.admit(None, now_us, 1)
    for cost, wait_us in charges:
        now_us += wait_us
        state = spec.admit(state, now_us, cost) or state  # type: ignore[arg-type]
    assert state is not None
    for at_us in (now_us, now_us + step_us):
        assert unit_admit(state, at_us) == spec.admit(state, at_us, 1)  # type: ignore[arg-type]
