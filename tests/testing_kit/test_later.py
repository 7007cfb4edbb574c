"""The store whose answers come later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, AsyncStore, FleetStore, HitStore
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import AwaitedStore, FakeClock, FlakyStore, LaterStore, StoreContract
from sluicegate.testing.store_contract import counter_for

COUNTER = counter_for(TokenBucket(5, 5, 60 * US_PER_S))
REQUEST = [(COUNTER, "s", 1)]


def remaining(answers: list[Answer | StoreError]) -> list[int]:
    """What each answer left."""
    return [answer.verdicts()[0].remaining for answer in answers]


@pytest.fixture
def later() -> LaterStore:
    return LaterStore(FlakyStore(MemoryStore(FakeClock())))


class TestAwaitedLaterStore(StoreContract):
    """Behind its callbacks and coroutines it keeps the contract of stores."""

    @pytest.fixture(autouse=True)
    def _runner(self) -> Iterator[None]:
        self.clock = ManualClock()
        with asyncio.Runner() as runner:
            self.store = AwaitedStore(LaterStore(MemoryStore(self.clock)), runner)
            yield
            self.store.close()

    def setup_method(self) -> None:
        """The store is made by a fixture."""

    def teardown_method(self) -> None:
        """The store is closed by a fixture, while its loop runs."""


class TestLaterStore(StoreContract):
    """Its synchronous calls are those of what it wraps."""

    def new_store(self, clock: ManualClock) -> LaterStore:
        return LaterStore(MemoryStore(clock))


def test_its_abilities(later: LaterStore) -> None:
    """It is a store for coroutines and of a fleet, and hides the abilities of what it wraps."""
    assert isinstance(later, AsyncStore)
    assert isinstance(later, FleetStore)
    assert not isinstance(later, HitStore)


async def test_an_answer_comes_in_a_later_round(later: LaterStore) -> None:
    """``done`` is not called before ``submit`` returns, and is called by the next round of the loop."""
    found: list[Answer | StoreError] = []
    later.submit(REQUEST, found.append)
    assert found == []
    await asyncio.sleep(0)
    assert remaining(found) == [4]
    assert later.submitted == 1


async def test_answers_are_held_and_released_in_any_order(later: LaterStore) -> None:
    """Requests are decided in the order of their calls, whatever the order in which their callers hear of it."""
    found: list[Answer | StoreError] = []
    later.hold()
    for _ in range(3):
        later.submit(REQUEST, found.append)
    await asyncio.sleep(0)
    assert (found, later.waiting) == ([], 3)
    assert later.release(1, newest_first=True) == 1
    assert later.release(1) == 1
    assert remaining(found) == [2, 4]
    assert later.release() == 1
    assert remaining(found) == [2, 4, 3]
    assert (await later.adecide_one(REQUEST)).verdicts()[0].remaining == 1


async def test_a_lost_answer(later: LaterStore) -> None:
    """An answer released with an error is that error to its caller, and its charge was made."""
    found: list[Answer | StoreError] = []
    later.hold()
    later.submit(REQUEST, found.append)
    lost = StoreError("lost")
    later.release(error=lost)
    assert found == [lost]
    assert (await later.adecide_one(REQUEST)).verdicts()[0].remaining == 3


async def test_failures_of_the_wrapped_store_are_told_later(later: LaterStore) -> None:
    """Where the wrapped store fails, callbacks get the error and coroutines raise it."""
    later.store.down = True
    found: list[Answer | StoreError] = []
    later.submit(REQUEST, found.append)
    assert found == []
    for call in (
        later.adecide_one(REQUEST),
        later.adecide([REQUEST]),
        later.arefund([]),
        later.areset([(COUNTER, "s")]),
    ):
        with pytest.raises(StoreError, match="down"):
            await call
    assert [str(error) for error in found] == ["the store is down (FlakyStore)"]


async def test_a_cancelled_call_is_charged(later: LaterStore) -> None:
    """A coroutine that is cancelled while its answer is held leaves its charge behind and nothing else."""
    later.hold()
    call = asyncio.create_task(later.adecide_one(REQUEST))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    later.release()
    assert (await later.adecide_one(REQUEST)).verdicts()[0].remaining == 3


async def test_what_it_says_of_its_fleet(later: LaterStore) -> None:
    """Nodes, state and error are what the test says."""
    assert (later.nodes, await later.awarm()) == (1, True)
    later.nodes, later.state, later.error = 3, "down", "gone"
    assert not await later.awarm()
    assert [(server.state, server.error) for server in later.health()] == [("down", "gone")]
    await later.abeat()
    assert later.beats == 1
