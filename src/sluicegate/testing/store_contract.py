"""What every store must do, as a suite for pytest.

    class TestMyStore(StoreContract):
        def new_store(self, clock):
            return MyStore(clock)

Times are turned by hand: ``clock`` must be what dates the store's counters. A store with a clock of its own overrides
``new_clock`` with an object whose ``advance`` and ``set`` move that clock. Each test gets an empty store.
"""

from __future__ import annotations

from random import Random
from typing import Final

from sluicegate.algorithms import (
    FixedWindow,
    LeakyBucket,
    OnChange,
    Outcome,
    SlidingLog,
    SlidingWindow,
    Spec,
    State,
    TokenBucket,
    Verdict,
    decide,
)
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Charge, Counter, Store
from sluicegate.stores.keys import counter_prefix

__all__ = ["CONTRACT_SPECS", "StoreContract", "counter_for"]

CONTRACT_SPECS: Final[tuple[Spec, ...]] = (
    TokenBucket(5, 5, 60 * US_PER_S),
    TokenBucket(7, 7, 60 * US_PER_S),
    TokenBucket(1_000, 700_000, US_PER_S),
    LeakyBucket(4, 2, US_PER_S, max_delay_us=1_500_000),
    LeakyBucket(4, 2, US_PER_S, nodelay=True),
    FixedWindow(5, 10 * US_PER_S),
    SlidingWindow(5, 10 * US_PER_S),
    SlidingWindow(6, 12 * US_PER_S, sub_windows=6),
    SlidingLog(4, 10 * US_PER_S),
)
"""Every algorithm, with numbers small enough that a short sequence exhausts and refills them."""


def counter_for(
    spec: Spec,
    name: str = "rule",
    *,
    shadow: bool = False,
    denied_counts: bool = False,
    on_change: OnChange = OnChange.KEEP,
) -> Counter:
    """A counter as an engine makes it: its prefix holds the rule's name and the shape, and no limit."""
    prefix = counter_prefix("contract", name, spec.algorithm, spec.shape)
    return Counter(name, spec, prefix, shadow, denied_counts, on_change)


