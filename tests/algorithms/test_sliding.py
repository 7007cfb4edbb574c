"""Sliding windows and the log: step tables, their bounds reached, and cases other limiters got wrong."""

import pytest

from sluicegate.algorithms import FixedWindow, Outcome, SlidingLog, SlidingWindow, Spec, State, decide
from sluicegate.bounds import SLIDING_LOG_LIMIT_MAX
from sluicegate.testing.intervals import busiest
from sluicegate.testing.steps import ALLOWED, DENIED, NEVER_FITS, Step, run_steps

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
START_US = 1_699_999_980_000_000


def greedy(spec: Spec, times_us: range) -> list[tuple[int, int]]:
    """The hits of a caller who takes all there is at each time."""
    state: State | None = None
    hits = []
    for time_us in times_us:
        remaining = decide(spec, state, time_us, 0)[0].remaining
        if remaining:
            state = spec.admit(state, time_us, remaining)
            hits.append((time_us, remaining))
    return hits


def test_estimate_weighs_the_window_before() -> None:
    """Ten a minute, all used: after 15 s of the next minute three quarters of them still count, rounded up."""
    run_steps(
        SlidingWindow(10, MINUTE_US),
        [
            Step(0, 10, ALLOWED, remaining=0, reset_after_us=MINUTE_US),
            Step(30 * SECOND_US, 1, DENIED, remaining=0, retry_after_us=36 * SECOND_US),
            Step(66 * SECOND_US, 1, ALLOWED, remaining=0, reset_after_us=54 * SECOND_US),
            Step(75 * SECOND_US, 0, ALLOWED, remaining=1),
            Step(75 * SECOND_US, 2, DENIED, remaining=1, retry_after_us=3 * SECOND_US),
            Step(119_999_999, 0, ALLOWED, remaining=8),
            Step(2 * MINUTE_US, 0, ALLOWED, remaining=9),
            Step(2 * MINUTE_US, 11, NEVER_FITS, remaining=9),
            Step(3 * MINUTE_US, 0, ALLOWED, remaining=10),
        ],
        start_us=START_US,
    )


def test_strict_counts_the_oldest_whole() -> None:
    """Six a minute in six sub-windows: a token leaves 60 to 70 s after it came, never earlier."""
    run_steps(
        SlidingWindow(6, MINUTE_US, 6),
        [
            Step(9_999_999, 4, ALLOWED, remaining=2, reset_after_us=60_000_001),
            Step(10_000_000, 2, ALLOWED, remaining=0, reset_after_us=70_000_000),
            Step(40_000_000, 1, DENIED, remaining=0, retry_after_us=30_000_000),
            Step(40_000_000, 5, DENIED, remaining=0, retry_after_us=40_000_000),
            Step(69_999_999, 1, DENIED, retry_after_us=1),
            Step(70_000_000, 4, ALLOWED, remaining=0),
            Step(80_000_000, 0, ALLOWED, remaining=2),
        ],
        start_us=START_US,
    )


def test_log_forgets_each_token_after_a_window() -> None:
    """Every token counts for exactly a minute; equal times are separate tokens."""
    state = run_steps(
        SlidingLog(3, MINUTE_US),
        [
            Step(0, 1, ALLOWED, remaining=2, reset_after_us=MINUTE_US),
            Step(0, 1, ALLOWED, remaining=1),
            Step(20 * SECOND_US, 1, ALLOWED, remaining=0, reset_after_us=MINUTE_US),
            Step(30 * SECOND_US, 1, DENIED, remaining=0, retry_after_us=30 * SECOND_US),
            Step(30 * SECOND_US, 3, DENIED, remaining=0, retry_after_us=50 * SECOND_US),
            Step(MINUTE_US, 3, DENIED, remaining=2, retry_after_us=20 * SECOND_US),
            Step(MINUTE_US, 2, ALLOWED, remaining=0),
            Step(80 * SECOND_US, 1, ALLOWED, remaining=0),
        ],
        start_us=START_US,
    )
    assert state == (3, START_US + MINUTE_US, 2, START_US + 80 * SECOND_US, 1)


def test_log_takes_a_whole_limit_in_one_entry() -> None:
    """A cost is one entry, whatever its size, and a refused one leaves the log alone (P02, P06)."""
    spec = SlidingLog(SLIDING_LOG_LIMIT_MAX, MINUTE_US)
    state = run_steps(spec, [Step(0, SLIDING_LOG_LIMIT_MAX, ALLOWED, remaining=0), Step(1, 100, DENIED)])
    assert state is not None
    assert len(state) == 3


