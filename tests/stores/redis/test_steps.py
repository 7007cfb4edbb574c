"""Step tables decided by the scripts: numbers written down by hand, beside those compared with the core."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore
from sluicegate.testing import Step
from sluicegate.testing.steps import ALLOWED, DENIED, NEVER_FITS

pytestmark = pytest.mark.parametrize("server", ["redis", "valkey", "redis cluster", "valkey cluster"], indirect=True)

SECOND = 1_000_000
DAY = 86_400 * SECOND

TABLES: list[tuple[Spec, list[Step]]] = [
    (
        TokenBucket(1_000_000, 1_000_000, 30 * DAY),  # one token per 2.592 s
        [
            Step(0, 1_000_001, NEVER_FITS, remaining=1_000_000),
            Step(0, 1_000_000, ALLOWED, remaining=0, reset_after_us=30 * DAY),
            Step(0, 1, DENIED, remaining=0, retry_after_us=2_592_000),
            Step(2_591_999, 1, DENIED, remaining=0, retry_after_us=1),
            Step(2_592_000, 1, ALLOWED, remaining=0),
        ],
    ),
    (
        TokenBucket(1_000_000, 1_000_000, SECOND),  # one token per microsecond
        [
            Step(0, 1_000_000, ALLOWED, remaining=0, reset_after_us=SECOND),
            Step(3, 3, ALLOWED, remaining=0),
            Step(3, 7, DENIED, remaining=0, retry_after_us=7),
            Step(10, 7, ALLOWED, remaining=0),
        ],
    ),
    (
        TokenBucket(7, 7, 60 * SECOND),  # one token per 8,571,428 4/7 us
        [
            Step(0, 7, ALLOWED, remaining=0, reset_after_us=60 * SECOND),
            Step(0, 1, DENIED, retry_after_us=8_571_429),
            Step(8_571_428, 1, DENIED, retry_after_us=1),
            Step(8_571_429, 1, ALLOWED, remaining=0),
            # The fraction is kept: two tokens are back after 17,142,857 1/7 us.
            Step(17_142_857, 1, DENIED, retry_after_us=1),
            Step(17_142_858, 1, ALLOWED, remaining=0),
        ],
    ),
    (
        TokenBucket(100, 100_000_000, SECOND),  # a hundred tokens per microsecond
        [
            Step(0, 100, ALLOWED, remaining=0, reset_after_us=1),
            Step(0, 1, DENIED, retry_after_us=1),
            Step(1, 100, ALLOWED, remaining=0),
            Step(2, 30, ALLOWED, remaining=70),
        ],
    ),
    (
        LeakyBucket(4, 2, SECOND, max_delay_us=1_000_000),
        [
            Step(0, 1, ALLOWED, remaining=2, delay_us=0),
            Step(0, 1, ALLOWED, remaining=1, delay_us=500_000),
            Step(0, 1, ALLOWED, remaining=0, delay_us=1_000_000),
            Step(0, 1, DENIED, remaining=0, retry_after_us=500_000),
            Step(500_000, 1, ALLOWED, remaining=0, delay_us=1_000_000),
        ],
    ),
    (
        LeakyBucket(9, 7, SECOND, max_delay_us=142_857),  # a token takes 142,857 1/7 us
        [
            Step(0, 1, ALLOWED, delay_us=0),
            Step(0, 1, DENIED, retry_after_us=1),
            Step(1, 1, ALLOWED, delay_us=142_857),
        ],
    ),
    (
        FixedWindow(3, 10 * SECOND),
        [
            Step(9 * SECOND, 3, ALLOWED, remaining=0, reset_after_us=SECOND),
            Step(9 * SECOND, 1, DENIED, retry_after_us=SECOND),
            Step(10 * SECOND, 3, ALLOWED, remaining=0, reset_after_us=10 * SECOND),
        ],
    ),
    (
        SlidingWindow(4, 10 * SECOND),
        [
            Step(5 * SECOND, 4, ALLOWED, remaining=0),
            Step(12_500_000, 1, ALLOWED, remaining=0),  # three of the four are still in view
            Step(12_500_000, 1, DENIED, retry_after_us=2_500_000),
            Step(15_000_000, 1, ALLOWED, remaining=0),
        ],
    ),
    (
        SlidingWindow(4, 10 * SECOND, sub_windows=2),
        [
            Step(4_999_999, 4, ALLOWED, remaining=0),
            Step(14_999_999, 1, DENIED, remaining=0, retry_after_us=1),
            Step(15_000_000, 4, ALLOWED, remaining=0),
        ],
    ),
    (
        SlidingLog(3, 10 * SECOND),
        [
            Step(0, 2, ALLOWED, remaining=1),
            Step(4 * SECOND, 1, ALLOWED, remaining=0),
            Step(5 * SECOND, 3, DENIED, retry_after_us=9 * SECOND),
            Step(5 * SECOND, 2, DENIED, retry_after_us=5 * SECOND),
            Step(10 * SECOND, 2, ALLOWED, remaining=0),
        ],
    ),
]


@pytest.mark.parametrize("spec, steps", TABLES, ids=[repr(spec) for spec, _ in TABLES])
def test_table(open_store: Callable[[ManualClock], RedisStore], spec: Spec, steps: list[Step]) -> None:
    """Every row of the table is answered as written."""
    start_us = 1_700_000_000 * SECOND // spec.window_us * spec.window_us
    clock = ManualClock(start_us)
    store = open_store(clock)
    counter = Counter("rule", spec, counter_prefix("steps", "rule", spec.algorithm, spec.shape))
    for number, step in enumerate(steps, 1):
        clock.set(start_us + step.at_us)
        (verdict,) = store.decide_one([(counter, "s", step.cost)]).verdicts()
        for name, value in step._asdict().items():
            if name not in ("at_us", "cost") and value != -1:
                assert getattr(verdict, name) == value, (number, name, verdict)


def test_ten_a_minute_asked_every_five_seconds(open_store: Callable[[ManualClock], RedisStore]) -> None:
    """Ten a minute, asked for every 5 s with a cost of 1, admit the capacity and the rate of an hour, and no more."""
    clock = ManualClock()
    store = open_store(clock)
    spec = TokenBucket(10, 10, 60 * SECOND)
    counter = Counter("rule", spec, counter_prefix("steps", "rule", spec.algorithm, spec.shape))
    admitted = 0
    for _ in range(720):
        admitted += store.decide_one([(counter, "s", 1)]).admitted
        clock.advance(5 * SECOND)
    assert admitted in (609, 610)
