"""Grants: what an operator gives back, whoever used it."""

import pytest

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket, decide

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
NOW_US = 1_699_999_980_000_000

SPECS = [
    TokenBucket(100, 100, MINUTE_US),
    TokenBucket(100, 7, MINUTE_US),
    LeakyBucket(100, 7, MINUTE_US, nodelay=True),
    FixedWindow(100, MINUTE_US),
    SlidingWindow(100, MINUTE_US),
    SlidingWindow(100, MINUTE_US, 6),
    SlidingLog(100, MINUTE_US),
]


def remaining(spec: Spec, state: object, now_us: int) -> int:
    return decide(spec, state, now_us, 0)[0].remaining


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize(("tokens", "given"), [(1, 1), (10, 10), (30, 30), (50, 30), (10**12, 30)])
def test_gives_back_what_is_used(spec: Spec, tokens: int, given: int) -> None:
    """Of 30 used of 100, so many are given back as were asked for, and never more than 30."""
    state = spec.admit(spec.admit(None, NOW_US, 20), NOW_US, 10)
    assert state is not None
    after, found = spec.grant(state, NOW_US, tokens)
    assert found == given
    assert remaining(spec, after, NOW_US) - remaining(spec, state, NOW_US) == given


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_gives_nothing_where_nothing_is_used(spec: Spec) -> None:
    """A counter that has recovered is left as it is."""
    state = spec.admit(None, NOW_US, 30)
    assert state is not None
    later_us = NOW_US + 1_000 * MINUTE_US
    assert spec.grant(state, later_us, 5) == (state, 0)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_never_gives_more_than_a_counter_can_hold(spec: Spec) -> None:
    """A state from before the clock was set back a little is given back at most one capacity."""
    state = spec.admit(None, NOW_US, 100)
    assert state is not None
    _, given = spec.grant(state, NOW_US - 5 * SECOND_US, 10**12)
    assert 0 < given <= 100


def test_a_part_of_a_token_counts_as_one() -> None:
    """A bucket with half a token used says that it gives back one, and is full to the microsecond."""
    spec = TokenBucket(10, 1, SECOND_US)
    state = spec.admit(None, NOW_US, 1)
    assert state is not None
    now_us = NOW_US + SECOND_US // 2
    after, given = spec.grant(state, now_us, 1)
    assert given == 1
    assert spec.admit(after, now_us, 10) is not None


def test_the_newest_hits_go_first() -> None:
    """Of a log the newest hits are given back, so that what stays leaves the window as soon as before."""
    spec = SlidingLog(10, MINUTE_US)
    state = spec.admit(spec.admit(None, NOW_US, 4), NOW_US + SECOND_US, 4)
    assert state is not None
    after, given = spec.grant(state, NOW_US + 2 * SECOND_US, 5)
    assert given == 5
    assert after == (3, NOW_US, 3)


def test_the_share_of_the_window_before_is_given_back_exactly() -> None:
    """Half way into a window, 40 of the window before count 20; a grant of 7 leaves 13 of them."""
    spec = SlidingWindow(100, MINUTE_US)
    state = spec.admit(None, NOW_US, 40)
    now_us = NOW_US - NOW_US % MINUTE_US + MINUTE_US + MINUTE_US // 2
    state = spec.admit(state, now_us, 5)
    assert state is not None
    after, given = spec.grant(state, now_us, 12)
    assert given == 12
    assert remaining(spec, after, now_us) == 87


def test_a_queue_is_shortened_and_no_slot_is_given_twice() -> None:
    """After a grant from a queue the last charge cannot be refunded too."""
    spec = LeakyBucket(10, 1, SECOND_US, max_delay_us=10 * SECOND_US)
    state = spec.admit(spec.admit(None, NOW_US, 3), NOW_US + 1, 3)
    assert state is not None
    after, given = spec.grant(state, NOW_US + 1, 2)
    assert given == 2
    assert decide(spec, after, NOW_US + 1, 1)[0].delay_us == 4 * SECOND_US - 1
    assert spec.refund(after, NOW_US + 1, 3, NOW_US + 1) == after


def test_a_ban_has_nothing_to_give() -> None:
    """A limit of zero stays one."""
    assert Ban().grant(0, NOW_US, 5) == (0, 0)
