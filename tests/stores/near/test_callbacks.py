"""The near store on event loops: what is known is told at once, the rest by callback, and nothing provisional is left behind."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.clock import US_PER_S
from sluicegate.errors import PartlyDecided, PartlyReached, StoreError

DAY = TokenBucket(1_000_000, 1_000_000, 86_400 * US_PER_S)


@pytest.fixture
def shared(counter_of):
    """A leased counter of everybody."""
    return counter_of("shared", DAY, Precision.LEASED)


@pytest.fixture
def own(counter_of):
    """The exact counter of a client."""
    return counter_of("own", TokenBucket(3, 3, 60 * US_PER_S))


def held(near, counter) -> int:
    """Tokens that a process may still spend."""
    return near.front.leases.find(counter, "*", near.now_us()).left(near.now_us())


async def landed() -> None:
    """A few rounds of the loop."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_leased_is_told_before_submit_returns(bench, shared) -> None:
    """No round of the loop is waited for where the store is not asked."""
    near = bench.near()
    bench.supply(near, shared)
    told: list = []
    near.submit([(shared, "*", 1)], told.append)
    assert [answer.admitted for answer in told] == [True]


async def test_what_is_asked_is_told_later_and_put_together(bench, shared, own) -> None:
    """A mixed request is one question about the client's counter, and its answer speaks of both."""
    near = bench.near()
    bench.supply(near, shared)
    bench.model.asked.clear()
    told: list = []
    near.submit([(shared, "*", 1), (own, "a", 1)], told.append)
    assert told == []
    await landed()
    assert told[0].admitted
    assert len(told[0].receipts()) == 2
    assert bench.model.asked == [[(own, "a", 1)]]
    assert (await near.adecide_one([(shared, "*", 1), (own, "a", 1)])).admitted


async def test_a_refusal_gives_back_and_is_remembered(bench, shared, own) -> None:
    """Refused by the store: the tokens are there again, and the next request is refused before ``submit`` returns."""
    near = bench.near()
    bench.supply(near, shared)
    before = held(near, shared)
    found = [(await near.adecide_one([(shared, "*", 1), (own, "a", 1)])).admitted for _ in range(4)]
    assert found == [True, True, True, False]
    assert held(near, shared) == before - 3
    told: list = []
    near.submit([(shared, "*", 1), (own, "a", 1)], told.append)
    assert not told[0].admitted


async def test_a_cancelled_caller_leaves_nothing_provisional(bench, shared, own) -> None:
    """The question goes on without its caller; when it is answered the tokens are spent, and the lease can be closed."""
    near = bench.near()
    bench.supply(near, shared)
    before = held(near, shared)
    bench.model.hold()
    task = asyncio.create_task(near.adecide_one([(shared, "*", 1), (own, "a", 1)]))
    await landed()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    bench.model.release()
    await landed()
    leased = near.front.leases.find(shared, "*", near.now_us())
    assert held(near, shared) == before - 1
    assert all(lease.pending == lease.spends == 0 for lease in leased._leases)


async def test_a_cancelled_batch_leaves_nothing_provisional(bench, shared, own) -> None:
    """Nobody learns that its requests passed, so their tokens are put back."""
    near = bench.near()
    bench.supply(near, shared)
    before = held(near, shared)
    bench.model.hold()
    task = asyncio.create_task(near.adecide([[(shared, "*", 1), (own, name, 1)] for name in "ab"]))
    await landed()
    assert held(near, shared) == before - 2
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    bench.model.release()
    await landed()
    assert held(near, shared) == before


async def test_a_lease_that_ends_meanwhile_is_asked_about(bench, shared, own) -> None:
    """A second question follows the first, about the charge whose lease has ended."""
    near = bench.near()
    bench.supply(near, shared)
    bench.model.asked.clear()
    bench.model.hold()
    task = asyncio.create_task(near.adecide_one([(shared, "*", 1), (own, "a", 1)]))
    await landed()
    bench.clock.advance(2 * US_PER_S)
    bench.model.release()
    assert (await task).admitted
    assert bench.model.asked == [[(own, "a", 1)], [(shared, "*", 1)]]


async def test_undoing_does_not_keep_the_caller_waiting_and_is_done_before_the_end(bench, counter_of, own) -> None:
    """What a request was charged that is refused after all is given back by a task, which ``aclose`` waits for."""
    near = bench.near()
    scarce = counter_of("scarce", TokenBucket(1_000, 1, 86_400 * US_PER_S), Precision.LEASED)
    bench.supply(near, scarce, tokens=3)
    bench.model.hold()
    task = asyncio.create_task(near.adecide_one([(scarce, "*", 1), (own, "a", 1)]))
    await landed()
    bench.clock.advance(2 * US_PER_S)
    left = bench.model.memory.decide_one([(scarce, "*", 0)], peek=True).verdicts()[0].remaining
    bench.model.memory.decide_one([(scarce, "*", left)])
    bench.model.release()
    assert not (await task).admitted
    await near.aclose()
    assert [receipt.counter for receipt in bench.model.refunded] == [own]


def test_an_answer_that_comes_outside_of_a_loop_is_told(bench, counter_of, own, monkeypatch) -> None:
    """Where a store is closed from another thread nothing can be given back; the caller gets his answer all the same."""
    near = bench.near()
    scarce = counter_of("scarce", TokenBucket(1_000, 1, 86_400 * US_PER_S), Precision.LEASED)
    bench.supply(near, scarce, tokens=3)
    memory = bench.model.memory

    def submit(request, done, *, peek: bool = False) -> None:
        bench.clock.advance(2 * US_PER_S)
        left = memory.decide_one([(scarce, "*", 0)], peek=True).verdicts()[0].remaining
        if left:
            memory.decide_one([(scarce, "*", left)])
        done(memory.decide_one(request, peek=peek))

    monkeypatch.setattr(bench.model, "submit", submit)
    told: list = []
    near.submit([(scarce, "*", 1), (own, "a", 1)], told.append)
    assert [answer.admitted for answer in told] == [False]
    assert near.stats.undo_failed == 1
    assert bench.model.refunded == []


async def test_a_failing_store_leaves_the_leased_part_standing(bench, shared, own) -> None:
    """By callback and in a batch the error says what was reached."""
    near = bench.near()
    bench.supply(near, shared)
    bench.model.flaky.down = True
    with pytest.raises(PartlyReached) as raised:
        await near.adecide_one([(shared, "*", 1), (own, "a", 1)])
    assert [receipt.counter for receipt in raised.value.receipts] == [shared]
    with pytest.raises(PartlyDecided) as batch:
        await near.adecide([[(shared, "*", 1)], [(own, "a", 1)], [(shared, "*", 1), (own, "a", 1)]])
    first, second, third = batch.value.answers
    assert first.admitted
    assert second is None
    assert [receipt.counter for receipt in third.receipts] == [shared]
    with pytest.raises(StoreError):
        await near.adecide([[(own, "a", 1)]])


async def test_submitting_where_nobody_can_wait_puts_the_tokens_back(bench, shared, own, monkeypatch) -> None:
    """Where the store cannot even be asked the error is the caller's, and nothing is held for the request."""
    near = bench.near()
    bench.supply(near, shared)
    before = held(near, shared)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no loop")

    monkeypatch.setattr(bench.model, "submit", broken)
    with pytest.raises(RuntimeError):
        near.submit([(shared, "*", 1), (own, "a", 1)], lambda _: None)
    assert held(near, shared) == before
