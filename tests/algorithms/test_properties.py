"""What every algorithm promises, on generated numbers and histories; times are few enough to look at each one."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import (
    Ban,
    FixedWindow,
    LeakyBucket,
    Outcome,
    SlidingLog,
    SlidingWindow,
    Spec,
    State,
    TokenBucket,
    Verdict,
    decide,
)
from sluicegate.bounds import CLOCK_BEHIND_US_MAX
from sluicegate.testing.intervals import Hit, elapsed, segments, worst_excess

START_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000

LIMITS = st.integers(1, 6)
WINDOWS = st.integers(1, 40)
SPECS: st.SearchStrategy[Spec] = st.one_of(
    st.builds(TokenBucket, LIMITS, st.integers(1, 7), WINDOWS),
    st.builds(LeakyBucket, LIMITS, st.integers(1, 7), WINDOWS, st.integers(0, 60), st.booleans()),
    st.builds(FixedWindow, LIMITS, WINDOWS),
    st.builds(SlidingLog, LIMITS, WINDOWS),
    st.builds(SlidingWindow, LIMITS, WINDOWS),
    st.builds(SlidingWindow, LIMITS, st.integers(7, 40), st.integers(1, 7)),
)
COSTS = st.one_of(st.integers(1, 2), st.integers(1, 7))
ON = st.tuples(st.integers(0, 30), COSTS)
# Steps back that a clock may catch up with, and steps by which it was set back.
TOLERATED = st.integers(-90, 90)
SET_BACK = st.integers(-90, 90).map(lambda us: us - CLOCK_BEHIND_US_MAX)
ON_OR_BACK = st.tuples(st.one_of(st.integers(0, 30), st.integers(-3, 3), TOLERATED, SET_BACK), COSTS)
# Short histories find the edges, long ones the drift.
FORWARD = st.one_of(st.lists(ON, max_size=12), st.lists(ON, min_size=20, max_size=40))
BOTH_WAYS = st.one_of(st.lists(ON_OR_BACK, max_size=12), st.lists(ON_OR_BACK, min_size=20, max_size=40))

many = settings(max_examples=max(250, settings().max_examples))


def horizon_us(spec: Spec) -> int:
    """One full drain or window: the longest any cost up to the capacity may have to wait."""
    if isinstance(spec, SlidingWindow):
        if spec.sub_windows is None:
            return 2 * spec.window_us
        return (spec.sub_windows + 1) * -(-spec.window_us // spec.sub_windows)
    return spec.window_us


def run(spec: Spec, history: list[tuple[int, int]]) -> tuple[State | None, int, list[Hit]]:
    """Decide a history; (state, last time, hits). A refused hit has cost 0."""
    state: State | None = None
    now_us = START_US
    hits: list[Hit] = []
    for delta_us, cost in history:
        now_us += delta_us
        verdict, state = decide(spec, state, now_us, cost)
        hits.append((now_us, cost if verdict.outcome is Outcome.ALLOWED else 0))
    return state, now_us, hits


def peek(spec: Spec, state: State | None, now_us: int) -> Verdict:
    return decide(spec, state, now_us, 0)[0]


def behaviour(spec: Spec, state: State | None, now_us: int) -> list[object]:
    """All that can be seen of a state from now on: each cost's answer and remaining, until past a full recovery."""
    moments = range(now_us, now_us + horizon_us(spec) + 2)
    return [
        (verdict.outcome, verdict.remaining, verdict.retry_after_us, verdict.delay_us)
        for moment in moments
        for verdict in (decide(spec, state, moment, cost)[0] for cost in range(spec.capacity + 2))
    ]


@many
@given(SPECS, FORWARD)
def test_never_above_the_bound_in_any_interval(spec: Spec, history: list[tuple[int, int]]) -> None:
    """No interval of any history holds more than ``most_admitted`` of its length (T51, T64, P30)."""
    assert worst_excess(run(spec, history)[2], spec.most_admitted) is None


