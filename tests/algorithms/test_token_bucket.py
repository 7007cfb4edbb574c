"""Token bucket: step tables, exact rates, and cases other limiters got wrong."""

import pytest

from sluicegate.algorithms import OnChange, Outcome, State, TokenBucket, decide
from sluicegate.testing.steps import ALLOWED, DENIED, NEVER_FITS, Step, run_steps

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
START_US = 1_700_000_000_000_000


def admitted(spec: TokenBucket, times_us: range, cost: int = 1) -> int:
    """How many requests pass, one at each time."""
    state: State | None = None
    count = 0
    for time_us in times_us:
        verdict, state = decide(spec, state, START_US + time_us, cost)
        count += verdict.outcome is Outcome.ALLOWED
    return count


def test_burst_then_rate() -> None:
    """The capacity passes at once; after that a token comes back every period / tokens."""
    run_steps(
        TokenBucket(3, 1, SECOND_US),
        [
            Step(0, 0, ALLOWED, remaining=3, reset_after_us=0),
            Step(0, 1, ALLOWED, remaining=2, reset_after_us=1_000_000),
            Step(0, 2, ALLOWED, remaining=0, reset_after_us=3_000_000),
            Step(0, 1, DENIED, remaining=0, retry_after_us=1_000_000, reset_after_us=1_000_000),
            Step(999_999, 1, DENIED, remaining=0, retry_after_us=1),
            Step(1_000_000, 1, ALLOWED, remaining=0),
            Step(3_500_000, 0, ALLOWED, remaining=2, reset_after_us=500_000),
            Step(3_500_000, 3, DENIED, remaining=2, retry_after_us=500_000),
            Step(3_500_000, 4, NEVER_FITS, remaining=2, reset_after_us=0),
            Step(4_000_000, 3, ALLOWED, remaining=0),
        ],
    )


def test_reset_of_the_decision_api_example() -> None:
    """13 tokens short at 10 a second are 1,300 ms from full."""
    run_steps(TokenBucket(100, 10, SECOND_US), [Step(0, 13, ALLOWED, remaining=87, reset_after_us=1_300_000)])


def test_seven_a_minute_is_exact() -> None:
    """A token of 60/7 seconds is not whole microseconds; after a million of them nothing is lost or gained."""
    spec = TokenBucket(7, 7, MINUTE_US)
    assert admitted(spec, range(0, 1_000 * MINUTE_US, MINUTE_US), cost=7) == 1_000
    assert admitted(spec, range(0, 1_000 * (MINUTE_US - 1), MINUTE_US - 1), cost=7) == 500
    run_steps(
        spec,
        [
            Step(0, 7, ALLOWED, remaining=0),
            Step(0, 1, DENIED, retry_after_us=8_571_429),
            Step(8_571_428, 1, DENIED, retry_after_us=1),
            Step(8_571_429, 1, ALLOWED, remaining=0),
        ],
    )


