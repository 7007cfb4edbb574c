"""The ranges of numbers: what is refused, what must work, and that a port with doubles could compute all of it."""

import copy
import pickle
import sys
from collections.abc import Callable

import pytest

from sluicegate import bounds
from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket, decide
from sluicegate.testing.steps import ALLOWED, DENIED, Step, run_steps

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
DAY_US = 86_400 * SECOND_US
DOUBLE_MAX = 1 << 53


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenBucket(-1, 1, 1), r"capacity: must be within 1\.\.1000000000000, got -1"),
        (lambda: TokenBucket(10**12 + 1, 1, 1), "capacity: must be within .* got 1000000000001"),
        (lambda: TokenBucket(1.5, 1, 1), "capacity: must be an integer, got 1.5"),  # type: ignore[arg-type]
        (lambda: TokenBucket(True, 1, 1), "capacity: must be an integer, got True"),
        (lambda: TokenBucket(1, 0, 1), "tokens: must be an integer >= 1, got 0"),
        (lambda: TokenBucket(1, 1, 0), "period_us: must be an integer >= 1, got 0"),
        (lambda: TokenBucket(1, 10**12 + 1, 2), r"tokens: must be within 1\.\.1000000000000, got 1000000000001"),
        (lambda: TokenBucket(1, 1, bounds.PERIOD_US_MAX + 1), "period_us: must be within .* got 315360000000001"),
        (lambda: TokenBucket(10**9, 1, 365 * DAY_US), "capacity: 1000000000 tokens at 1 per .* us take .* more than"),
        (lambda: LeakyBucket(1, 1, 1, max_delay_us=-1), "max_delay_us: must be within .* got -1"),
        (lambda: LeakyBucket(1, 1, 1, max_delay_us=bounds.DELAY_US_MAX + 1), "max_delay_us: must be within"),
        (lambda: FixedWindow(-5, 1), "limit: must be within .* got -5"),
        (lambda: FixedWindow(1, 0), "window_us: must be within .* got 0"),
        (lambda: SlidingWindow(1, bounds.WINDOW_US_MAX + 1), "window_us: must be within"),
        (lambda: SlidingWindow(1, MINUTE_US, 0), r"sub_windows: must be within 1\.\.60, got 0"),
        (lambda: SlidingWindow(1, MINUTE_US, 61), r"sub_windows: must be within 1\.\.60, got 61"),
        (lambda: SlidingWindow(1, 5, 6), r"sub_windows: must be within 1\.\.5, got 6"),
        (lambda: SlidingLog(1, -1), "window_us: must be within .* got -1"),
    ],
)
def test_number_out_of_range_is_named(make: Callable[[], Spec], message: str) -> None:
    """The error names the field and the value."""
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "spec",
    [
        TokenBucket(10**9, 10**9, SECOND_US),
        TokenBucket(10**9, 7, SECOND_US),
        TokenBucket(1_000_000, 1_000_000, 30 * DAY_US),
        TokenBucket(1_000_000, 1_000_000, SECOND_US),
        TokenBucket(700_000, 700_000, SECOND_US),
        TokenBucket(100_000_000, 100_000_000, SECOND_US),
        TokenBucket(7, 7, MINUTE_US),
        TokenBucket(1, 1, 365 * DAY_US),
    ],
)
def test_numbers_that_must_work(spec: TokenBucket) -> None:
    """The whole capacity passes, one more waits for exactly one token, and the last wait is a full drain."""
    token_us = -(-spec.period_us // spec.tokens)
    run_steps(
        spec,
        [
            Step(0, spec.capacity, ALLOWED, remaining=0, reset_after_us=spec.window_us),
            Step(0, 1, DENIED, remaining=0, retry_after_us=token_us),
            Step(0, spec.capacity, DENIED, remaining=0, retry_after_us=spec.window_us),
            Step(spec.window_us - 1, spec.capacity, DENIED, retry_after_us=1),
            Step(spec.window_us, spec.capacity, ALLOWED, remaining=0),
        ],
    )


def test_products_fit_two_limbs() -> None:
    """Times and every factor stay below 2^53, so sums are exact in doubles and products in two of them."""
    assert bounds.NOW_US_MAX + bounds.DRAIN_US_MAX + bounds.CLOCK_BEHIND_US_MAX < DOUBLE_MAX
    for factor in (
        bounds.CAPACITY_MAX,
        bounds.TOKENS_MAX,
        bounds.PERIOD_US_MAX,
        bounds.WINDOW_US_MAX,
        bounds.COST_MAX,
        bounds.DRAIN_US_MAX,
        bounds.NOW_US_MAX,
    ):
        assert 0 < factor < DOUBLE_MAX
    assert bounds.WINDOW_US_MAX + bounds.NOW_US_MAX < DOUBLE_MAX
    spec = TokenBucket(10**12, 10**12 - 1, 1_000_003)
    state = spec.admit(None, bounds.NOW_US_MAX, spec.capacity)
    assert state is not None
    assert all(0 <= part < DOUBLE_MAX for part in spec.split(state))


def test_state_bytes_cover_real_states() -> None:
    """The estimate for reports is not below what a used counter takes."""
    specs: list[Spec] = [
        TokenBucket(7, 7, MINUTE_US),
        LeakyBucket(7, 7, MINUTE_US),
        FixedWindow(7, MINUTE_US),
        SlidingWindow(7, MINUTE_US),
        SlidingWindow(7, MINUTE_US, 6),
        SlidingLog(7, MINUTE_US),
    ]
    for spec in specs:
        state = None
        for step in range(7):
            _, state = decide(spec, state, 1_700_000_000_000_000 + step * SECOND_US, 1)
        parts = state if isinstance(state, tuple) else ()
        # Python shares the integers up to 256.
        real = sys.getsizeof(state) + sum(sys.getsizeof(part) for part in parts if part > 256)
        assert real <= spec.state_bytes() <= 4 * real, spec


@pytest.mark.parametrize(
    "spec",
    [
        TokenBucket(7, 14, MINUTE_US),
        LeakyBucket(7, 7, MINUTE_US, 5, nodelay=True),
        FixedWindow(7, 7 * DAY_US, align="calendar", tz="Europe/Berlin", unit="week"),
        SlidingWindow(7, MINUTE_US),
        SlidingWindow(7, MINUTE_US, 6),
        SlidingLog(7, MINUTE_US),
        Ban(),
    ],
)
def test_specs_are_values(spec: Spec) -> None:
    """A spec survives copy and pickle as an equal value that decides alike, and cannot be changed."""
    for twin in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert twin == spec
        assert hash(twin) == hash(spec)
        assert decide(twin, None, 10**15, 1) == decide(spec, None, 10**15, 1)
    # A frozen class with slots raises one or the other, by version of Python.
    with pytest.raises((AttributeError, TypeError)):
        spec.capacity = 8  # type: ignore[misc]
    assert not hasattr(spec, "__dict__")


def test_shape_changes_only_with_the_window() -> None:
    """Limits, capacities and rates are not in the shape; window, alignment and sub-windows are (T101)."""
    assert TokenBucket(5, 1, 7).shape == TokenBucket(9, 3, 8).shape
    assert LeakyBucket(5, 1, 7).shape == LeakyBucket(9, 3, 8, 0, nodelay=True).shape
    assert FixedWindow(5, DAY_US).shape == FixedWindow(6, DAY_US).shape == str(DAY_US)
    shapes = [
        FixedWindow(5, DAY_US).shape,
        FixedWindow(5, DAY_US, align="calendar", unit="day").shape,
        FixedWindow(5, DAY_US, align="calendar", unit="day", tz="Asia/Tokyo").shape,
        SlidingWindow(5, DAY_US, 6).shape,
        SlidingWindow(5, DAY_US, 7).shape,
        SlidingLog(5, MINUTE_US).shape,
    ]
    assert len(set(shapes)) == len(shapes)
