"""Several processes in front of one store never admit more than its limits allow, in any interval, whatever their requests are made of."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from sluicegate.algorithms import FixedWindow, Precision, SlidingWindow, TokenBucket
from sluicegate.clock import US_PER_S
from sluicegate.errors import StoreError
from sluicegate.testing import worst_excess

NODES = 3
SHARED = (
    TokenBucket(1_500, 1_500, 5 * US_PER_S),
    FixedWindow(1_500, 5 * US_PER_S),
    SlidingWindow(1_500, 5 * US_PER_S),
    TokenBucket(5_000, 1, 60 * US_PER_S),
)


@pytest.mark.parametrize("spec", SHARED, ids=lambda spec: f"{spec.algorithm}-{spec.capacity}")
@pytest.mark.parametrize("seed", range(2))
def test_no_interval_holds_more_than_the_bound(bench, counter_of, spec, seed: int) -> None:
    """Shared leased and own exact counters in one request, batches, costs, a store that fails now and then: both bounds hold."""
    random = Random(seed)
    shared = counter_of("shared", spec, Precision.LEASED)
    own = counter_of("own", TokenBucket(40, 40, 5 * US_PER_S))
    nears = [bench.near() for _ in range(NODES)]
    bench.model.nodes = NODES
    hits: dict[str, list[tuple[int, int]]] = defaultdict(list)
    admitted = refused = failed = 0
    for _ in range(250):
        bench.pass_us(random.choice((10_000, 20_000, 40_000)))
        bench.model.flaky.fail_next = 3 if random.random() < 0.03 else 0
        load = random.choice((2, 10, 30))
        for near in nears:
            requests = []
            for _ in range(load):
                user, cost = random.choice("abcdefgh"), random.choice((1, 1, 1, 3))
                kinds = random.choice(("both", "both", "shared", "own"))
                request = [(shared, "*", cost)] if kinds != "own" else []
                requests.append(request + ([(own, user, cost)] if kinds != "shared" else []))
            now_us = bench.clock.now_us()
            answers: list = []
            if random.random() < 0.3:
                try:
                    answers = near.decide(requests)
                except StoreError as error:
                    answers = list(getattr(error, "answers", [None] * len(requests)))
            else:
                for request in requests:
                    try:
                        answers.append(near.decide_one(request))
                    except StoreError as error:
                        answers.append(error)
            for request, answer in zip(requests, answers, strict=True):
                if answer is None or isinstance(answer, StoreError):
                    failed += 1
                    # What stands although the store failed may pass by a failure policy.
                    for receipt in getattr(answer, "receipts", ()):
                        hits[receipt.counter.prefix + receipt.subject].append((now_us, receipt.cost))
                elif answer.admitted:
                    admitted += 1
                    for counter, subject, cost in request:
                        hits[counter.prefix + subject].append((now_us, cost))
                else:
                    refused += 1
                    assert answer.receipts() == ()
        bench.model.flaky.fail_next = 0
    assert min(admitted, refused) > 300
    assert failed > 0
    assert sum(near.stats.leased for near in nears) > 100
    assert sum(near.stats.denied for near in nears) > 100
    for key, found in hits.items():
        bound = spec if key.startswith(shared.prefix) else own.spec
        excess = worst_excess(found, bound.most_admitted)
        assert excess is None, (seed, key, excess)


def test_a_refused_request_costs_nothing(bench, counter_of) -> None:
    """After any number of refused mixed requests the shared counter and what is leased of it hold as much as before."""
    shared = counter_of("shared", TokenBucket(10_000, 1, 86_400 * US_PER_S), Precision.LEASED)
    own = counter_of("own", TokenBucket(1, 1, 86_400 * US_PER_S))
    near = bench.near()
    bench.supply(near, shared)
    for user in range(50):
        near.decide_one([(own, f"u{user}", 1)])

    def whole() -> int:
        left = bench.model.memory.decide_one([(shared, "*", 0)], peek=True).verdicts()[0].remaining
        leased = near.front.leases.find(shared, "*", near.now_us())
        return left + leased.left(near.now_us())

    before = whole()
    for _ in range(3):
        for user in range(50):
            assert not near.decide_one([(shared, "*", 1), (own, f"u{user}", 1)]).admitted
        answers = near.decide([[(shared, "*", 1), (own, f"u{user}", 1)] for user in range(50)])
        assert not any(answer.admitted for answer in answers)
        near.forget()
    assert whole() == before
