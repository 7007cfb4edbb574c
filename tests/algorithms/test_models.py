"""Every algorithm against a slow model of its definition: levels as fractions, counts per window, lists of times."""

from fractions import Fraction
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, State, TokenBucket, decide

START_US = 1_700_000_000_000_000

HISTORIES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 7)), min_size=1, max_size=60)
LIMITS = st.integers(1, 6)
WINDOWS = st.integers(1, 60)
SUBS = st.integers(1, 7)

many = settings(max_examples=max(250, settings().max_examples))


class Model(Protocol):
    """What a model answers: remaining single tokens, and whether a cost fits, charging it if so."""

    def take(self, now_us: int, cost: int) -> bool: ...

    def remaining(self, now_us: int) -> int: ...


class Level:
    """A token bucket by its definition: a level that rises with time up to the capacity."""

    def __init__(self, spec: TokenBucket) -> None:
        self.spec, self.level, self.at_us = spec, Fraction(spec.capacity), START_US

    def refill(self, now_us: int) -> Fraction:
        self.level += Fraction((now_us - self.at_us) * self.spec.tokens, self.spec.period_us)
        self.level, self.at_us = min(self.level, Fraction(self.spec.capacity)), now_us
        return self.level

    def take(self, now_us: int, cost: int) -> bool:
        if self.refill(now_us) < cost:
            return False
        self.level -= cost
        return True

    def remaining(self, now_us: int) -> int:
        return int(self.refill(now_us))


class Queue:
    """A leaky bucket by its definition: slots one after another, each cost / rate long."""

    def __init__(self, spec: LeakyBucket) -> None:
        self.spec, self.empty_us = spec, Fraction(0)

    def start(self, now_us: int, cost: int) -> Fraction | None:
        start_us = max(self.empty_us, Fraction(now_us))
        queued = (start_us - now_us) * self.spec.tokens / self.spec.period_us + cost
        too_late = not self.spec.nodelay and start_us - now_us > self.spec.max_delay_us
        return None if too_late or queued > self.spec.capacity else start_us

    def take(self, now_us: int, cost: int) -> bool:
        start_us = self.start(now_us, cost)
        if start_us is None:
            return False
        self.empty_us = start_us + Fraction(cost * self.spec.period_us, self.spec.tokens)
        return True

    def remaining(self, now_us: int) -> int:
        saved, count = self.empty_us, 0
        while self.take(now_us, 1):
            count += 1
        self.empty_us = saved
        return count


class Times:
    """A window by its definition: all accepted tokens, and a function that says how many count now."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.hits = spec, list[tuple[int, int]]()

    def used(self, now_us: int) -> int:
        spec, hits = self.spec, self.hits
        if isinstance(spec, SlidingLog):
            return sum(cost for time_us, cost in hits if now_us - time_us < spec.window_us)
        if isinstance(spec, SlidingWindow) and spec.sub_windows is not None:
            step_us = -(-spec.window_us // spec.sub_windows)
            return sum(cost for at, cost in hits if now_us // step_us - at // step_us <= spec.sub_windows)
        window_us = spec.window_us
        counts = [sum(c for at, c in hits if now_us // window_us - at // window_us == age) for age in (0, 1)]
        if isinstance(spec, FixedWindow):
            return counts[0]
        return counts[0] - int(-Fraction(counts[1] * (window_us - now_us % window_us), window_us) // 1)

    def take(self, now_us: int, cost: int) -> bool:
        if self.used(now_us) + cost > self.spec.capacity:
            return False
        self.hits.append((now_us, cost))
        return True

    def remaining(self, now_us: int) -> int:
        return self.spec.capacity - self.used(now_us)


def agree(spec: Spec, model: Model, history: list[tuple[int, int]]) -> None:
    """Decide the history by both and compare every answer."""
    state: State | None = None
    now_us = START_US
    for number, (delta_us, cost) in enumerate(history):
        now_us += delta_us
        before = model.remaining(now_us)
        verdict, state = decide(spec, state, now_us, cost)
        fits = model.take(now_us, cost)
        assert (verdict.outcome == "allowed") is fits, (number, spec, verdict)
        assert verdict.remaining == model.remaining(now_us), (number, spec, verdict)
        assert fits or verdict.remaining == before


@many
@given(st.builds(TokenBucket, LIMITS, st.integers(1, 7), WINDOWS), HISTORIES)
def test_token_bucket_is_a_level(spec: TokenBucket, history: list[tuple[int, int]]) -> None:
    """GCRA on an integer TAT answers as a level in exact fractions does."""
    agree(spec, Level(spec), history)


@many
@given(
    st.builds(
        LeakyBucket,
        LIMITS,
        st.integers(1, 7),
        WINDOWS,
        max_delay_us=st.integers(0, 90),
        nodelay=st.booleans(),
    ),
    HISTORIES,
)
def test_leaky_bucket_is_a_queue(spec: LeakyBucket, history: list[tuple[int, int]]) -> None:
    """The integer queue answers as slots in exact fractions do."""
    agree(spec, Queue(spec), history)


@many
@given(
    st.one_of(
        st.builds(FixedWindow, LIMITS, WINDOWS),
        st.builds(SlidingLog, LIMITS, WINDOWS),
        st.builds(SlidingWindow, LIMITS, WINDOWS),
        st.builds(SlidingWindow, LIMITS, st.integers(7, 60), SUBS),
    ),
    HISTORIES,
)
def test_windows_count_what_they_say(spec: Spec, history: list[tuple[int, int]]) -> None:
    """Compact counts answer as a list of all accepted tokens does."""
    agree(spec, Times(spec), history)


@many
@given(st.builds(LeakyBucket, LIMITS, st.integers(1, 7), WINDOWS, max_delay_us=st.integers(0, 90)), HISTORIES)
def test_leaky_starts_are_spaced(spec: LeakyBucket, history: list[tuple[int, int]]) -> None:
    """Starts (arrival + delay) are cost / rate apart, to less than a microsecond, and no delay exceeds the maximum."""
    state: State | None = None
    now_us = START_US
    free_us = Fraction(0)
    for delta_us, cost in history:
        now_us += delta_us
        verdict, state = decide(spec, state, now_us, cost)
        if verdict.outcome == "allowed":
            start_us = now_us + verdict.delay_us
            exact_us = max(free_us, Fraction(now_us))
            assert exact_us <= start_us < exact_us + 1
            assert verdict.delay_us <= spec.max_delay_us
            free_us = exact_us + Fraction(cost * spec.period_us, spec.tokens)


@pytest.mark.parametrize("capacity", [1, 3, 10])
def test_token_bucket_and_nodelay_queue_admit_alike(capacity: int) -> None:
    """A leaky bucket that holds nothing is a token bucket in what it admits; it differs in headers and refunds."""
    bucket, queue = TokenBucket(capacity, 7, 60), LeakyBucket(capacity, 7, 60, nodelay=True)
    first: State | None = None
    second: State | None = None
    for now_us in range(START_US, START_US + 400, 3):
        a, first = decide(bucket, first, now_us, 1)
        b, second = decide(queue, second, now_us, 1)
        assert a == b
