"""Refunds by receipt: only what time has not given back, only where it was taken."""

import pytest

from sluicegate.algorithms import FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket, decide

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
NOW_US = 1_699_999_980_000_000


def remaining(spec: Spec, state: object, now_us: int) -> int:
    return decide(spec, state, now_us, 0)[0].remaining


@pytest.mark.parametrize(("after_s", "given"), [(0, 5), (2, 3), (4, 1), (5, 0), (60, 0)])
def test_bucket_gives_back_what_the_rate_has_not(after_s: int, given: int) -> None:
    """At one token a second, a charge of 5 refunded after t seconds gives back max(0, 5 - t)."""
    spec = TokenBucket(100, 1, SECOND_US)
    state = spec.admit(None, NOW_US - 50 * SECOND_US, 100)
    state = spec.admit(state, NOW_US, 5)
    assert state is not None
    now_us = NOW_US + after_s * SECOND_US
    before = remaining(spec, state, now_us)
    refunded = spec.refund(state, now_us, 5, NOW_US)
    assert remaining(spec, refunded, now_us) - before == given
    assert (refunded is state) == (given == 0)


def test_bucket_refund_never_overfills() -> None:
    """A refund of a charge that a reset has forgotten leaves a full bucket full (T12)."""
    spec = TokenBucket(10, 1, SECOND_US)
    state = spec.admit(None, NOW_US, 1)
    assert state is not None
    refunded = spec.refund(state, NOW_US, 8, NOW_US)
    assert remaining(spec, refunded, NOW_US) == 10
    assert remaining(spec, spec.admit(refunded, NOW_US, 10), NOW_US) == 0


def test_bucket_refund_counts_no_time_when_the_clock_is_behind() -> None:
    """A clock behind the charge gives back the whole cost and no more."""
    spec = TokenBucket(10, 1, SECOND_US)
    state = spec.admit(spec.admit(None, NOW_US, 5), NOW_US, 5)
    assert state is not None
    assert spec.refund(state, NOW_US - SECOND_US, 5, NOW_US) == spec.admit(None, NOW_US, 5)


@pytest.mark.parametrize(
    "spec", [FixedWindow(10, MINUTE_US), SlidingWindow(10, MINUTE_US), SlidingWindow(10, MINUTE_US, 6)]
)
def test_windows_give_back_in_the_window_of_the_charge(spec: Spec) -> None:
    """Within its window a charge is given back whole; of a window that no longer counts, nothing is."""
    state = spec.admit(None, NOW_US, 6)
    assert state is not None
    later_us = NOW_US + 30 * SECOND_US
    assert remaining(spec, spec.refund(state, later_us, 6, NOW_US), later_us) == 10
    for stale_us in (NOW_US + 3 * MINUTE_US, NOW_US + 100 * MINUTE_US):
        assert spec.refund(state, stale_us, 6, NOW_US) is state


def test_fixed_window_does_not_refund_into_the_next() -> None:
    """A charge of the last window gives nothing back in this one."""
    spec = FixedWindow(10, MINUTE_US)
    state = spec.admit(spec.admit(None, NOW_US - 1, 6), NOW_US, 2)
    assert state is not None
    assert spec.refund(state, NOW_US, 6, NOW_US - 1) is state


def test_sliding_windows_refund_into_the_counts_they_still_hold() -> None:
    """The window before this one is still counted in part, so a refund lowers that part."""
    estimate = SlidingWindow(10, MINUTE_US)
    state = estimate.admit(estimate.admit(None, NOW_US - SECOND_US, 6), NOW_US, 1)
    assert state == (NOW_US, 1, 6)
    assert estimate.refund(state, NOW_US, 6, NOW_US - SECOND_US) == (NOW_US, 1, 0)
    assert estimate.refund(state, NOW_US, 1, NOW_US) == (NOW_US, 0, 6)
    assert estimate.refund(state, NOW_US, 6, NOW_US - 2 * MINUTE_US) is state
    strict = SlidingWindow(10, MINUTE_US, 2)
    state = strict.admit(strict.admit(None, NOW_US - SECOND_US, 6), NOW_US, 1)
    assert state == (NOW_US // 30_000_000, 1, 6, 0)
    assert strict.refund(state, NOW_US, 6, NOW_US - SECOND_US) == (NOW_US // 30_000_000, 1, 0, 0)
    assert strict.refund(state, NOW_US, 6, NOW_US - 2 * MINUTE_US) is state


def test_log_refunds_its_entry() -> None:
    """Only the entry of the charge's time gives back, and it goes when it is empty."""
    spec = SlidingLog(10, MINUTE_US)
    state = spec.admit(spec.admit(spec.admit(None, NOW_US, 2), NOW_US, 1), NOW_US + 5, 4)
    assert state == (7, NOW_US, 3, NOW_US + 5, 4)
    assert spec.refund(state, NOW_US + 9, 2, NOW_US) == (5, NOW_US, 1, NOW_US + 5, 4)
    assert spec.refund(state, NOW_US + 9, 3, NOW_US) == (4, NOW_US + 5, 4)
    assert spec.refund(state, NOW_US + 9, 4, NOW_US + 5) == (3, NOW_US, 3)
    for unknown_us in (NOW_US - 1, NOW_US + 3, NOW_US + 6):
        assert spec.refund(state, NOW_US + 9, 1, unknown_us) is state
    assert spec.refund(state, NOW_US + MINUTE_US, 3, NOW_US) is state
    emptied = spec.refund(spec.refund(state, NOW_US, 3, NOW_US), NOW_US, 4, NOW_US + 5)
    assert emptied == (0,)
    assert remaining(spec, emptied, NOW_US) == 10
    assert spec.admit(emptied, NOW_US, 10) == (10, NOW_US, 10)
