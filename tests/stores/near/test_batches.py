"""Batches at a near store: one call for what must be asked, decided as if one request came after the other."""

from __future__ import annotations

from random import Random

import pytest

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.algorithms.verdict import LocalVerdict
from sluicegate.clock import US_PER_S

DAY = TokenBucket(1_000_000, 1_000_000, 86_400 * US_PER_S)


@pytest.fixture
def shared(counter_of):
    """A leased counter of everybody."""
    return counter_of("shared", DAY, Precision.LEASED)


@pytest.fixture
def own(counter_of):
    """The exact counter of a client."""
    return counter_of("own", TokenBucket(3, 3, 60 * US_PER_S))


def test_one_call_for_all_that_is_asked(bench, shared, own) -> None:
    """Of ten requests with a leased charge each, the store gets the clients' charges in one call, in order."""
    near = bench.near()
    bench.supply(near, shared, tokens=20)
    bench.model.asked.clear()
    calls = bench.model.flaky.calls
    answers = near.decide([[(shared, "*", 1), (own, "ab"[place % 2], 1)] for place in range(10)])
    assert [answer.admitted for answer in answers] == [True] * 6 + [False] * 4
    assert bench.model.flaky.calls == calls + 1
    assert bench.model.asked == [[(own, "ab"[place % 2], 1)] for place in range(10)]


def test_local_answers_keep_their_places(bench, shared, own) -> None:
    """What is leased, what is refused here and what is asked come back in the order of the requests."""
    near = bench.near()
    bench.supply(near, shared)
    for _ in range(4):
        near.decide_one([(own, "a", 1)])
    bench.model.asked.clear()
    answers = near.decide([[(shared, "*", 1)], [(own, "a", 1)], [(own, "b", 1)], [(own, "b", 9)]])
    assert [answer.admitted for answer in answers] == [True, False, True, False]
    assert [answer.asked for answer in answers] == [False, False, True, False]
    assert bench.model.asked == [[(own, "b", 1)]]


def test_a_request_waits_for_tokens_that_earlier_ones_may_give_back(bench, counter_of, own) -> None:
    """Where the tokens are held by requests before, those are decided first: what they give back is there for the next."""
    near = bench.near()
    scarce = counter_of("scarce", TokenBucket(1_000, 1, 86_400 * US_PER_S), Precision.LEASED)
    bench.supply(near, scarce, tokens=2)
    for _ in range(3):
        near.decide_one([(own, "a", 1)])
    near.forget()
    leased = near.front.leases.find(scarce, "*", near.now_us())
    tokens = leased.left(near.now_us())
    bench.model.asked.clear()
    # The first holds all tokens and is refused by its own counter, which the near store does not know yet.
    answers = near.decide([[(scarce, "*", tokens), (own, "a", 1)], [(scarce, "*", tokens)]])
    assert [answer.admitted for answer in answers] == [False, True]
    assert bench.model.asked == [[(own, "a", 1)]]


def test_singles_are_states_and_what_is_known_here(bench, shared, own) -> None:
    """Charges that the store decides come with states, the others with a verdict in their place; plain ones go through as they are."""
    near = bench.near()
    bench.supply(near, shared)
    _, plain = near.decide_singles([(own, "a", 1)] * 4)
    assert [admitted for admitted, _ in plain] == [True, True, True, False]
    assert not near.front.denials.active
    near.decide_one([(own, "a", 1)])
    now_us, singles = near.decide_singles([(shared, "*", 1), (own, "a", 1), (own, "b", 1)])
    assert [admitted for admitted, _ in singles] == [True, False, True]
    assert [type(state) is LocalVerdict for _, state in singles] == [True, True, False]
    assert own.spec.verdict(singles[2][1], now_us, 1, True).remaining == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_is_as_its_requests_one_by_one(bench, counter_of, seed: int) -> None:
    """Random requests over exact, leased and shadow counters get the same yes and no in batches as one after the other."""
    random = Random(seed)
    one, many = bench.near(), bench.near()
    pairs = [
        [
            counter_of(f"{form}shared", DAY, Precision.LEASED),
            counter_of(f"{form}own", TokenBucket(5, 5, 3_600 * US_PER_S)),
            counter_of(f"{form}shadow", TokenBucket(3, 3, 3_600 * US_PER_S), shadow=True),
        ]
        for form in ("one", "many")
    ]
    for near, counters in zip((one, many), pairs, strict=True):
        bench.supply(near, counters[0], tokens=30)
    for _ in range(15):
        drawn = [
            [(place, random.choice("abc"), random.choice((1, 1, 2))) for place in sorted(random.sample(range(3), random.choice((1, 2, 3))))]
            for _ in range(random.randrange(1, 8))
        ]  # fmt: skip
        requests = [
            [[(counters[place], "*" if place == 0 else name, cost) for place, name, cost in request] for request in drawn]
            for counters in pairs
        ]  # fmt: skip
        singly = [one.decide_one(request) for request in requests[0]]
        together = many.decide(requests[1])
        assert [answer.admitted for answer in together] == [answer.admitted for answer in singly]
        assert [answer.unanimous for answer in together] == [answer.unanimous for answer in singly]
        bench.pass_us(20_000)
    for place in (1, 2):
        for name in "abc":
            left = [
                bench.model.memory.decide_one([(counters[place], name, 0)], peek=True).verdicts()[0].remaining
                for counters in pairs
            ]
            assert left[0] == left[1]
