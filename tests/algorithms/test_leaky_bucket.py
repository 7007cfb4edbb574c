"""Leaky bucket: held starts, a bounded queue, and cases other limiters got wrong."""

from sluicegate.algorithms import LeakyBucket, Outcome, State, TokenBucket, decide
from sluicegate.testing.steps import ALLOWED, DENIED, NEVER_FITS, Step, run_steps

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
DAY_US = 86_400 * SECOND_US
START_US = 1_700_000_000_000_000


def test_requests_queue_and_are_told_to_wait() -> None:
    """The first starts at once, the next ones a slot later each; the queue holds the capacity, with the one in service."""
    run_steps(
        LeakyBucket(3, 1, SECOND_US, max_delay_us=10 * SECOND_US),
        [
            Step(0, 1, ALLOWED, remaining=2, delay_us=0, reset_after_us=1_000_000),
            Step(0, 1, ALLOWED, remaining=1, delay_us=1_000_000, reset_after_us=2_000_000),
            Step(0, 1, ALLOWED, remaining=0, delay_us=2_000_000, reset_after_us=3_000_000),
            Step(0, 1, DENIED, remaining=0, retry_after_us=1_000_000),
            Step(0, 4, NEVER_FITS),
            Step(1_000_000, 1, ALLOWED, remaining=0, delay_us=2_000_000),
            Step(9_000_000, 0, ALLOWED, remaining=3, delay_us=0, reset_after_us=0),
        ],
    )


def test_a_longer_wait_than_allowed_is_refused() -> None:
    """With max_delay 1.5 s at 1/s the third request of a burst is refused until it would wait 1.5 s."""
    run_steps(
        LeakyBucket(10, 1, SECOND_US, max_delay_us=1_500_000),
        [
            Step(0, 0, ALLOWED, remaining=2),
            Step(0, 1, ALLOWED, remaining=1, delay_us=0),
            Step(0, 1, ALLOWED, remaining=0, delay_us=1_000_000),
            Step(0, 1, DENIED, remaining=0, retry_after_us=500_000),
            Step(499_999, 1, DENIED, retry_after_us=1),
            Step(500_000, 1, ALLOWED, remaining=0, delay_us=1_500_000),
        ],
    )


def test_no_wait_at_all() -> None:
    """max_delay 0 admits only what may start now."""
    run_steps(
        LeakyBucket(10, 1, SECOND_US, max_delay_us=0),
        [Step(0, 1, ALLOWED, delay_us=0), Step(999_999, 1, DENIED, retry_after_us=1), Step(1_000_000, 1, ALLOWED)],
    )


def test_nodelay_holds_nothing() -> None:
    """nodelay lets the burst start at once and ignores max_delay."""
    run_steps(
        LeakyBucket(3, 1, SECOND_US, max_delay_us=0, nodelay=True),
        [Step(0, 1, ALLOWED, remaining=left, delay_us=0) for left in (2, 1, 0)] + [Step(0, 1, DENIED)],
    )