class StoreContract:
    """The suite. Subclass it, name it ``Test...``, and say how to make the store."""

    clock: ManualClock
    store: Store

    def new_clock(self) -> ManualClock:
        """The clock that dates the store's counters."""
        return ManualClock()

    def new_store(self, clock: ManualClock) -> Store:  # noqa: ARG002
        """An empty store on this clock."""
        raise TypeError(f"{type(self).__name__} must override new_store and make its store there")

    def setup_method(self) -> None:
        """Before each test."""
        self.clock = self.new_clock()
        self.store = self.new_store(self.clock)

    def teardown_method(self) -> None:
        """After each test."""
        self.store.close()

    # ------------------------------------------------------------------ helpers

    def ask(self, *charges: Charge, peek: bool = False) -> Answer:
        """Decide one request."""
        return self.store.decide_one(charges, peek=peek)

    def remaining(self, counter: Counter, subject: str = "s") -> int:
        """What is left in one counter, by a peek."""
        return self.ask((counter, subject, 0), peek=True).verdicts()[0].remaining

    # ------------------------------------------------------------------ one counter

    def test_agrees_with_the_oracle(self) -> None:
        """Every algorithm gives the oracle's verdicts over generated sequences, back-steps of time included."""
        for index, spec in enumerate(CONTRACT_SPECS):
            random = Random(index)  # noqa: S311 -- a seeded sequence, not a secret
            counter = counter_for(spec, f"rule{index}")
            states: dict[str, State | None] = {}
            latest_us = self.clock.now_us()
            for step in range(400):
                self._move(random, spec)
                now_us = self.clock.now_us()
                latest_us = max(latest_us, now_us)
                subject = random.choice(["a", "b", "c"])
                cost = random.choice([1, 1, 1, 2, spec.capacity, spec.capacity + 1])
                state = states.get(subject)
                expected = [decide(spec, state, now_us, cost)]
                if state is not None and now_us < spec.expires_us(state) <= latest_us:
                    # The state had expired before the clock was set back, so the store may have forgotten it.
                    expected.append(decide(spec, None, now_us, cost))
                answer = self.ask((counter, subject, cost))
                (verdict,) = answer.verdicts()
                matching = [after for described, after in expected if described == verdict]
                assert matching, (spec, step, verdict, expected)
                states[subject] = matching[0]
                assert answer.admitted == (verdict.outcome is Outcome.ALLOWED), (spec, step)
                assert answer.now_us == now_us

    def _move(self, random: Random, spec: Spec) -> None:
        span_us = max(spec.window_us // max(spec.capacity, 1), 1)
        if random.random() < 0.02:
            self.clock.set(self.clock.now_us() - random.randrange(3 * spec.window_us))
        elif random.random() < 0.6:
            self.clock.advance(random.randrange(2 * span_us))

    def test_the_wait_is_exact(self) -> None:
        """Refused 1 microsecond before ``retry_after``, allowed at it, for every algorithm."""
        for index, spec in enumerate(CONTRACT_SPECS):
            counter = counter_for(spec, f"rule{index}")
            while (answer := self.ask((counter, "s", 1))).admitted:
                pass
            (verdict,) = answer.verdicts()
            assert verdict.retry_after_us
            self.clock.advance(verdict.retry_after_us - 1)
            assert not self.ask((counter, "s", 1)).admitted, spec
            self.clock.advance(1)
            assert self.ask((counter, "s", 1)).admitted, spec

    def test_subjects_do_not_share(self) -> None:
        """Two subjects of one rule, and one subject of two rules, have counters of their own."""
        one, two = counter_for(TokenBucket(1, 1, US_PER_S), "one"), counter_for(TokenBucket(1, 1, US_PER_S), "two")
        assert self.ask((one, "a", 1)).admitted
        assert self.ask((one, "b", 1)).admitted
        assert self.ask((two, "a", 1)).admitted
        assert not self.ask((one, "a", 1)).admitted

    def test_a_cost_that_never_fits_costs_nothing(self) -> None:
        """A cost above the capacity is refused for good and leaves every token."""
        counter = counter_for(TokenBucket(3, 3, US_PER_S))
        answer = self.ask((counter, "s", 5))
        assert not answer.admitted
        assert answer.verdicts() == (Verdict(Outcome.NEVER_FITS, 3, None, 0),)
        assert self.remaining(counter) == 3

    def test_a_peek_charges_and_creates_nothing(self) -> None:
        """A peek says what a charge would, and leaves no counter behind."""
        counter = counter_for(TokenBucket(2, 2, US_PER_S))
        for _ in range(5):
            answer = self.ask((counter, "s", 1), peek=True)
            assert answer.admitted
            assert answer.verdicts()[0].remaining == 2
            assert answer.receipts() == ()
        assert self.store.reset([(counter, "s")]) == 0

    # ------------------------------------------------------------------ several counters

    def test_a_refusal_charges_nobody(self) -> None:
        """Where one of three rules refuses, the other two keep all their tokens, whatever the order."""
        wide, tight, other = (
            counter_for(TokenBucket(limit, limit, 3_600 * US_PER_S), name)
            for limit, name in ((100, "wide"), (1, "tight"), (10, "other"))
        )
        assert self.ask((wide, "s", 1), (tight, "s", 1), (other, "s", 1)).admitted
        for order in ((wide, tight, other), (tight, wide, other), (other, wide, tight)):
            answer = self.ask(*((counter, "s", 1) for counter in order))
            assert not answer.admitted
            assert answer.receipts() == ()
            assert [verdict.outcome is Outcome.DENIED for verdict in answer.verdicts()] == [c is tight for c in order]
        assert (self.remaining(wide), self.remaining(tight), self.remaining(other)) == (99, 0, 9)

    def test_what_passes_in_a_refusal_is_described_as_it_stands(self) -> None:
        """A counter that would have let a refused request pass reports what it holds, with nothing charged."""
        wide, tight = counter_for(TokenBucket(10, 10, US_PER_S), "wide"), counter_for(FixedWindow(1, US_PER_S), "tight")
        self.ask((wide, "s", 4), (tight, "s", 1))
        verdict = self.ask((wide, "s", 2), (tight, "s", 1)).verdicts()[0]
        assert (verdict.outcome, verdict.remaining, verdict.retry_after_us) == (Outcome.ALLOWED, 6, 0)

    def test_shadow_refuses_nobody(self) -> None:
        """A shadow counter that is empty is reported as denied and the request passes, charging the others only."""
        real = counter_for(TokenBucket(10, 10, 3_600 * US_PER_S), "real")
        shadow = counter_for(TokenBucket(1, 1, 3_600 * US_PER_S), "shadow", shadow=True)
        first = self.ask((shadow, "s", 1), (real, "s", 1))
        second = self.ask((shadow, "s", 1), (real, "s", 1))
        assert (first.admitted, first.unanimous, len(first.receipts())) == (True, True, 2)
        assert (second.admitted, second.unanimous) == (True, False)
        assert [receipt.counter for receipt in second.receipts()] == [real]
        assert second.verdicts()[0].outcome is Outcome.DENIED
        assert (self.remaining(real), self.remaining(shadow)) == (8, 0)

    def test_shadow_is_not_charged_for_a_refusal(self) -> None:
        """Where an enforced counter refuses, a shadow that would pass keeps its tokens."""
        real = counter_for(TokenBucket(1, 1, 3_600 * US_PER_S), "real")
        shadow = counter_for(TokenBucket(5, 5, 3_600 * US_PER_S), "shadow", shadow=True)
        for _ in range(3):
            self.ask((shadow, "s", 1), (real, "s", 1))
        assert self.remaining(shadow) == 4

    def test_denied_counts_charges_only_the_refusing_counter(self) -> None:
        """A refusal is charged to the counter that refused and counts denials, at most one full drain, to no other."""
        other = counter_for(TokenBucket(10, 10, 60 * US_PER_S), "other")
        strict = counter_for(TokenBucket(2, 2, 60 * US_PER_S), "strict", denied_counts=True)
        for _ in range(2):
            assert self.ask((other, "s", 1), (strict, "s", 1)).admitted
        self.clock.advance(29 * US_PER_S)
        for _ in range(5):
            assert not self.ask((other, "s", 1), (strict, "s", 1)).admitted
        (verdict,) = self.ask((strict, "s", 1)).verdicts()
        assert verdict.retry_after_us == 30 * US_PER_S
        assert self.remaining(other) >= 8

    def test_denied_counts_creates_no_counter_for_what_never_fits(self) -> None:
        """A cost above the capacity is not counted as a denial, so it leaves no counter."""
        counter = counter_for(TokenBucket(2, 2, US_PER_S), denied_counts=True)
        assert not self.ask((counter, "s", 3)).admitted
        assert self.store.reset([(counter, "s")]) == 0

    # ------------------------------------------------------------------ batches

    def test_a_batch_is_sequential(self) -> None:
        """Request i is charged before request i+1 is read, and all are decided at one time."""
        counter = counter_for(TokenBucket(3, 3, 3_600 * US_PER_S))
        answers = self.store.decide([[(counter, "s", 1)] for _ in range(5)])
        assert [answer.admitted for answer in answers] == [True, True, True, False, False]
        assert [answer.verdicts()[0].remaining for answer in answers] == [2, 1, 0, 0, 0]
        assert {answer.now_us for answer in answers} == {self.clock.now_us()}

    def test_a_batch_equals_single_calls(self) -> None:
        """``decide``, ``decide_one`` and ``decide_singles`` give the same answers for the same charges."""
        for index, spec in enumerate(CONTRACT_SPECS):
            counters = [counter_for(spec, f"{form}{index}") for form in ("one", "many", "singles")]
            subjects = [*"abbaaabaababbbbaabab"]
            now_us, singles = self.store.decide_singles([(counters[2], subject, 1) for subject in subjects])
            many = self.store.decide([[(counters[1], subject, 1)] for subject in subjects])
            one = [self.ask((counters[0], subject, 1)) for subject in subjects]
            described = [spec.verdict(state, now_us, 1, admitted) for admitted, state in singles]
            assert [a.verdicts()[0] for a in one] == [a.verdicts()[0] for a in many] == described

    def test_an_answer_never_changes(self) -> None:
        """Verdicts and receipts read after later charges are those of the moment of the decision."""
        counter = counter_for(TokenBucket(9, 9, 3_600 * US_PER_S))
        first = self.ask((counter, "s", 1))
        self.ask((counter, "s", 5))
        assert first.verdicts()[0].remaining == 8
        assert first.receipts()[0].cost == 1

    # ------------------------------------------------------------------ refund, reset, change

    def test_refund_restores(self) -> None:
        """A refund at the time of the charge leaves the counters as if it had never been."""
        for index, spec in enumerate(CONTRACT_SPECS):
            counter = counter_for(spec, f"rule{index}")
            self.ask((counter, "s", 1))
            # Two charges of one microsecond are not told apart by a queue, which then gives neither back.
            self.clock.advance(1)
            before = self.remaining(counter)
            answer = self.ask((counter, "s", 2))
            assert self.store.refund(answer.receipts()) == 1, spec
            assert self.remaining(counter) == before, spec

    def test_refund_gives_back_only_what_time_has_not(self) -> None:
        """Half a drain after a charge of everything, a refund gives back the other half and no more."""
        counter = counter_for(TokenBucket(10, 10, 10 * US_PER_S))
        answer = self.ask((counter, "s", 10))
        self.clock.advance(5 * US_PER_S)
        self.store.refund(answer.receipts())
        assert self.remaining(counter) == 10
        self.ask((counter, "s", 10))
        assert self.remaining(counter) == 0

    def test_refund_never_creates_a_counter(self) -> None:
        """A receipt of a counter that is gone gives nothing back and leaves no counter."""
        counter = counter_for(TokenBucket(10, 10, 10 * US_PER_S))
        receipts = self.ask((counter, "s", 4)).receipts()
        assert self.store.reset([(counter, "s")]) == 1
        assert self.store.refund(receipts) == 0
        assert self.store.reset([(counter, "s")]) == 0
        assert self.remaining(counter) == 10

    def test_grant_agrees_with_the_oracle(self) -> None:
        """Every algorithm gives back what the oracle does, at any time of its window, and never more than is used."""
        for index, spec in enumerate(CONTRACT_SPECS):
            random = Random(index)  # noqa: S311 -- a seeded sequence, not a secret
            counter = counter_for(spec, f"rule{index}")
            state: State | None = None
            for step in range(200):
                self.clock.advance(random.randrange(2 * max(spec.window_us // spec.capacity, 1)))
                now_us = self.clock.now_us()
                if random.random() < 0.6:
                    cost = random.randrange(1, spec.capacity + 1)
                    self.ask((counter, "s", cost))
                    _, state = decide(spec, state, now_us, cost)
                    continue
                tokens = random.choice([1, 2, spec.capacity, 10 * spec.capacity])
                if state is not None:
                    state, given = spec.grant(state, now_us, tokens)
                    # An expired counter may be gone, which is the same as one that has nothing used.
                    assert self.store.grant([(counter, "s", tokens)]) == [given], (spec, step)
                assert self.remaining(counter) == decide(spec, state, now_us, 0)[0].remaining, (spec, step)

    def test_grant_fills_up_and_no_further(self) -> None:
        """Of 30 used of 100, a grant of 50 gives back 30, and another one nothing."""
        counter = counter_for(TokenBucket(100, 100, 3_600 * US_PER_S))
        self.ask((counter, "s", 30))
        assert self.store.grant([(counter, "s", 10), (counter, "s", 50)]) == [10, 20]
        assert self.remaining(counter) == 100
        assert self.store.grant([(counter, "s", 50)]) == [0]

    def test_grant_never_creates_a_counter(self) -> None:
        """A grant for a client that has used nothing gives nothing back and leaves no counter."""
        for index, spec in enumerate(CONTRACT_SPECS):
            counter = counter_for(spec, f"rule{index}")
            assert self.store.grant([(counter, "s", 4)]) == [0]
            assert self.store.reset([(counter, "s")]) == 0

    def test_reset_forgets(self) -> None:
        """A reset counter is full again; resetting what is not there changes nothing and counts nothing."""
        counter = counter_for(TokenBucket(2, 2, 3_600 * US_PER_S))
        self.ask((counter, "s", 2))
        assert self.store.reset([(counter, "s"), (counter, "other")]) == 1
        assert self.remaining(counter) == 2

    def test_changed_numbers_keep_what_is_used(self) -> None:
        """40 used of 100 is 40 used of 200 under ``keep``, 80 used under ``scale``, none under ``reset``."""
        for how, left in ((OnChange.KEEP, 160), (OnChange.SCALE, 120), (OnChange.RESET, 200)):
            old = counter_for(TokenBucket(100, 100, 3_600 * US_PER_S), how.value)
            new = counter_for(TokenBucket(200, 200, 3_600 * US_PER_S), how.value, on_change=how)
            self.ask((old, "s", 40))
            assert self.remaining(new) == left, how

    def test_a_lowered_limit_locks_out_for_one_drain_at_most(self) -> None:
        """After 1000 used of 1000 an hour, a limit of 10 an hour refuses for one new drain from the first look on."""
        old, new = (counter_for(TokenBucket(limit, limit, 3_600 * US_PER_S)) for limit in (1_000, 10))
        self.ask((old, "s", 1_000))
        assert not self.ask((new, "s", 1)).admitted
        self.clock.advance(359 * US_PER_S)
        assert not self.ask((new, "s", 1)).admitted
        self.clock.advance(US_PER_S)
        assert self.ask((new, "s", 1)).admitted

    def test_equal_numbers_are_no_change(self) -> None:
        """Rules loaded again with the same numbers leave every counter as it is."""  # T101
        for _ in range(3):
            self.ask((counter_for(FixedWindow(5, 60 * US_PER_S)), "s", 1))
        assert self.remaining(counter_for(FixedWindow(5, 60 * US_PER_S))) == 2

    # ------------------------------------------------------------------ closing

    def test_a_closed_store_raises(self) -> None:
        """After ``close`` every call raises StoreError, and closing again is no error."""
        counter = counter_for(TokenBucket(2, 2, US_PER_S))
        answer = self.ask((counter, "s", 1))
        self.store.close()
        self.store.close()
        for call in (
            lambda: self.store.decide([[(counter, "s", 1)]]),
            lambda: self.store.decide_one([(counter, "s", 1)]),
            lambda: self.store.decide_singles([(counter, "s", 1)]),
            lambda: self.store.refund(answer.receipts()),
            lambda: self.store.reset([(counter, "s")]),
            lambda: self.store.grant([(counter, "s", 1)]),
        ):
            try:
                call()
            except StoreError:
                continue
            raise AssertionError("a closed store decided")