@pytest.mark.parametrize("tokens", [2_000, 8_000, 700_000, 1_000_000, 100_000_000])
def test_high_rates_limit(tokens: int) -> None:
    """Thousands to a hundred million a second work, also where a token takes less than a microsecond (T62)."""
    spec = TokenBucket(tokens, tokens, SECOND_US)
    state = run_steps(
        spec,
        [
            Step(0, tokens, ALLOWED, remaining=0, reset_after_us=SECOND_US),
            Step(
                0,
                1,
                DENIED,
                retry_after_us=max(SECOND_US // tokens, 1) + (SECOND_US % tokens > 0 < SECOND_US // tokens),
            ),
            Step(500_000, tokens // 2, ALLOWED, remaining=0),
            Step(500_000, 1, DENIED),
        ],
    )
    assert state is not None


def test_six_thousand_a_second_still_limits() -> None:
    """Capacity 6000 at 6000/s counts each hit and never shows more than its capacity (T37)."""
    run_steps(TokenBucket(6_000, 6_000, SECOND_US), [Step(0, 1, ALLOWED, remaining=6_000 - n) for n in range(1, 6_001)])
    run_steps(TokenBucket(1_000, 1_000, MINUTE_US), [Step(0, 1, ALLOWED, remaining=1_000 - n) for n in range(1, 1_001)])


def test_ten_a_minute_asked_every_five_seconds() -> None:
    """An hour of one request every 5 s admits the burst and every token since: 609 or 610, not 365 (P13)."""
    assert admitted(TokenBucket(10, 10, MINUTE_US), range(0, HOUR_US, 5 * SECOND_US)) in {609, 610}


def test_denied_probes_leave_the_tokens() -> None:
    """Of 10 tokens, 7 taken: however often 7 more are refused, 3 are left and the wait does not grow (P07)."""
    refusals = [Step(0, 7, DENIED, remaining=3, retry_after_us=4 * SECOND_US)] * 20
    run_steps(TokenBucket(10, 1, SECOND_US), [Step(0, 7, ALLOWED, remaining=3), *refusals, Step(0, 3, ALLOWED)])


def test_a_large_cost_is_one_step() -> None:
    """A cost of a million is decided like a cost of 1, and the state is one number (P06)."""
    state = run_steps(
        TokenBucket(1_000_000, 1_000_000, 30 * 86_400 * SECOND_US),
        [
            Step(0, 1_000_000, ALLOWED, remaining=0, reset_after_us=30 * 86_400 * SECOND_US),
            Step(0, 1_000_000, DENIED, retry_after_us=30 * 86_400 * SECOND_US),
            Step(0, 1, DENIED, retry_after_us=2_592_000),
        ],
    )
    assert type(state) is int


def test_idle_half_a_day_is_full_and_no_more() -> None:
    """After 12 h at a large rate the bucket holds its capacity (T61)."""
    run_steps(
        TokenBucket(10**9, 10**8, SECOND_US),
        [
            Step(0, 10**9, ALLOWED, remaining=0),
            Step(12 * HOUR_US, 0, ALLOWED, remaining=10**9, reset_after_us=0),
            Step(12 * HOUR_US, 10**9, ALLOWED, remaining=0),
            Step(12 * HOUR_US, 1, DENIED, remaining=0, retry_after_us=1),
        ],
    )


def test_no_double_burst_around_a_second() -> None:
    """1000/s refills by the microsecond, so two bursts 2 ms apart over a second's edge get 1,002, not 2,000 (P30)."""
    spec = TokenBucket(1_000, 1_000, SECOND_US)
    run_steps(
        spec,
        [
            Step(999_000, 1_000, ALLOWED, remaining=0),
            Step(1_001_000, 0, ALLOWED, remaining=2),
            Step(1_001_000, 3, DENIED, retry_after_us=1_000),
        ],
    )


def test_one_a_minute_is_remembered_to_the_last_second() -> None:
    """Capacity 1, one token a minute: 31 s after a hit the wait is 29 s, and the state has not expired (P38)."""
    spec = TokenBucket(1, 1, MINUTE_US)
    state = run_steps(
        spec,
        [Step(0, 1, ALLOWED, remaining=0), Step(31 * SECOND_US, 1, DENIED, retry_after_us=29 * SECOND_US)],
    )
    assert state is not None
    assert spec.expires_us(state) == START_US + MINUTE_US


@pytest.mark.parametrize("behind_s", range(1, 11))
def test_a_clock_behind_does_not_refill(behind_s: int) -> None:
    """A node 1 to 10 s behind finds the bucket empty, and the one ahead finds no refill after it: 4 pass, not 8 (T58)."""
    for period_s in (1, 10):
        turns = [
            Step(-behind_s * SECOND_US, 1, DENIED, remaining=0, retry_after_us=(behind_s + period_s) * SECOND_US),
            Step(0, 1, DENIED, remaining=0, retry_after_us=period_s * SECOND_US),
        ]
        run_steps(TokenBucket(4, 1, period_s * SECOND_US), [Step(0, 4, ALLOWED, remaining=0), *turns * 5])


def test_a_clock_set_back_an_hour_locks_for_one_drain() -> None:
    """The first refusal after the step brings the state to now: recovery takes one drain, not an hour (P33)."""
    run_steps(
        TokenBucket(10, 1, SECOND_US),
        [
            Step(0, 10, ALLOWED, remaining=0),
            Step(-HOUR_US, 1, DENIED, remaining=0, retry_after_us=SECOND_US),
            Step(-HOUR_US + SECOND_US - 1, 1, DENIED, retry_after_us=1),
            Step(-HOUR_US + SECOND_US, 1, ALLOWED, remaining=0),
            Step(-HOUR_US + 11 * SECOND_US, 0, ALLOWED, remaining=10),
        ],
    )


def test_lowered_rate_gives_a_wait_of_the_new_rule() -> None:
    """After carrying a full old bucket into a smaller one, a refusal has a finite wait by the new numbers (P27)."""
    old, new = TokenBucket(100, 100, MINUTE_US), TokenBucket(10, 10, MINUTE_US)
    state = run_steps(old, [Step(0, 100, ALLOWED)])
    assert state is not None
    carried = new.carry(old, state, START_US, OnChange.KEEP)
    run_steps(
        new, [Step(0, 1, DENIED, remaining=0, retry_after_us=6_000_000), Step(MINUTE_US, 10, ALLOWED)], state=carried
    )


def test_split_and_join() -> None:
    """A state is whole microseconds and a remainder; both stay below 2^53 at the ends of every range."""
    spec = TokenBucket(7, 7, MINUTE_US)
    state = run_steps(spec, [Step(0, 1, ALLOWED)])
    assert state is not None
    assert spec.split(state) == (START_US + 8_571_428, 4)
    assert spec.join(*spec.split(state)) == state
    with pytest.raises(ValueError, match=r"remainder: must be within 0\.\.6, got 7"):
        spec.join(START_US, 7)


def test_numbers_are_reduced() -> None:
    """Equal rates are equal specs, and the state's unit is that of the reduced rate."""
    spec = TokenBucket(100, 100, MINUTE_US)
    assert (spec.tokens, spec.period_us, spec.window_us) == (1, 600_000, MINUTE_US)
    assert spec == TokenBucket(100, 1, 600_000)
    assert TokenBucket(10, 7, MINUTE_US).window_us == 85_714_286


def test_the_bound_is_reached() -> None:
    """A caller who asks all the time gets exactly ``most_admitted`` in an interval that begins with a full bucket."""
    for spec in (TokenBucket(5, 3, 7), TokenBucket(5, 7, 3), TokenBucket(4, 1, 9)):
        state: State | None = None
        total = 0
        for length_us in range(1, 60):
            while (after := spec.admit(state, START_US + length_us - 1, 1)) is not None:
                state = after
                total += 1
            assert total == spec.most_admitted(length_us)
    assert spec.most_admitted(0) == 0
