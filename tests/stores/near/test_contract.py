"""A near store keeps the contract of stores: what it answers itself is what the store would have said, but for numbers nobody has asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random

import pytest

from sluicegate.algorithms import FixedWindow, Outcome, TokenBucket, Verdict, decide
from sluicegate.algorithms.verdict import NOT_ASKED, LocalVerdict
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.stores.base import Store
from sluicegate.stores.near import NearSettings, NearStore
from sluicegate.stores.redis import RedisStore
from sluicegate.testing import AwaitedStore, StoreContract
from sluicegate.testing.store_contract import CONTRACT_SPECS, counter_for


class NearContract(StoreContract):
    """The contract, less what a refusal that is known here cannot know: what is left of a counter (0 is said) and, after a clock that
    was set back, the exact wait.
    """

    near: NearStore

    def setup_method(self) -> None:
        """The store is made by a fixture."""

    def teardown_method(self) -> None:
        """The store is closed by a fixture."""

    def test_agrees_with_the_oracle(self) -> None:
        """Every algorithm gives the oracle's yes and no over generated sequences, and for the lowest cost waits that end no sooner."""
        for index, spec in enumerate(CONTRACT_SPECS):
            random = Random(index)
            counter = counter_for(spec, f"rule{index}")
            states: dict[str, object] = {}
            local = 0
            for step in range(400):
                if random.random() < 0.6:
                    self.clock.advance(random.randrange(2 * max(spec.window_us // max(spec.capacity, 1), 1)))
                subject, cost = random.choice("abc"), random.choice([1, 1, 1, 2, spec.capacity, spec.capacity + 1])
                expected, states[subject] = decide(spec, states.get(subject), self.clock.now_us(), cost)
                answer = self.ask((counter, subject, cost))
                (verdict,) = answer.verdicts()
                assert verdict.outcome is expected.outcome, (spec, step)
                if type(verdict) is LocalVerdict:
                    local += 1
                    assert verdict.remaining == 0
                    told_us, true_us = verdict.retry_after_us, expected.retry_after_us
                    assert (told_us is None) is (true_us is None), (spec, step)
                    # What is known of the lowest cost is told to a higher one too: it comes back too early, and is asked about then.
                    assert cost > 1 or (told_us or 0) >= (true_us or 0), (spec, step, told_us, true_us)
                else:
                    assert verdict == expected, (spec, step)
            assert local > 20, spec

    def test_a_cost_that_never_fits_costs_nothing(self) -> None:
        """A cost above the capacity is refused for good and leaves every token; what is left is not known without asking."""
        counter = counter_for(TokenBucket(3, 3, US_PER_S))
        answer = self.ask((counter, "s", 5))
        assert not answer.admitted
        assert answer.verdicts() == (Verdict(Outcome.NEVER_FITS, 0, None, 0),)
        assert self.remaining(counter) == 3

    def test_a_batch_equals_single_calls(self) -> None:
        """``decide``, ``decide_one`` and ``decide_singles`` say yes and no alike for the same charges."""
        for index, spec in enumerate(CONTRACT_SPECS):
            counters = [counter_for(spec, f"{form}{index}") for form in ("one", "many", "singles")]
            subjects = [*"abbaaabaababbbbaabab"]
            _, singles = self.store.decide_singles([(counters[2], subject, 1) for subject in subjects])
            many = self.store.decide([[(counters[1], subject, 1)] for subject in subjects])
            one = [self.ask((counters[0], subject, 1)) for subject in subjects]
            passed = [admitted for admitted, _ in singles]
            assert [a.admitted for a in one] == [a.admitted for a in many] == passed

    def test_what_passes_in_a_refusal_is_described_as_it_stands(self) -> None:
        """Where the refusal is known here, the other counters are not asked, and refuse nobody; what they hold stays."""
        wide, tight = counter_for(TokenBucket(10, 10, US_PER_S), "wide"), counter_for(FixedWindow(1, US_PER_S), "tight")
        self.ask((wide, "s", 4), (tight, "s", 1))
        verdict = self.ask((wide, "s", 2), (tight, "s", 1)).verdicts()[0]
        assert verdict == NOT_ASKED or (verdict.outcome, verdict.remaining) == (Outcome.ALLOWED, 6)
        assert self.remaining(wide) == 6

    def test_a_refusal_charges_nobody(self) -> None:
        """Where one of three rules refuses, the other two keep all their tokens, whatever the order, and none is said to refuse."""
        wide, tight, other = (
            counter_for(TokenBucket(limit, limit, 3_600 * US_PER_S), name)
            for limit, name in ((100, "wide"), (1, "tight"), (10, "other"))
        )
        assert self.ask((wide, "s", 1), (tight, "s", 1), (other, "s", 1)).admitted
        for order in ((wide, tight, other), (tight, wide, other), (other, wide, tight)):
            answer = self.ask(*((counter, "s", 1) for counter in order))
            assert not answer.admitted
            assert answer.receipts() == ()
            assert answer.refused() == [(tight, "s", 1)]
            assert [verdict.outcome is Outcome.DENIED for verdict in answer.verdicts()] == [c is tight for c in order]
        assert (self.remaining(wide), self.remaining(tight), self.remaining(other)) == (99, 0, 9)

    def test_denied_counts_charges_only_the_refusing_counter(self) -> None:
        """A refusal that reaches the store is charged to the counter that refused and counts denials, and to no other."""
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


class TestOverAModel(NearContract):
    """In front of a memory store."""

    @pytest.fixture(autouse=True)
    def _store(self, bench) -> Iterator[None]:
        self.clock, self.store = bench.clock, bench.near()
        yield
        self.store.close()


class TestAwaitedOverAModel(NearContract):
    """Its callbacks and coroutines."""

    @pytest.fixture(autouse=True)
    def _store(self, bench) -> Iterator[None]:
        self.clock = bench.clock
        with asyncio.Runner() as runner:
            self.store = AwaitedNear(bench.near(), runner)
            yield
            self.store.close()


class AwaitedNear(AwaitedStore):
    """Answers that are known here are no StateAnswers."""

    def decide_singles(self, charges, *, peek: bool = False):
        answers = self.decide([(charge,) for charge in charges], peek=peek)
        return answers[0].now_us, [(answer.admitted, None) for answer in answers]


@pytest.mark.parametrize("server", ["redis", "valkey", "redis cluster"], indirect=True)
class TestOverRedis(NearContract):
    """In front of servers, whose time is turned by hand."""

    @pytest.fixture(autouse=True)
    def _store(self, server) -> Iterator[None]:
        self.clock = ManualClock()
        shared = RedisStore(server.url, time_source=self.clock)
        self.store: Store = NearStore(shared, NearSettings(), self.clock)
        yield
        self.store.close()


@pytest.fixture
def server(request: pytest.FixtureRequest, servers, clusters, require_program: Callable[[str], str]):
    """Each of the servers, empty."""
    name, _, kind = request.param.partition(" ")
    return (clusters if kind else servers).empty(name, require_program)