@many
@given(SPECS, BOTH_WAYS)
def test_bound_holds_when_the_clock_goes_back(spec: Spec, history: list[tuple[int, int]]) -> None:
    """Between steps back every bound holds; buckets, logs and strict windows hold theirs over all time that passed."""
    hits = run(spec, history)[2]
    for segment in segments(hits):
        assert worst_excess(segment, spec.most_admitted) is None
    if isinstance(spec, TokenBucket | LeakyBucket | SlidingLog):
        assert worst_excess(elapsed(hits), spec.most_admitted) is None
    if isinstance(spec, SlidingWindow) and spec.sub_windows is not None:
        window_us = spec.sub_windows * -(-spec.window_us // spec.sub_windows)
        assert worst_excess(elapsed(hits), lambda length_us: spec.limit * -(-length_us // window_us)) is None


@many
@given(SPECS, BOTH_WAYS)
def test_refused_before_retry_and_allowed_at_it(spec: Spec, history: list[tuple[int, int]]) -> None:
    """For every cost, all moments before ``retry_after_us`` refuse and that moment admits (P22, P29, P36)."""
    state, now_us, _ = run(spec, history)
    for cost in range(1, spec.capacity + 1):
        verdict, kept = decide(spec, state, now_us, cost)
        if verdict.outcome is Outcome.ALLOWED:
            assert verdict.retry_after_us == 0
            continue
        assert verdict.retry_after_us is not None
        assert verdict.reset_after_us == verdict.retry_after_us
        waits = range(verdict.retry_after_us)
        for wait_us in waits if len(waits) <= 300 else (*waits[:150], *waits[-150:]):
            later, _ = decide(spec, kept, now_us + wait_us, cost)
            assert later.outcome is Outcome.DENIED
            assert later.retry_after_us == verdict.retry_after_us - wait_us
        assert decide(spec, kept, now_us + verdict.retry_after_us, cost)[0].outcome is Outcome.ALLOWED


@many
@given(SPECS, BOTH_WAYS)
def test_remaining_is_true(spec: Spec, history: list[tuple[int, int]]) -> None:
    """Exactly ``remaining`` more single tokens pass now, counting down, and the next is refused."""
    state, now_us, _ = run(spec, history)
    remaining = peek(spec, state, now_us).remaining
    assert 0 <= remaining <= spec.capacity
    for left in reversed(range(remaining)):
        verdict, state = decide(spec, state, now_us, 1)
        assert (verdict.outcome, verdict.remaining) == (Outcome.ALLOWED, left)
    verdict, _ = decide(spec, state, now_us, 1)
    assert (verdict.outcome, verdict.remaining) == (Outcome.DENIED, 0)


@many
@given(SPECS, FORWARD, st.integers(1, 7))
def test_refused_and_peeked_change_nothing(spec: Spec, history: list[tuple[int, int]], cost: int) -> None:
    """A refusal, a cost that never fits and a peek return the very state they were given (P01, P02, P07)."""
    state, now_us, _ = run(spec, history)
    assert decide(spec, state, now_us, 0)[1] is state
    verdict, kept = decide(spec, state, now_us, cost)
    assert verdict.outcome is Outcome.ALLOWED or kept is state
    never, kept = decide(spec, state, now_us, spec.capacity + cost)
    assert (never.outcome, never.retry_after_us) == (Outcome.NEVER_FITS, None)
    assert kept is state


@many
@given(SPECS, BOTH_WAYS, st.integers(1, 200))
def test_time_going_back_is_harmless(spec: Spec, history: list[tuple[int, int]], back_us: int) -> None:
    """After a step back nobody has more remaining.

    A clock set back lets no cost wait longer than one full drain or window; one that is behind, longer than that and
    what it has to catch up with (T58, P33).
    """
    state, now_us, _ = run(spec, history)
    latest_us = max([START_US, *(time_us for time_us, _ in run(spec, history)[2])])
    before = peek(spec, state, now_us).remaining
    for past_us in (now_us - back_us, now_us - back_us - HOUR_US):
        assert peek(spec, state, past_us).remaining <= before
        catching_up_us = latest_us - past_us if past_us > now_us - HOUR_US else 0
        for cost in range(1, spec.capacity + 1):
            verdict, _ = decide(spec, state, past_us, cost)
            assert verdict.retry_after_us is not None
            assert verdict.retry_after_us <= horizon_us(spec) + min(catching_up_us, CLOCK_BEHIND_US_MAX)
            assert verdict.reset_after_us <= horizon_us(spec) + min(catching_up_us, CLOCK_BEHIND_US_MAX)


@many
@given(SPECS, BOTH_WAYS)
def test_clamp_changes_only_states_from_the_future(spec: Spec, history: list[tuple[int, int]]) -> None:
    """``clamp`` returns a state of now itself, is idempotent, and gives nothing seen at now away."""
    state, now_us, _ = run(spec, history)
    assume(state is not None)
    clamped = spec.clamp(state, now_us)
    assert spec.clamp(clamped, now_us) is clamped or spec.clamp(clamped, now_us) == clamped
    assert [decide(spec, clamped, now_us, cost)[0] for cost in range(spec.capacity + 2)] == [
        decide(spec, state, now_us, cost)[0] for cost in range(spec.capacity + 2)
    ]
    latest = max(START_US + sum(delta for delta, _ in history[: end + 1]) for end in range(len(history)))
    assert spec.clamp(state, latest) is state or spec.clamp(state, latest) == state


@many
@given(SPECS, BOTH_WAYS)
def test_state_is_forgotten_exactly_at_expiry(spec: Spec, history: list[tuple[int, int]]) -> None:
    """At ``expires_us`` a state behaves as no state (P38); a moment before, a used one does not."""
    state, now_us, _ = run(spec, history)
    assume(state is not None)
    expiry_us = max(spec.expires_us(state), now_us)
    assert behaviour(spec, state, expiry_us) == behaviour(spec, None, expiry_us)
    if spec.expires_us(state) > now_us:
        at_us = spec.expires_us(state) - 1
        assert behaviour(spec, state, at_us) != behaviour(spec, None, at_us)


@many
@given(SPECS, FORWARD, st.integers(1, 6))
def test_immediate_refund_restores(spec: Spec, history: list[tuple[int, int]], cost: int) -> None:
    """A charge given back at once leaves a counter that behaves as if it had never been charged.

    A leaky bucket gives back only a charge that was alone in its microsecond, for others may hold later slots.
    """
    state, now_us, _ = run(spec, history)
    now_us += 1
    after = spec.admit(state, now_us, cost)
    assume(after is not None)
    restored = spec.refund(after, now_us, cost, now_us)
    assert behaviour(spec, restored, now_us) == behaviour(spec, state, now_us)


@many
@given(SPECS, FORWARD, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=12))
def test_bound_holds_net_of_refunds(spec: Spec, history: list[tuple[int, int]], refunds: list[tuple[int, int]]) -> None:
    """With any charges given back at any later time, once, what stays admitted keeps the bound (T11, T12)."""
    state: State | None = None
    now_us = START_US
    charged: list[Hit] = []
    refunded: set[int] = set()
    due = {index % max(len(history), 1): delay for index, delay in refunds}
    for number, (delta_us, cost) in enumerate(history):
        now_us += delta_us
        verdict, state = decide(spec, state, now_us, cost)
        charged.append((now_us, cost if verdict.outcome is Outcome.ALLOWED else 0))
        for index, delay_us in due.items():
            old_us, given = charged[index] if index <= number else (0, 0)
            if given and index not in refunded and old_us + delay_us <= now_us:
                before = peek(spec, state, now_us).remaining
                state = spec.refund(state, now_us, given, old_us)
                assert before <= peek(spec, state, now_us).remaining <= spec.capacity
                refunded.add(index)
    kept = [hit for index, hit in enumerate(charged) if index not in refunded]
    assert worst_excess(kept, spec.most_admitted) is None


@many
@given(SPECS, BOTH_WAYS, st.integers(1, 9))
def test_refused_charge_that_counts(spec: Spec, history: list[tuple[int, int]], cost: int) -> None:
    """``charge_refused`` never gives tokens, uses at most one full drain, and ignores a cost that never fits (P11)."""
    state, now_us, _ = run(spec, history)
    before = peek(spec, state, now_us).remaining
    after = spec.charge_refused(state, now_us, cost)
    if cost > spec.capacity:
        assert after is state or behaviour(spec, after, now_us) == behaviour(spec, None, now_us)
        return
    assert 0 <= peek(spec, after, now_us).remaining <= max(before - cost, 0) or isinstance(spec, LeakyBucket)
    assert peek(spec, after, now_us).remaining <= before
    assert spec.expires_us(after) - now_us <= horizon_us(spec) + CLOCK_BEHIND_US_MAX
    assert spec.expires_us(after) > now_us


@many
@given(SPECS)
def test_equal_numbers_make_equal_specs(spec: Spec) -> None:
    """A spec is a value: equal and of equal hash when its numbers are, and it cannot be changed."""
    twin = type(spec)(**{name: getattr(spec, name) for name in spec.__match_args__})  # type: ignore[attr-defined]
    assert (twin, hash(twin), twin.shape) == (spec, hash(spec), spec.shape)
    assert spec != Ban()
    assert not hasattr(spec, "__dict__")