def test_log_above_the_cap_is_refused() -> None:
    """A log that would take too much memory is an error that names the limit and the way out."""
    with pytest.raises(ValueError, match=r"limit: .* at most 10000 tokens, got 10001; a strict sliding_window"):
        SlidingLog(SLIDING_LOG_LIMIT_MAX + 1, MINUTE_US)


@pytest.mark.parametrize(
    "spec", [SlidingWindow(3, 40), SlidingWindow(3, 40, 6), SlidingWindow(3, 40, 1), SlidingLog(3, 40)]
)
def test_bounds_of_one_window(spec: SlidingWindow | SlidingLog) -> None:
    """Whenever a greedy caller begins, no window holds more than the bound, and strict forms hold exactly the limit."""
    most = max(busiest(greedy(spec, range(START_US + first, START_US + 400)), 40) for first in range(40))
    strict = isinstance(spec, SlidingLog) or spec.sub_windows is not None
    assert most <= spec.most_admitted(40)
    assert most == 3 if strict else 3 < most < 6
    assert spec.most_admitted(40) == (3 if strict else 5)


def test_bounds_are_reached() -> None:
    """Logs, strict and fixed windows reach ``most_admitted`` of every length for some start of a greedy caller."""
    for spec in (SlidingLog(3, 7), SlidingWindow(2, 12, 3), FixedWindow(2, 5)):
        for length_us in range(1, 40):
            starts = range(2 * spec.window_us)
            most = max(busiest(greedy(spec, range(START_US + s, START_US + s + 60)), length_us) for s in starts)
            assert most == spec.most_admitted(length_us), (spec, length_us)


def test_estimate_bound_is_reached_within_a_window() -> None:
    """Up to a window's length the estimate's bound is exact too."""
    spec = SlidingWindow(7, 20)
    for length_us in range(1, 21):
        best = 0
        for first_us in range(20):
            state = spec.admit(None, START_US + first_us, 7)
            second_us = START_US + first_us + length_us - 1
            best = max(best, 7 + decide(spec, state, second_us, 0)[0].remaining if length_us > 1 else 7)
        assert best == spec.most_admitted(length_us)


def test_sustained_load_stays_at_the_limit() -> None:
    """At 1.6 times the limit for an hour, 9 to 10 a minute pass, the share being rounded up, and no edge shows (T31)."""
    spec = SlidingWindow(10, MINUTE_US)
    state: State | None = None
    hits = []
    for time_us in range(START_US, START_US + HOUR_US, 3_750_000):
        verdict, state = decide(spec, state, time_us, 1)
        hits.append((time_us, int(verdict.outcome is Outcome.ALLOWED)))
    assert 9 * 60 <= sum(count for _, count in hits) <= 10 * 60
    assert busiest(hits, MINUTE_US) <= 10


@pytest.mark.parametrize("sub_windows", [1, 2, 6, 60])
def test_strict_sustains_its_share(sub_windows: int) -> None:
    """A caller who takes all there is gets k / (k + 1) of the limit in the long run."""
    spec = SlidingWindow(60, MINUTE_US, sub_windows)
    hits = greedy(spec, range(START_US, START_US + 10 * HOUR_US, 250_000))
    share = sum(count for _, count in hits) / (60 * 600)
    assert share == pytest.approx(sub_windows / (sub_windows + 1), rel=0.01)


@pytest.mark.parametrize(
    "spec", [SlidingWindow(3, MINUTE_US), SlidingWindow(3, MINUTE_US, 6), SlidingLog(3, MINUTE_US)]
)
def test_clock_set_back_an_hour(spec: Spec) -> None:
    """What was used counts as of now and is gone two windows later at the latest (P33)."""
    run_steps(
        spec,
        [
            Step(0, 3, ALLOWED, remaining=0),
            Step(-HOUR_US, 1, DENIED, remaining=0),
            Step(-HOUR_US + 2 * MINUTE_US, 3, ALLOWED, remaining=0),
        ],
        start_us=START_US,
    )


@pytest.mark.parametrize(
    "spec", [SlidingWindow(3, MINUTE_US), SlidingWindow(3, MINUTE_US, 6), SlidingLog(3, MINUTE_US)]
)
def test_two_clocks_in_turns_do_not_refill(spec: Spec) -> None:
    """Nodes whose clocks differ by up to 10 s, asking in turns over an edge, share one limit (T58)."""
    turns = [step for _ in range(10) for step in (Step(-10 * SECOND_US, 1, DENIED), Step(SECOND_US, 1, DENIED))]
    run_steps(spec, [Step(0, 2, ALLOWED), Step(-10 * SECOND_US, 1, ALLOWED, remaining=0), *turns], start_us=START_US)