def test_three_a_second_under_ten_hits_a_second() -> None:
    """3/s, a hit every 100 ms for 10 s: at most 3 + 30 pass (T51)."""
    for spec in (
        LeakyBucket(3, 3, SECOND_US),
        LeakyBucket(3, 3, SECOND_US, nodelay=True),
        TokenBucket(3, 3, SECOND_US),
    ):
        state: State | None = None
        count = 0
        for time_us in range(0, 10 * SECOND_US, SECOND_US // 10):
            verdict, state = decide(spec, state, START_US + time_us, 1)
            count += verdict.outcome is Outcome.ALLOWED
        assert 30 <= count <= 33


def test_leaks_while_in_use() -> None:
    """10 per 30 s, one hit a second: it drains between hits, remaining stays within the limit, reset grows (T52)."""
    spec = LeakyBucket(10, 10, 30 * SECOND_US, nodelay=True)
    run_steps(
        spec,
        [
            Step(0, 1, ALLOWED, remaining=9, reset_after_us=3_000_000),
            Step(1_000_000, 1, ALLOWED, remaining=8, reset_after_us=5_000_000),
            Step(2_000_000, 1, ALLOWED, remaining=7, reset_after_us=7_000_000),
            Step(3_000_000, 1, ALLOWED, remaining=7, reset_after_us=9_000_000),
            Step(4_000_000, 1, ALLOWED, remaining=6, reset_after_us=11_000_000),
        ],
    )


def test_a_thousand_a_month_is_one_in_43_minutes() -> None:
    """1000 per 30 days leaks a token every 2,592 s, in every month (T54)."""
    for april_us in (0, 1_775_000_000 * SECOND_US - START_US):
        run_steps(
            LeakyBucket(1_000, 1_000, 30 * DAY_US, nodelay=True),
            [
                Step(april_us, 1_000, ALLOWED, remaining=0),
                Step(april_us, 1, DENIED, retry_after_us=2_592 * SECOND_US),
                Step(april_us + 2_592 * SECOND_US, 1, ALLOWED, remaining=0),
                Step(april_us + 2_592 * SECOND_US, 1, DENIED),
            ],
        )


def test_clock_set_back_does_not_raise_the_level() -> None:
    """An hour back, the queue counts as full, and is empty one drain later (P33)."""
    run_steps(
        LeakyBucket(4, 1, SECOND_US, nodelay=True),
        [
            Step(0, 4, ALLOWED),
            Step(-3_600 * SECOND_US, 1, DENIED, remaining=0, retry_after_us=SECOND_US),
            Step(-3_596 * SECOND_US, 0, ALLOWED, remaining=4),
        ],
    )


def test_delay_rounds_up() -> None:
    """At 7/minute a slot is 8,571,428.57 us: starts are told up to the microsecond, and the error does not add up."""
    run_steps(
        LeakyBucket(8, 7, MINUTE_US, max_delay_us=2 * MINUTE_US),
        [Step(0, 1, ALLOWED, delay_us=-(-slot * MINUTE_US // 7)) for slot in range(8)],
    )


class TestRefund:
    """A slot is given back only while it is the last in the queue."""

    spec = LeakyBucket(5, 1, SECOND_US, max_delay_us=10 * SECOND_US)

    def state(self, *times_us: int) -> tuple[int, int]:
        state: State | None = None
        for time_us in times_us:
            state = self.spec.admit(state, START_US + time_us, 1)
            assert state is not None
        assert isinstance(state, tuple)
        return state

    def test_last_slot_is_given_back(self) -> None:
        """The next request takes the slot of the last one that was given back."""
        state = self.spec.refund(self.state(0, 10), START_US + 20, 1, START_US + 10)
        run_steps(self.spec, [Step(20, 1, ALLOWED, delay_us=999_980)], state=state)

    def test_inner_slot_is_not(self) -> None:
        """Giving back the first of two would put the third request into the second one's slot."""
        state = self.state(0, 10)
        assert self.spec.refund(state, START_US + 20, 1, START_US) is state

    def test_charges_of_one_microsecond_are_not_told_apart(self) -> None:
        """Two charges at the same time: which slot is meant is unknown, so none is given back, also after a third."""
        for times in ((0, 0), (0, 0, 0)):
            state = self.state(*times)
            assert self.spec.refund(state, START_US, 1, START_US) is state

    def test_second_refund_finds_no_last_charge(self) -> None:
        """After the last slot was given back, the one before is not known to be last; nothing more is due."""
        state = self.spec.refund(self.state(0, 10), START_US + 20, 1, START_US + 10)
        assert self.spec.refund(state, START_US + 20, 1, START_US) is state

    def test_clock_set_back_gives_nothing_back(self) -> None:
        """A charge made at a time the clock has been past cannot be told from an earlier one of that time."""
        state = self.state(0, 10, 5)
        assert self.spec.refund(state, START_US + 20, 1, START_US + 5) is state
        state = self.state(0, 10, 5, 10)
        assert self.spec.refund(state, START_US + 20, 1, START_US + 10) is state

    def test_an_empty_queue_is_left_alone(self) -> None:
        """Once the slot has passed, time has given it back."""
        state = self.state(0)
        assert self.spec.refund(state, START_US + SECOND_US, 1, START_US) is state

    def test_a_counted_refusal_ends_the_right(self) -> None:
        """A refused charge that counts stands behind the last slot, which can then not be given back."""
        state = self.spec.charge_refused(self.state(0), START_US + 10, 1)
        assert self.spec.refund(state, START_US + 10, 1, START_US) is state
        assert self.spec.refund(state, START_US + 10, 1, START_US + 10) is state
