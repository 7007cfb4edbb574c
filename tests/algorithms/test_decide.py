"""The oracle checks the cost and composes the algorithm's own methods."""

import pytest

from sluicegate.algorithms import FixedWindow, Outcome, TokenBucket, decide
from sluicegate.algorithms.decide import check_cost
from sluicegate.bounds import COST_MAX
from sluicegate.errors import InvalidRequest

NOW_US = 1_700_000_000_000_000
SPEC = FixedWindow(5, 60_000_000)


@pytest.mark.parametrize("cost", [-1, -100, 1.0, 1.5, 1e300, float("nan"), "1", None, True, COST_MAX + 1])
def test_a_cost_that_is_no_count_is_refused(cost: object) -> None:
    """A negative, fractional, huge or non-numeric cost is the caller's error, never a grant (P04)."""
    with pytest.raises(InvalidRequest, match=r"^cost: ") as caught:
        decide(SPEC, None, NOW_US, cost)  # type: ignore[arg-type]
    assert caught.value.field == "cost"


def test_largest_cost_is_a_cost() -> None:
    """The ends of the range are accepted; a cost above every capacity never fits."""
    assert check_cost(0) == 0
    assert decide(SPEC, None, NOW_US, COST_MAX)[0].outcome is Outcome.NEVER_FITS


def test_peek_creates_nothing() -> None:
    """A cost of 0 describes a counter that does not exist, and it still does not exist (T10)."""
    verdict, state = decide(SPEC, None, NOW_US, 0)
    assert (verdict.outcome, verdict.remaining, state) == (Outcome.ALLOWED, 5, None)


def test_cost_above_the_capacity_says_never() -> None:
    """It fails at once, with no time to come back at, and leaves the state alone (P09)."""
    bucket = TokenBucket(3, 3, 1_000_000)
    _, state = decide(bucket, None, NOW_US, 1)
    verdict, kept = decide(bucket, state, NOW_US, 5)
    assert (verdict.outcome, verdict.remaining, verdict.retry_after_us) == (Outcome.NEVER_FITS, 2, None)
    assert kept is state


def test_never_fits_leaves_even_a_state_from_the_future() -> None:
    """Only a refusal with a time to come back brings a state to a clock that was set back."""
    state = SPEC.admit(None, NOW_US, 5)
    hour_ago_us = NOW_US - 3_600_000_000
    assert decide(SPEC, state, hour_ago_us, 6)[1] is state
    assert decide(SPEC, state, hour_ago_us, 1)[1] == SPEC.clamp(state, hour_ago_us)  # type: ignore[arg-type]