@pytest.mark.parametrize(
    "spec", [SlidingWindow(5, MINUTE_US), SlidingWindow(5, MINUTE_US, 6), SlidingLog(5, MINUTE_US)]
)
def test_hammering_that_counts_keeps_out(spec: Spec) -> None:
    """Where refused hits count, an attempt a second for ten minutes admits five in all (P11)."""
    state: State | None = None
    passed = 0
    for time_us in range(START_US, START_US + 10 * MINUTE_US, SECOND_US):
        after = spec.admit(state, time_us, 1)
        passed += after is not None
        state = spec.charge_refused(state, time_us, 1) if after is None else after
    assert passed == 5
    end_us = START_US + 10 * MINUTE_US - SECOND_US
    assert decide(spec, state, end_us + 70 * SECOND_US, 4)[0].outcome is Outcome.ALLOWED


@pytest.mark.parametrize("window_us", [1, 2, 3, 5, 7, 12])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_estimate_wait_is_minimal_from_every_state(window_us: int, limit: int) -> None:
    """Every pair of counts, at every moment of their window and shortly before it, for every cost."""
    spec = SlidingWindow(limit, window_us)
    start_us = START_US - START_US % window_us
    moments = range(start_us - 2, start_us + 3 * window_us + 1)
    for current in range(limit + 1):
        for previous in range(limit + 1):
            state = (start_us, current, previous)
            for cost in range(1, limit + 1):
                passes = [spec.admit(state, moment, cost) is not None for moment in moments]
                assert passes == sorted(passes), "once a cost passes, it passes for good"
                for index, moment in enumerate(moments[: window_us + 2]):
                    verdict, _ = decide(spec, state, moment, cost)
                    assert verdict.retry_after_us == max(passes.index(True) - index, 0), (state, moment, cost)


def test_strict_takes_what_lies_ahead_into_the_present() -> None:
    """Set back by 25 s, the three sub-windows ahead count as now's; the older ones keep their own times."""
    spec = SlidingWindow(30, MINUTE_US, 6)
    number = START_US // (10 * SECOND_US)
    assert spec.clamp((number, 1, 2, 3, 4, 5, 6, 7), START_US - 25 * SECOND_US) == (number - 3, 10, 5, 6, 7, 0, 0, 0)
    assert spec.clamp((number, 1, 2, 3, 4, 5, 6, 7), START_US - HOUR_US) == (number - 360, 28, 0, 0, 0, 0, 0, 0)


def test_counted_refusal_replaces_the_oldest_entries() -> None:
    """The log stays at its limit and keeps no empty entry."""
    spec, state = SlidingLog(3, MINUTE_US), (3, START_US, 1, START_US + 5, 2)
    assert spec.charge_refused(state, START_US + 9, 1) == (3, START_US + 5, 2, START_US + 9, 1)
    assert spec.charge_refused(state, START_US + 9, 2) == (3, START_US + 5, 1, START_US + 9, 2)
    assert spec.charge_refused(state, START_US + 9, 3) == (3, START_US + 9, 3)


def test_log_takes_later_entries_to_now() -> None:
    """Set back by an hour, entries from then on are one entry of now; earlier ones keep their times."""
    past_us = START_US - HOUR_US
    state = (10, past_us - 5, 1, past_us, 2, START_US - 7, 3, START_US, 4)
    assert SlidingLog(10, MINUTE_US).clamp(state, past_us) == (10, past_us - 5, 1, past_us, 9)


def test_estimate_stands_still_until_the_clock_has_caught_up() -> None:
    """Before its window begins, a state answers as at its beginning."""
    spec = SlidingWindow(10, MINUTE_US)
    state = (START_US, 2, 6)
    for behind_us in (0, 1, SECOND_US, 10 * SECOND_US):
        assert decide(spec, state, START_US - behind_us, 0)[0].remaining == 2
        assert decide(spec, state, START_US - behind_us, 2)[1] == (START_US, 4, 6)


def test_estimate_bound_with_a_limit_of_one() -> None:
    """Every other window may be full where each follows an empty one: in three windows of 1 us, two hits."""
    spec = SlidingWindow(1, 1)
    assert greedy(spec, range(START_US, START_US + 5)) == [(START_US + at, 1) for at in (0, 2, 4)]
    assert [spec.most_admitted(length) for length in range(6)] == [0, 1, 1, 2, 2, 3]
