"""A counter over a change of its rule's numbers: keep, scale, reset, with the worked examples of the documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import (
    Ban,
    FixedWindow,
    LeakyBucket,
    OnChange,
    Outcome,
    SlidingLog,
    SlidingWindow,
    Spec,
    State,
    TokenBucket,
    decide,
)

KEEP, SCALE, RESET = OnChange.KEEP, OnChange.SCALE, OnChange.RESET
MINUTE_US = 60_000_000
# The start of a minute.
NOW_US = 1_699_999_980_000_000


def make(kind: str, limit: int) -> Spec:
    """A spec of ``limit`` a minute."""
    specs: dict[str, Spec] = {
        "token_bucket": TokenBucket(limit, limit, MINUTE_US),
        "leaky_bucket": LeakyBucket(limit, limit, MINUTE_US, nodelay=True),
        "fixed_window": FixedWindow(limit, MINUTE_US),
        "sliding_window": SlidingWindow(limit, MINUTE_US),
        "strict": SlidingWindow(limit, MINUTE_US, 6),
        "sliding_log": SlidingLog(limit, MINUTE_US),
    }
    return specs[kind]


KINDS = ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "strict", "sliding_log"]


def remaining(spec: Spec, state: State | None, now_us: int = NOW_US) -> int:
    return decide(spec, state, now_us, 0)[0].remaining


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("used", "old", "new", "how", "left"),
    [
        (40, 100, 200, KEEP, 160),  # 40 used of 100 becomes 40 used of 200: a raised limit helps at once
        (40, 100, 200, SCALE, 120),  # 80 used of 200
        (40, 100, 200, RESET, 200),
        (40, 100, 50, KEEP, 10),
        (40, 100, 50, SCALE, 30),
        (80, 100, 50, KEEP, 0),  # 80 used of 100 becomes 50 used of 50: no more than one new drain
        (80, 100, 50, SCALE, 10),
        (80, 100, 50, RESET, 50),
        (1, 100, 7, SCALE, 6),  # a fraction of a token counts as one
        (0, 100, 50, KEEP, 50),
    ],
)
def test_worked_examples(kind: str, used: int, old: int, new: int, how: OnChange, left: int) -> None:
    """What is used of the old limit, and what is left under the new one."""
    before = make(kind, old)
    state = before.admit(None, NOW_US, used) if used else before.charge_refused(None, NOW_US, old + 1)
    assert state is not None
    assert remaining(make(kind, new), make(kind, new).carry(before, state, NOW_US, how)) == left


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [KEEP, SCALE])
def test_nobody_is_locked_out_longer_than_one_new_drain(kind: str, how: OnChange) -> None:
    """From 10,000 a minute, all used, to 10 a minute: every cost passes within the new recovery time (P27, T103)."""
    old, new = make(kind, 10_000), make(kind, 10)
    state = old.admit(None, NOW_US, 10_000)
    assert state is not None
    carried = new.carry(old, state, NOW_US, how)
    for cost in range(1, 11):
        verdict, _ = decide(new, carried, NOW_US, cost)
        assert verdict.retry_after_us is not None
        assert verdict.retry_after_us <= 2 * MINUTE_US if kind == "sliding_window" else 70_000_000
        assert decide(new, carried, NOW_US + verdict.retry_after_us, cost)[0].outcome is Outcome.ALLOWED


@pytest.mark.parametrize("kind", KINDS)
def test_raised_limit_helps_at_once(kind: str) -> None:
    """A client refused under the old limit passes under the new one at the same moment (P100)."""
    old, new = make(kind, 5), make(kind, 6)
    state = old.admit(None, NOW_US, 5)
    assert state is not None
    assert old.admit(state, NOW_US, 1) is None
    assert new.admit(new.carry(old, state, NOW_US, KEEP), NOW_US, 1) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_another_algorithm_starts_anew(kind: str) -> None:
    """The store never asks for it, and a state that means something else is not read."""
    for other in KINDS:
        if other.replace("strict", "sliding_window") != kind.replace("strict", "sliding_window"):
            state = make(other, 10).admit(None, NOW_US, 10)
            assert state is not None
            assert make(kind, 10).carry(make(other, 10), state, NOW_US, KEEP) is None
    assert make(kind, 10).carry(Ban(), 0, NOW_US, KEEP) is None


def test_forms_of_the_sliding_window_do_not_mix() -> None:
    """Estimate and strict differ in shape: neither reads the other's counts."""
    state = SlidingWindow(10, MINUTE_US).admit(None, NOW_US, 3)
    assert state is not None
    assert SlidingWindow(10, MINUTE_US, 6).carry(SlidingWindow(10, MINUTE_US), state, NOW_US, KEEP) is None


def test_rate_alone_keeps_tokens_not_times() -> None:
    """Forty tokens short at one a second and then at ten a second: still forty short, now back in 4 s."""
    old, new = TokenBucket(100, 1, 1_000_000), TokenBucket(100, 10, 1_000_000)
    state = old.admit(None, NOW_US, 40)
    assert state is not None
    carried = new.carry(old, state, NOW_US, KEEP)
    verdict, _ = decide(new, carried, NOW_US, 0)
    assert (verdict.remaining, verdict.reset_after_us) == (60, 4_000_000)


def test_the_last_fraction_is_rounded_up() -> None:
    """A seventh of a microsecond of a token still due is a whole unit under the new numbers, never nothing."""
    old, new = TokenBucket(10, 7, MINUTE_US), TokenBucket(10, 1, 1_000_000)
    assert new.carry(old, NOW_US * 7 + 1, NOW_US, KEEP) == NOW_US + 1
    assert new.carry(old, NOW_US * 7 + 1, NOW_US, SCALE) == NOW_US + 1
    assert new.carry(old, NOW_US * 7, NOW_US, KEEP) is None


HITS = st.lists(st.tuples(st.integers(0, 30_000_000), st.integers(1, 5)), max_size=20)


@given(st.sampled_from(KINDS), st.integers(1, 20), st.integers(1, 20), HITS, st.sampled_from([KEEP, SCALE]))
def test_carrying_never_gives(
    kind: str, old_limit: int, new_limit: int, hits: list[tuple[int, int]], how: OnChange
) -> None:
    """``keep`` leaves at most the new limit less what was used, ``scale`` at most the same share; equal numbers change nothing."""
    old, new = make(kind, old_limit), make(kind, new_limit)
    state: State | None = None
    now_us = NOW_US
    for delta_us, cost in hits:
        now_us += delta_us
        _, state = decide(old, state, now_us, cost)
    if state is None:
        return
    used = old_limit - remaining(old, state, now_us)
    left = remaining(new, new.carry(old, state, now_us, how), now_us)
    if kind in {"token_bucket", "leaky_bucket"}:
        # A bucket's used part may hold a fraction of a token, which counts as one in ``remaining`` on either side.
        used = max(used - 1, 0)
    if how is KEEP:
        assert 0 <= left <= max(new_limit - used, 0)
    else:
        assert 0 <= left <= new_limit - used * new_limit // old_limit
    same = old.carry(old, state, now_us, how)
    assert remaining(old, same, now_us) == remaining(old, state, now_us)
    assert same is None or old.expires_us(same) == max(old.expires_us(state), now_us) or kind == "leaky_bucket"
